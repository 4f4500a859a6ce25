"""An in-memory world for rollouts: sandboxes that are dictionaries, a grader that knows the answer, faults by plan.

What is durable in the real world (blobs, statements, snapshots, the database) lives in `Durable` and survives a
simulated crash; all else is made anew.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record, canonical_bytes, content_id, decode_own, digest_bytes
from ropewalk.interface.task import FileSet, Task, TaskKind, TaskLimits, TaskOrigin
from ropewalk.orchestration.drivers.local import LocalFleet, LocalFleetConfig
from ropewalk.orchestration.machine import Machine
from ropewalk.provenance.intoto import Statement, from_payload, to_payload
from ropewalk.provenance.statement import Activity, StatementDraft
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.spec import GraderLimits, GraderSpec
from ropewalk.reward.verdict import Verdict, VerdictStatus
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.loaded import LoadedRun, load_episodes
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.threads import in_thread
from ropewalk.sandbox.contract import SandboxGoneError, SandboxSpec, SandboxStats, SnapshotRecord
from ropewalk.store.database import Database
from tests.marks import MemoryMarks

WORKDIR = "/work"
BROKEN = b"def double(x):\n    return x + 2\n"
FIXED = b"def double(x):\n    return x * 2\n"


class Result(Record):
    exit_code: int | None = 0
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    termination: Termination = Termination.FINISHED
    duration_s: float = 0.01
    cpu_s: float = 0.01


class FileEntry(Record):
    path: str
    kind: str = "file"
    size: int
    sha256: str | None


class MemoryBlobs:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        self.data[digest_bytes(data)] = data
        return digest_bytes(data)

    def put_many(self, items: Any) -> tuple[str, ...]:
        return tuple(self.put(item) for item in items)

    def get(self, digest: str, *, bytes_max: int) -> bytes:
        if digest not in self.data:
            raise CallerError(f"no blob {digest!r}")
        return self.data[digest]

    def exists(self, digest: str) -> bool:
        return digest in self.data


class MemoryRecorder:
    """Statements in a list; equal drafts are one."""

    def __init__(self) -> None:
        self.drafts: dict[str, StatementDraft] = {}
        self.before: Callable[[], None] = lambda: None

    def record(self, drafts: tuple[StatementDraft, ...]) -> tuple[str, ...]:
        self.before()
        digests = tuple(digest_bytes(canonical_bytes(draft)) for draft in drafts)
        self.drafts.update(zip(digests, drafts, strict=True))
        return digests

    def of_run(self, run: str) -> tuple[Statement, ...]:
        """As `SignedRewards`."""
        rewards = [draft for draft in self.drafts.values() if draft.activity is Activity.REWARD]
        statements = [from_payload(to_payload(draft)) for draft in rewards]
        return tuple(statement for statement in statements if statement.facts["run"] == run)


@dataclass
class Saved:
    record: SnapshotRecord
    files: dict[str, bytes]

    @property
    def id(self) -> str:
        return self.record.id


Fault = Callable[[str, str], None]
"""Called before every operation with the sandbox's id and the operation's name; raises to make it fail."""


def no_fault(sandbox: str, operation: str) -> None:
    pass


class MemorySandbox:
    """A sandbox whose disk is a dictionary. Commands: `write PATH TEXT`, `fail`, `hang`; all else succeeds."""

    def __init__(self, service: MemorySandboxes, id: str, spec: SandboxSpec, files: dict[str, bytes]) -> None:
        self.id = id
        self.spec = spec
        self.files = files
        self._service = service

    async def _step(self, operation: str) -> None:
        await anyio.lowlevel.checkpoint()
        if self.id not in self._service.running:
            raise SandboxGoneError(f"{self.id} is gone")
        try:
            self._service.fault(self.id, operation)
        except SandboxGoneError:
            self._service.running.pop(self.id, None)
            raise

    async def exec(self, command: str | Sequence[str], **options: Any) -> Result:
        await self._step("exec")
        self._service.commands.append(command)
        if self._service.answer:
            return self._service.answer(self, command, options)
        if isinstance(command, str) and (match := re.fullmatch(r"write (\S+) (.*)", command, re.DOTALL)):
            self.files[f"{WORKDIR}/{match[1]}"] = match[2].encode()
        if command == "hang":
            await anyio.sleep(3600)
        return Result(exit_code=1 if command == "fail" else 0, stdout=f"ran {command}\n")

    async def read(self, path: str, *, bytes_max: int = 1 << 26, offset: int = 0, whole: bool = True) -> bytes:
        await self._step("read")
        if path not in self.files:
            raise CallerError(f"Cannot read {path}: no such file.")
        data = self.files[path][offset:]
        if whole and len(data) > bytes_max:
            raise CallerError(f"Cannot read {path}: larger than {bytes_max} bytes.")
        return data[:bytes_max]

    async def read_many(self, paths: Sequence[str], **options: Any) -> dict[str, bytes]:
        return {path: await self.read(path, bytes_max=options.get("bytes_max", 1 << 26)) for path in paths}

    async def write_many(self, files: Mapping[str, bytes], **options: Any) -> None:
        await self._step("write")
        self.files.update(files)

    async def remove(self, path: str) -> None:
        await self._step("remove")
        self.files.pop(path)

    async def list(
        self, path: str, *, recursive: bool = False, digests: bool = False, entries_max: int = 100, **_: Any
    ) -> tuple[FileEntry, ...]:
        await self._step("list")
        if len(self.files) > entries_max:
            raise CallerError(f"Cannot list {path}: more entries than the caller allows.")
        return tuple(
            FileEntry(path=name, size=len(data), sha256=digest_bytes(data) if digests else None)
            for name, data in sorted(self.files.items())
            if name.startswith(f"{path}/")
        )

    async def snapshot(self, label: str = "", *, durable: bool = True) -> Saved:
        await self._step("snapshot")
        return self._service.save(self)

    async def stats(self) -> SandboxStats:
        await self._step("stats")
        return SandboxStats(
            cpu_s=0.5, cpu_wait_s=0.0, memory_bytes_peak=1000, memory_bytes_unique=500, disk_bytes=10, processes=1,
            out_of_memory_kills=0,
        )  # fmt: skip

    async def close(self) -> None:
        self._service.running.pop(self.id, None)


class MemorySandboxes:
    """The service. `snapshots` is durable."""

    def __init__(self, snapshots: dict[str, Saved]) -> None:
        self.snapshots = snapshots
        self.running: dict[str, MemorySandbox] = {}
        self.forks = 0
        self.dropped: list[str] = []
        self.commands: list[Any] = []
        self.fault: Fault = no_fault
        self.answer: Callable[[MemorySandbox, Any, dict[str, Any]], Result] | None = None
        self.lock = anyio.Lock()
        """Also for tests that let two services share it, as two processes do."""
        self._numbers = itertools.count()

    async def create(self, spec: SandboxSpec) -> MemorySandbox:
        await anyio.lowlevel.checkpoint()
        self.fault("", "create")
        return self._start(
            spec, {f"{WORKDIR}/pkg/code.py": BROKEN, f"{WORKDIR}/tests/test_code.py": b"def test_a(): ..."}
        )

    async def fork(self, snapshot_id: str) -> MemorySandbox:
        await anyio.lowlevel.checkpoint()
        saved = self.snapshot(snapshot_id)
        self.fault("", "fork")
        self.forks += 1
        return self._start(saved.record.spec, dict(saved.files))

    def snapshot(self, snapshot_id: str) -> Saved:
        if snapshot_id not in self.snapshots:
            raise CallerError(f"no snapshot {snapshot_id}")
        return self.snapshots[snapshot_id]

    def check_unchanged(self, image: str, layers: Sequence[str]) -> None:
        self.fault("", "vouch")

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        async with self.lock:
            yield

    @asynccontextmanager
    async def dropping(self) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
        async with self.lock:
            yield self._drop

    async def _drop(self, snapshot_id: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.snapshot(snapshot_id)
        self.dropped.append(snapshot_id)
        del self.snapshots[snapshot_id]

    def save(self, sandbox: MemorySandbox) -> Saved:
        id = content_id("snapshot", {name: digest_bytes(data) for name, data in sandbox.files.items()})
        record = SnapshotRecord(
            id=id, driver="memory", tenant="tests", parent=None, spec=sandbox.spec, layers=(), memory=False,
            unique_bytes=0, data_class="public", label="", created_s=0.0,
        )  # fmt: skip
        return self.snapshots.setdefault(id, Saved(record, dict(sandbox.files)))

    def _start(self, spec: SandboxSpec, files: dict[str, bytes]) -> MemorySandbox:
        id = f"sandbox:{next(self._numbers)}"
        self.running[id] = MemorySandbox(self, id, spec, files)
        return self.running[id]


class MemoryJudge:
    """Pays for the answer, and only for it."""

    def __init__(self, blobs: MemoryBlobs) -> None:
        self._blobs = blobs
        self.calls = 0
        self.fault: Callable[[], str] = lambda: ""
        """Returns a cause for an `infra_error`, or raises."""

    async def grade(self, task: Task, *, episode: str, bundle: Bundle | None, nonce: str = "") -> Verdict:
        await anyio.lowlevel.checkpoint()
        self.calls += 1
        cause = self.fault()
        status, score = VerdictStatus.SCORED, 0.0
        if cause:
            status, score = VerdictStatus.INFRA_ERROR, None
        elif bundle is None:
            cause = "no_bundle"
        elif bundle.refused:
            cause = "bundle_refused"
        else:
            answer = decode_own(await in_thread(self._blobs.get, task.oracle, bytes_max=1 << 20), FileSet)
            right = bundle.files == answer.files
            score, cause = (1.0, "all_matched") if right else (0.0, "value_mismatch")
        return Verdict(
            episode=episode, task=task.id, grader=task.grader, bundle=bundle.digest if bundle else None, status=status,
            score=score, cause=cause, nonce="0" * 32, usage={"duration_s": 0.2},
        )  # fmt: skip


@dataclass
class Durable:
    """What survives a crash."""

    folder: Path
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    recorder: MemoryRecorder = field(default_factory=MemoryRecorder)
    snapshots: dict[str, Saved] = field(default_factory=dict)
    marks: MemoryMarks = field(default_factory=MemoryMarks)

    def world(self) -> RunWorld:
        """A world as a fresh process finds it."""
        judge = MemoryJudge(self.blobs)
        return RunWorld(
            sandboxes=MemorySandboxes(self.snapshots),  # type: ignore[arg-type]
            blobs=self.blobs,  # type: ignore[arg-type]
            judge_on=lambda sandboxes: judge,
            recorder=self.recorder,
            marks=self.marks,
            fleet=LocalFleet(LocalFleetConfig(), machine=Machine(cpus=4.0, memory_bytes=1 << 33, notes=())),
            tenant="tests",
        )

    def journal(self) -> RunJournal:
        """The journal, opened anew."""
        return RunJournal(Database.open(self.folder / "state.db"), locks=self.folder / "locks")

    def loaded(self, run: str) -> LoadedRun:
        """The run, loaded by a fresh process."""
        return load_episodes(self.journal(), self.blobs, run, log=self.recorder)  # type: ignore[arg-type]

    def task(self, name: str = "double", **fields: Any) -> Task:
        """A task with one broken function."""
        before = FileSet(files={"pkg/code.py": self.blobs.put(BROKEN)})
        answer = FileSet(files={"pkg/code.py": self.blobs.put(FIXED)})
        return Task(
            **{
                "name": name,
                "kind": TaskKind.MUTANT,
                "prompt": f"Mend {name}.",
                "image": "0" * 64,
                "layers": (),
                "workdir": WORKDIR,
                "visible_tests": ("tests/test_code.py::test_a", "tests/test_code.py::test_b"),
                "visible_killers": ("tests/test_code.py::test_a",),
                "test_command": ("python3", "-m", "pytest", "-q"),
                "editable": ("pkg/**/*.py", "pkg/*.py"),
                "source": self.blobs.put(canonical_bytes(before)),
                "grader": self.blobs.put(canonical_bytes(GRADER)),
                "oracle": self.blobs.put(canonical_bytes(answer)),
                "origin": TaskOrigin(
                    commit="commit:1", distribution="pkg", version_before="1", version_after="1", raw=(), licence="MIT"
                ),
                "limits": TaskLimits(memory_bytes=1 << 26),
                **fields,
            }
        )


GRADER = GraderSpec(
    name="double", version="1.0.0", image="0" * 64, layers=(), workdir=WORKDIR, editable=(), import_paths=("src", "."),
    hidden="2" * 64, probe="3" * 64, expected="4" * 64, tests=(), guess_bits=20,
    limits=GraderLimits(cpu_s=1, wall_s=4),
)  # fmt: skip


def unavailable(text: str = "out of something") -> UnavailableError:
    return UnavailableError(text)
