"""From the names in a plan to policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ropewalk.core.errors import CallerError
from ropewalk.machinery.redaction import hide
from ropewalk.rollout.plan import OpenAISettings, Plan, PolicyName
from ropewalk.rollout.policies.contract import Policy
from ropewalk.rollout.policies.fixed import NoopPolicy, OraclePolicy
from ropewalk.rollout.policies.model.policy import OpenAIPolicy
from ropewalk.rollout.policies.search.policy import SearchPolicy
from ropewalk.security.references import resolve_secret


def make_policies(plan: Plan, *, secret: Callable[[str], str] = resolve_secret) -> dict[str, Policy[Any]]:
    """The plan's policies by name; the caller closes them. `secret` turns a reference into its value.

    Raises:
        CallerError: a policy lacks its settings, or a secret its value.
    """
    return {str(name): _make(name, plan, secret) for name in plan.run.policies}


def _make(name: PolicyName, plan: Plan, secret: Callable[[str], str]) -> Policy[Any]:
    if name is PolicyName.NOOP:
        return NoopPolicy()
    if name is PolicyName.ORACLE:
        return OraclePolicy()
    if name is PolicyName.SEARCH:
        return SearchPolicy(plan.policy.search)
    settings = plan.policy.openai
    if settings is None:
        raise CallerError("The policy 'openai' has no settings.", next_step="add a [policy.openai] table.")
    key = key_of(settings, secret=secret)
    hide(key)
    return OpenAIPolicy(settings, key=key)


def key_of(settings: OpenAISettings, *, secret: Callable[[str], str] = resolve_secret) -> str:
    """The endpoint's key; empty where the settings name none.

    Raises:
        CallerError: nothing is where they say. The message names the setting.
        DeniedError: others may read the file.
    """
    try:
        return secret(settings.key) if settings.key else ""
    except CallerError as error:
        raise CallerError(f"policy.openai.key (--key): {error.message}", next_step=error.next_step) from error
