"""What a policy is, and what it may hold.

A policy acts in one episode through a context. There are two kinds, told apart by type. `AgentContext` is for
whatever might learn from its rewards: it has tools and nothing else. `SearchContext` and `TrustedContext` are for
host-side programs of ours that play a policy's part: they may fork, within a counted budget, and `TrustedContext`
also knows the answer. A policy declares its kind as `context`, and the run loop gives it no other.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from ropewalk.core.errors import UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record


class ContextKind(StrEnum):
    """What a policy may hold."""

    AGENT = "agent"
    SEARCH = "search"
    TRUSTED = "trusted"


class PolicyEnd(Record):
    """How a policy says that it is through. Returning None means finished."""

    termination: Termination = Termination.FINISHED
    truncated: bool = False
    detail: str = ""


class PolicyFailedError(UnavailableError):
    """Something that the policy needs from outside (a model endpoint) failed for good: the episode is not scored."""

    def __init__(
        self, message: str, *, cause: str, retriable: bool = True, for_all: bool = False, next_step: str = ""
    ) -> None:
        super().__init__(message, next_step=next_step)
        self.cause = cause
        """Typed, for the reward: `endpoint_unreachable`, `endpoint_garbage`, `endpoint_refused`, `cost_cap`."""
        self.retriable = retriable
        """Whether a new attempt of the episode can help."""
        self.for_all = for_all
        """Whether every other episode would fail for the same reason now: the run stops here, and can be resumed."""


ContextT_contra = TypeVar("ContextT_contra", contravariant=True)


class Policy(Protocol, Generic[ContextT_contra]):
    """Plays episodes; one instance plays many at once, so it keeps no state of an episode."""

    context: ClassVar[ContextKind]

    @property
    def name(self) -> str:
        """Name and the settings that change behaviour: `search(forks=64)`."""
        ...

    async def run(self, context: ContextT_contra) -> PolicyEnd | None:
        """One episode, until the policy is through.

        Raises:
            PolicyFailedError: see there.
            SandboxGoneError: passed on from a tool or a fork.
        """
        ...

    async def close(self) -> None:
        """Lets go of connections."""
        ...


@runtime_checkable
class SupportsSpending(Protocol):
    """A policy that costs money."""

    def spent(self, tokens_prompt: float, tokens_completion: float) -> None:
        """Counts what earlier parts of the run used towards its cost cap."""
        ...
