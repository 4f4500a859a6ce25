"""Policies: noop, oracle, search, and any OpenAI-compatible model."""

from ropewalk.rollout.policies.contract import ContextKind, Policy, PolicyEnd, PolicyFailedError

__all__ = ["ContextKind", "Policy", "PolicyEnd", "PolicyFailedError"]
