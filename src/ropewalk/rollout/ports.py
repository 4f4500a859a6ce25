"""What the run loop needs from other parts, as small protocols, and `World`, which holds one of each.

`ropewalk.app` fills a World; tests fill it with fakes that keep the same promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record
from ropewalk.interface.task import Task
from ropewalk.provenance.statement import Recorder
from ropewalk.reward.verdict import Verdict
from ropewalk.sandbox.contract import SandboxSpec, SandboxStats, SnapshotRecord
from ropewalk.store.contract import Blobs


class CommandResult(Protocol):
    """What a command in a sandbox came to; `ropewalk.sandbox` documents the fields."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def termination(self) -> Termination: ...
    @property
    def duration_s(self) -> float: ...


class FileInfo(Protocol):
    """One entry of a listing."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str | None: ...


class SavedState(Protocol):
    """A snapshot."""

    @property
    def id(self) -> str: ...
    @property
    def record(self) -> SnapshotRecord: ...


class Computer(Protocol):
    """A sandbox, as far as rollouts use it. Every method may raise SandboxGoneError."""

    @property
    def id(self) -> str: ...

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = ...,
        output_bytes_max: int = ...,
    ) -> CommandResult: ...

    async def read(self, path: str, *, bytes_max: int = ...) -> bytes: ...
    async def read_many(self, paths: Sequence[str]) -> Mapping[str, bytes]: ...
    async def write_many(self, files: Mapping[str, bytes]) -> None: ...
    async def remove(self, path: str) -> None: ...
    async def list(self, path: str, *, recursive: bool = False, digests: bool = False) -> Sequence[FileInfo]: ...
    async def snapshot(self, label: str = "") -> SavedState: ...
    async def stats(self) -> SandboxStats: ...
    async def close(self) -> None: ...


class Computers(Protocol):
    """The sandbox service."""

    async def create(self, spec: SandboxSpec) -> Computer: ...
    async def fork(self, snapshot_id: str) -> Computer: ...
    async def has_snapshot(self, snapshot_id: str) -> bool: ...
    async def drop_snapshot(self, snapshot_id: str) -> None: ...


class Handover(Record):
    """What an episode hands to its grader."""

    bundle: str | None
    """Digest of the bundle; None where it was refused."""
    refusal: str = ""
    """Why: too large, a link, an undeclared file."""


class Judge(Protocol):
    """Bundles and grades."""

    async def capture(self, task: Task, sandbox: Computer) -> Handover:
        """Takes the declared artefacts out of an episode's sandbox."""
        ...

    async def grade(self, task: Task, handover: Handover, *, episode: str, seed: int) -> Verdict:
        """Judges in a fresh sandbox. Trouble of the candidate is a verdict with a score; trouble of ours a verdict
        with status `infra_error` (after the grader's own retries) or an UnavailableError."""
        ...


class Fleet(Protocol):
    """Where sandboxes may run."""

    def place(self, *, cpus: float, memory_bytes: int) -> AbstractAsyncContextManager[object]:
        """Waits for room, in order of arrival, and gives it back on exit."""
        ...


@dataclass(frozen=True)
class World:
    """All that a run touches."""

    sandboxes: Computers
    blobs: Blobs
    judge: Judge
    recorder: Recorder
    fleet: Fleet
    tenant: str
    clock: Clock = field(default_factory=SystemClock)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for every sandbox of the run."""


def stats_usage(stats: SandboxStats) -> dict[str, float]:
    """What a sandbox used, without what could not be measured."""
    measured: dict[str, Any] = {
        "cpu_s": stats.cpu_s,
        "memory_bytes_peak": stats.memory_bytes_peak,
        "memory_bytes_unique": stats.memory_bytes_unique,
    }
    return {name: float(value) for name, value in measured.items() if value is not None}
