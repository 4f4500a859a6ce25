"""Plans: everything that decides a run, as one record with a digest.

The same record comes from a TOML file (`ropewalk.rollout.plan_file`) and from command-line settings, so a run made
either way can be repeated from the other. A plan holds references to secrets (`env:NAME`, `file:PATH`), never a secret.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record, content_id
from ropewalk.interface.task import TaskKind
from ropewalk.security.data_classes import data_class

PositiveInt = Annotated[int, Meta(ge=1, le=1_000_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]
SETTLED_ENDPOINT = (
    "A resumed run keeps its plan: if base_url, model or key themselves were wrong, start a new run with --task ID "
    "(`ropewalk task ls`), --base-url, --model and --key."
)
"""What to say wherever an endpoint's failure is followed by the advice to resume."""
SecretReference = Annotated[str, Meta(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)?$")]


class PolicyName(StrEnum):
    """The policies that come with Ropewalk."""

    NOOP = "noop"
    ORACLE = "oracle"
    SEARCH = "search"
    OPENAI = "openai"


class SourcePlan(Record):
    """[source]: where the raw data comes from."""

    uris: tuple[str, ...] = ()
    """`pypi:NAME`, `pypi:NAME==VERSION`, a directory or an archive. Paths count from the current directory."""
    requirements: str | None = None
    """A requirements file whose wheels become an offline layer."""
    wheelhouse: str | None = None
    """A folder of wheels to take them from, instead of the package index."""
    plugins: tuple[str, ...] = ()
    """Pytest plugins to load, by module name; all others stay off."""
    pytest_ini: dict[str, str] = {}
    """Settings of pytest that the tests need, by name (`asyncio_mode`, `pythonpath`, `python_files`, …)."""
    licence: str | None = None
    """SPDX expression, where the source itself names none."""
    attested_by: str | None = None
    """Role or organisation that states that the sources hold no human data; None: whom the profile names."""
    data_class: str | None = None
    """Of the sources and of all that is made of them; None: those of the stored files, `public` for new ones."""


class TasksPlan(Record):
    """[tasks]: what to build from it."""

    kinds: tuple[TaskKind, ...] = (TaskKind.RELEASE, TaskKind.MUTANT)
    count: PositiveInt = 12
    """To admit at most."""
    mutant_share_max: Annotated[float, Meta(ge=0, le=1)] = 0.25
    ids: tuple[str, ...] = ()
    """Admitted tasks to use as they are, instead of building any."""
    seed: Count = 0


class RunPlan(Record):
    """[run]: who acts on what, how often, within which bounds."""

    policies: tuple[PolicyName, ...] = (PolicyName.SEARCH,)
    tasks: PositiveInt | None = None
    """Of the admitted tasks, how many; None: all."""
    group: PositiveInt = 4
    """Episodes per task and policy, all forked from one snapshot."""
    steps: PositiveInt | None = None
    """Per episode, at most; None: as many as the task itself allows (8)."""
    seed: Count = 0
    concurrency: PositiveInt = 2
    """Episodes at once; the fleet's free slots bound it further."""
    episode_timeout_s: Seconds | None = None
    """None: as long as the task itself allows (600)."""
    attempts_max: Annotated[int, Meta(ge=1, le=20)] = 3
    """Of one episode that our side fails, before its reward is None."""
    sandbox_s_max: Amount | None = None
    """Budget of the whole run in sandbox-seconds, of all sandboxes: preparations, episodes, their forks, gradings, lost
    attempts, those that run included. Once it is used up nothing more begins, and what was not begun is refused, not
    scored; what runs goes on to its own limits, and is graded."""
    keep_failed: bool = False
    """Keep the snapshots of episodes that were not paid, so that `episode attach` opens the very state."""


class SearchSettings(Record):
    """[policy.search]."""

    forks_max: PositiveInt = 64
    """Per episode; a candidate edit takes one."""
    candidates_max: PositiveInt = 400
    """Per task, before ranking."""


class AnswerLimit(StrEnum):
    """How endpoints call the most tokens of an answer."""

    MAX_TOKENS = "max_tokens"
    """The old name, which most servers take."""
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    """The new one; OpenAI's reasoning models take no other."""


class OpenAISettings(Record):
    """[policy.openai]: a chat completions endpoint."""

    base_url: str
    """Up to and including the version: `http://127.0.0.1:8000/v1`."""
    model: str
    key: SecretReference = ""
    """`env:NAME` or `file:PATH`; empty for an endpoint without keys."""
    concurrency: PositiveInt = 4
    """Requests at once, over all episodes."""
    request_timeout_s: Seconds = 120.0
    attempts_max: Annotated[int, Meta(ge=1, le=20)] = 5
    """Of one request, on 429, 5xx, lost connections and answers that are no completion."""
    temperature: Annotated[float, Meta(ge=0, le=10)] = 1.0
    temperature_sent: bool = True
    """False: the model's own is used, for endpoints that take none, as those of reasoning models."""
    completion_tokens_max: PositiveInt = 2048
    """Per answer."""
    answer_limit: AnswerLimit = AnswerLimit.MAX_TOKENS
    """Under which name the endpoint is told it."""
    token_budget: PositiveInt = 100_000
    """Prompt and completion, per episode."""
    cost_usd_max: Amount | None = None
    """Per run; needs a price. A request is sent only if it fits with the longest answer it may get, by the request's
    length, and is counted by what the endpoint says; without an answer that says it, as if it had been the longest.
    Episodes that the cap stops are not scored."""
    price_usd_per_million_prompt: Amount = 0.0
    price_usd_per_million_completion: Amount = 0.0

    @property
    def priced(self) -> bool:
        """Whether tokens cost anything."""
        return self.price_usd_per_million_prompt > 0 or self.price_usd_per_million_completion > 0

    def usd(self, tokens_prompt: float, tokens_completion: float) -> float:
        """What tokens cost, in US dollars."""
        prompt = tokens_prompt * self.price_usd_per_million_prompt
        return (prompt + tokens_completion * self.price_usd_per_million_completion) / 1e6


class PoliciesPlan(Record):
    """[policy.*]: settings by policy."""

    search: SearchSettings = SearchSettings()
    openai: OpenAISettings | None = None


class PricePlan(Record):
    """[price]: what a machine costs, for the report."""

    file: str | None = None
    """A price file; None: the one that ships with Ropewalk."""
    set: dict[str, float] = {}
    """Single prices that replace the file's, by name."""


class Plan(Record):
    """See the module's text."""

    source: SourcePlan = SourcePlan()
    tasks: TasksPlan = TasksPlan()
    run: RunPlan = RunPlan()
    policy: PoliciesPlan = PoliciesPlan()
    price: PricePlan = PricePlan()

    @property
    def id(self) -> str:
        """`plan:` and the first 32 characters of its digest."""
        return content_id("plan", self)

    def check(self) -> Plan:
        """The plan itself, if its parts fit together.

        Raises:
            CallerError: a policy without its settings, or named twice; no policy at all; a cap on costs without
                prices, which would never be reached; an unknown data class.
        """
        run = self.run
        if self.source.data_class is not None:
            data_class(self.source.data_class)
        if not run.policies:
            raise CallerError("The plan names no policy.", next_step=f"set run.policies to some of {names()}.")
        if len(set(run.policies)) != len(run.policies):
            raise CallerError("The plan names a policy twice.", next_step="name each once in run.policies.")
        if PolicyName.OPENAI in run.policies and self.policy.openai is None:
            raise CallerError(
                "The plan uses the policy 'openai' without saying which endpoint and model.",
                next_step="give --base-url and --model, or add a [policy.openai] table with base_url and model.",
            )
        openai = self.policy.openai
        if openai is not None and openai.cost_usd_max is not None and not openai.priced:
            raise CallerError(
                "The plan caps what the model may cost (policy.openai.cost_usd_max) and gives its tokens no price.",
                next_step="give policy.openai.price_usd_per_million_prompt and price_usd_per_million_completion (with "
                "--set), or leave the cap out.",
            )
        return self


def names() -> str:
    """The policies, for messages."""
    return ", ".join(PolicyName)
