"""What the run loop needs from other parts, as small protocols, and `RunWorld`, which holds one of each.

`ropewalk.app` fills a RunWorld; tests fill it with fakes that keep the same promises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ropewalk.core import limits
from ropewalk.core.clock import Clock, SystemClock
from ropewalk.interface.task import Task
from ropewalk.orchestration.contract import Fleet
from ropewalk.orchestration.fleet import room
from ropewalk.provenance.statement import Recorder
from ropewalk.reward import bundle as bundles
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.ports import GradingSandbox, ListedPath
from ropewalk.reward.verdict import Verdict
from ropewalk.sandbox.contract import SandboxSpec, SandboxStats, SnapshotRecord
from ropewalk.security.marks import Marks
from ropewalk.store.contract import Blobs


class FileInfo(ListedPath, Protocol):
    """One entry of a listing with digests."""

    @property
    def sha256(self) -> str | None: ...


class SavedState(Protocol):
    """A snapshot."""

    @property
    def id(self) -> str: ...
    @property
    def record(self) -> SnapshotRecord: ...


class EpisodeSandbox(GradingSandbox, Protocol):
    """A sandbox, as far as rollouts use it. Every method may raise SandboxGoneError."""

    @property
    def id(self) -> str: ...

    async def read(self, path: str, *, bytes_max: int = ..., offset: int = 0, whole: bool = True) -> bytes: ...
    async def list(
        self, path: str, *, recursive: bool = False, digests: bool = False, entries_max: int = ..., bytes_max: int = ...
    ) -> Sequence[FileInfo]: ...
    async def snapshot(self, label: str = "", *, durable: bool = True) -> SavedState: ...


class EpisodeSandboxes(Protocol):
    """The sandbox service."""

    async def create(self, spec: SandboxSpec) -> EpisodeSandbox: ...
    async def fork(self, snapshot_id: str) -> EpisodeSandbox: ...
    def snapshot(self, snapshot_id: str) -> SavedState:
        """One that exists.

        Raises:
            CallerError: it does not.
        """
        ...

    def check_unchanged(self, image: str, layers: Sequence[str]) -> None:
        """Returns if what sandboxes of these stand on did not move since they were first used.

        Raises:
            IntegrityError: it did.
        """
        ...

    def keeping(self) -> AbstractAsyncContextManager[None]:
        """While this is entered no process drops a snapshot."""
        ...

    def dropping(self) -> AbstractAsyncContextManager[Callable[[str], Awaitable[None]]]:
        """Gives what drops a snapshot, while no process takes one."""
        ...


class Judge(Protocol):
    """`ropewalk.reward.grader.Grader`, which documents it."""

    async def grade(self, task: Task, *, episode: str, bundle: Bundle | None, nonce: str = "") -> Verdict: ...


EPISODE_SANDBOXES = 2
"""That an episode has at once, at most: its own and a search's fork, or a grading and its control."""

Capture = Callable[[GradingSandbox, Task, Blobs], Awaitable[Bundle]]


@dataclass(frozen=True)
class RunWorld:
    """All that a run touches."""

    sandboxes: EpisodeSandboxes
    blobs: Blobs
    judge_on: Callable[[EpisodeSandboxes], Judge]
    """Makes the judge, whose sandboxes are that service's: it counts them."""
    recorder: Recorder
    marks: Marks
    """For `ropewalk.rollout.marks.PURPOSE`."""
    fleet: Fleet
    tenant: str
    clock: Clock = field(default_factory=SystemClock)
    capture: Capture = bundles.capture
    disk_in_memory: bool = False
    """Whether what sandboxes write counts as the machine's memory."""

    def placed(self, task: Task) -> AbstractAsyncContextManager[object]:
        """Room for one of the task's episodes, held while the block runs. On a machine that has less: all of it."""
        sandbox_bytes = task.limits.memory_bytes + (limits.SANDBOX_DISK_BYTES if self.disk_in_memory else 0)
        return room(self.fleet, EPISODE_SANDBOXES * sandbox_bytes, tenant=self.tenant)


def memory_of(stats: SandboxStats) -> dict[str, float]:
    """What a sandbox held of the machine's memory, without what could not be measured."""
    measured: dict[str, Any] = {
        "memory_bytes_peak": stats.memory_bytes_peak,
        "memory_bytes_unique": stats.memory_bytes_unique,
    }
    return {name: float(value) for name, value in measured.items() if value is not None}
