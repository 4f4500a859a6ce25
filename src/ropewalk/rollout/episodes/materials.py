"""What rollouts read of a task: its files before the fix, and for trusted parts its answer. Read once per task."""

from __future__ import annotations

import posixpath
from contextlib import suppress

import anyio.to_thread

from ropewalk.interface.task import FileSet, Task
from ropewalk.reward.spec import GraderSpec
from ropewalk.rollout.episodes.changes import read_files
from ropewalk.rollout.episodes.host import close
from ropewalk.rollout.episodes.shelf import Shelf
from ropewalk.rollout.ports import EpisodeSandbox, RunWorld
from ropewalk.sandbox.contract import SandboxSpec, SnapshotRecord
from ropewalk.sandbox.files import FileError
from ropewalk.store.records import read_record
from ropewalk.tasks.worlds import TEST_ENV

PREPARE_TIMEOUT_S = 120.0
_WARMING = {"PYTHONDONTWRITEBYTECODE": ""}
"""What is compiled here need not be compiled in every fork."""
COLLECTED_TESTS = "/var/tmp/visible-tests.txt"
"""Where a ready sandbox keeps the list of its visible tests."""


class Materials:
    """A task's files, cached."""

    def __init__(self, world: RunWorld) -> None:
        self._world = world
        self._digests: dict[str, dict[str, str]] = {}
        self._sources: dict[str, dict[str, bytes]] = {}

    async def digests(self, task: Task) -> dict[str, str]:
        """Digests of the editable files before the episode, by path relative to the workdir."""
        if task.source not in self._digests:
            file_set = await anyio.to_thread.run_sync(read_record, self._world.blobs, task.source, FileSet)
            self._digests[task.source] = file_set.files
        return self._digests[task.source]

    async def sources(self, task: Task) -> dict[str, bytes]:
        """Their contents."""
        if task.source not in self._sources:
            files = await self.digests(task)
            self._sources[task.source] = await anyio.to_thread.run_sync(read_files, self._world.blobs, files)
        return self._sources[task.source]

    async def answer(self, task: Task) -> dict[str, bytes | None]:
        """The fixed files; None: deleted. For trusted parts alone."""
        file_set = await anyio.to_thread.run_sync(read_record, self._world.blobs, task.oracle, FileSet)
        files = await anyio.to_thread.run_sync(read_files, self._world.blobs, file_set.files)
        return {**files, **dict.fromkeys(file_set.deleted)}


async def make_ready(world: RunWorld, task: Task, shelf: Shelf, owner: str) -> SnapshotRecord:
    """A sandbox with the task's source, warmed (bytecode, collected tests on disk), and saved for `owner`.

    Code of the task runs here; what it does (fail, hang) is its own affair and no obstacle.

    Raises:
        CallerError: the task cannot be asked for its tests, or leaves a state that cannot be saved.
        IntegrityError: its grader's specification is not there, or not what it was.
        SandboxGoneError, UnavailableError: our side failed. Nothing is left behind in either case.
    """
    spec = SandboxSpec(
        tenant=world.tenant,
        image=task.image,
        layers=task.layers,
        data_class=task.data_class,
        workdir=task.workdir,
        env={**TEST_ENV, **await _imports(world, task)},
        memory_bytes=task.limits.memory_bytes,
        labels={"task": task.id},
    )
    sandbox = await world.sandboxes.create(spec)
    try:
        await _warm(sandbox, task)
        return (await shelf.take(sandbox, owner, f"ready {task.id}")).record
    finally:
        await close(sandbox)


async def _imports(world: RunWorld, task: Task) -> dict[str, str]:
    """What makes the package importable whatever runs and wherever, and its version known, as if it were installed."""
    grader = await anyio.to_thread.run_sync(read_record, world.blobs, task.grader, GraderSpec)
    return {"PYTHONPATH": ":".join(posixpath.normpath(f"{task.workdir}/{path}") for path in grader.import_paths)}


async def _warm(sandbox: EpisodeSandbox, task: Task) -> None:
    python = task.test_command[0] if task.test_command else "python3"
    timeout_s = max(task.limits.test_timeout_s, PREPARE_TIMEOUT_S)
    await sandbox.exec([python, "-m", "compileall", "-q", task.workdir], cwd=task.workdir, timeout_s=timeout_s)
    if task.test_command:
        command = [*task.test_command, "--collect-only", "-q", *task.visible_tests]
        collected = await sandbox.exec(command, cwd=task.workdir, env=_WARMING, timeout_s=timeout_s)
        folder = posixpath.dirname(COLLECTED_TESTS)
        await sandbox.exec(["mkdir", "-p", folder], timeout_s=timeout_s)
        with suppress(FileError):  # the task's code put something else there
            await sandbox.write_many({COLLECTED_TESTS: collected.stdout.encode()})
