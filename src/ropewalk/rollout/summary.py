"""The run's summary: one record that the terminal table and the HTML report are drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record


def distinct(names: Mapping[str, str]) -> dict[str, str]:
    """Names by id; where several ids have one name, with the beginning of the id: `x (1f0c2a9b)`."""
    often = Counter(names.values())
    return {id: name if often[name] == 1 else f"{name} ({id.partition(':')[2][:8]})" for id, name in names.items()}


class Interval(Record):
    """A pass rate with its 95% Wilson score interval (E. B. Wilson, JASA 22, 1927); over several tasks, as wide as
    their differences make it (`ropewalk.reward.statistics.wilson_of_clusters`)."""

    passed: int
    n: int
    """Scored episodes alone; unscored ones are not zeros."""
    rate: float | None
    low: float
    high: float


class Row(Record):
    """One task under one policy."""

    task: str
    task_name: str
    kind: str
    policy: str
    episodes: int
    scored: int
    unscored: int
    passes: Interval
    reward_mean: float | None
    steps_mean: float
    terminations: dict[str, int]
    causes: dict[str, int]
    """The verdicts' causes, counted."""
    time_s: dict[str, float]
    """`sandbox`, `tests`, `model`, `policy`, `grading`; summed over episodes."""
    usage: dict[str, float]
    """`sandbox_s`, `forks`, `tokens_prompt`, `tokens_completion` summed, also over attempts that were made again;
    `cpu_s`, of sandboxes that lived `cpu_sandbox_s` (others' was not measured); the same of gradings as `grading_…`;
    `memory_bytes_peak` and `memory_bytes_unique` the largest, `memory_bytes_mean` the mean of episodes' peaks;
    `model_usd` by the plan's prices."""
    advantage: bool
    """Whether the group's rewards differ, so that a group-relative trainer learns from it."""
    complete: bool
    refusal: str = ""
    """Why the group is refused; empty where it is complete or still open."""


class PolicyRow(Record):
    """One policy over all tasks."""

    policy: str
    episodes: int
    unscored: int
    passes: Interval
    """For tasks like these, not for these alone."""
    steps_mean: float
    terminations: dict[str, int]
    time_s: dict[str, float]
    usage: dict[str, float]


class CatalogueCall(Record):
    """What the catalogue makes of a task: keep, watch, saturated, broken …"""

    task: str
    task_name: str
    call: str
    reason: str


class EpisodeLine(Record):
    """One episode in a list."""

    episode: str
    task: str
    policy: str
    index: int
    steps: int
    attempts: int
    """That were begun and came to an end, of playing it."""
    termination: Termination | None
    """None: not played yet."""
    truncated: bool
    value: float | None
    cause: str
    reward: str | None
    duration_s: float
    kept_snapshot: str | None = None


class RunSummary(Record):
    """See the module's text."""

    run: str
    plan: str
    state: str
    started_s: float
    ended_s: float
    rows: tuple[Row, ...]
    policies: tuple[PolicyRow, ...]
    catalogue: tuple[CatalogueCall, ...]
    episodes: tuple[EpisodeLine, ...]
    time_s: dict[str, float]
    """Whole run, with `signing` and `prepare`."""
    usage: dict[str, float]
    """As a row's, and `prepare_sandbox_s` of making tasks ready."""
    cost: dict[str, float] = {}
    """As the cost model names them; empty where none was given."""
