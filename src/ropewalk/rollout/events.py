"""What a run says while it goes, as records: the command line draws them live, tests assert on them."""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record


class Event(Record, tag_field="event", tag=str.lower):
    """Base of all events. `run` is the run's id."""

    run: str


class RunStarted(Event):
    """Also after a resume; `episodes_sealed` of them are from before."""

    tasks: int
    policies: tuple[str, ...]
    episodes_total: int
    episodes_sealed: int = 0
    names: dict[str, str] = {}
    """Of the tasks, by id, each its own."""


class TaskPrepared(Event):
    """The state that all of the task's episodes start from is saved."""

    task: str
    name: str
    snapshot: str
    duration_s: float


class TaskRefused(Event):
    """The task's sandbox cannot be made ready; its groups are refused."""

    task: str
    name: str
    cause: str
    detail: str


class EpisodeStarted(Event):
    """An attempt of an episode begins."""

    episode: str
    task: str
    policy: str
    index: int
    attempt: int


class EpisodeStepped(Event):
    """A step is through."""

    episode: str
    task: str
    policy: str
    step: int
    duration_s: float
    note: str
    """One line for people: the call, or what came of it."""


class EpisodeEnded(Event):
    """The policy is through; grading follows."""

    episode: str
    termination: Termination
    steps: int
    detail: str


class AttemptFailed(Event):
    """Our side failed, or what the journal says of an episode is not believed."""

    episode: str
    attempt: int
    """The one that failed."""
    stage: str
    """As in `FailureRow`."""
    again: bool
    """Whether the stage begins anew; False: it is decided that this episode is not scored."""
    cause: str
    detail: str


class EpisodeJudged(Event):
    """The grader has spoken; its verdict is stored, not yet signed."""

    episode: str
    status: str
    cause: str
    score: float | None


class RewardSealed(Event):
    """The reward and all statements below it are signed and durable: from now on it is visible."""

    reward: str
    episode: str
    task: str
    policy: str
    value: float | None
    cause: str


class GroupClosed(Event):
    """All rewards of the group are there, or the group is refused and `cause` says why."""

    group: str
    task: str
    policy: str
    complete: bool
    cause: str = ""


class RunEnded(Event):
    """`state`: complete, incomplete (some group refused), interrupted (resumable)."""

    state: str
    rewards: int
    unscored: int
    duration_s: float


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An observer that looks away."""
