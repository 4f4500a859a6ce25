"""An episode after the fact: what changed, the sandbox as it was at a step, and the same calls once more."""

from __future__ import annotations

import difflib
import fcntl
import posixpath
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import anyio

from ropewalk.app.comparison import output_diff, same_output
from ropewalk.app.custody import Custody
from ropewalk.app.records import episode_of, task_of
from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.ids import new_id
from ropewalk.core.records import Record, digest_bytes
from ropewalk.interface.episode import EpisodeRecord, Step, ToolResult
from ropewalk.interface.task import FileSet, Task
from ropewalk.reward.verdict import Reward, Verdict
from ropewalk.rollout.episodes import tools
from ropewalk.rollout.episodes.materials import make_ready
from ropewalk.rollout.episodes.shelf import Shelf
from ropewalk.rollout.loaded import signed_reward
from ropewalk.rollout.policies.search.policy import CALL as TRY_EDIT
from ropewalk.rollout.ports import RunWorld
from ropewalk.sandbox.sandbox import Sandbox
from ropewalk.sandbox.sandboxes import Sandboxes
from ropewalk.store.records import read_record

TOOLS: Final = frozenset({"shell", "read", "edit"})
"""Calls that run in the sandbox; others (`answer`, a search's edits) are recorded by the files they left."""

_KIND: Final = "attach"
_LEASE: Final = ".lease"


class StepAgain(Record):
    """One step, played a second time."""

    index: int
    same: bool
    """Whether every output and every changed file is what was recorded; times taken and addresses do not count."""
    differences: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """Where an output is another: recorded and now, as a unified diff."""


class EpisodeOutcome(Record):
    """What an episode was paid and why, for the operator: counts of held-out tests, never their names."""

    state: str
    """As in the journal; only `sealed` has a signed reward."""
    reward: Reward | None
    detail: str = ""
    """The verdict's words."""
    held_out: int = 0
    """Held-out tests whose outcome the verdict knows."""
    held_out_failed: int = 0


def outcome_of(custody: Custody, episode: str) -> EpisodeOutcome:
    """What came of an episode, as far as it is.

    Raises:
        CallerError: no such episode.
        IntegrityError: its reward is not what was signed.
    """
    row = custody.journal.episode(episode)
    verdict = read_record(custody.blobs, row.verdict, Verdict) if row.verdict else None
    outcomes = verdict.outcomes if verdict else {}
    signed = (each for each in custody.signed.of_run(row.run) if each.subjects[0].sha256 == row.reward)
    statement = next(signed, None)
    return EpisodeOutcome(
        state=row.state,
        reward=signed_reward(row, statement) if statement else None,
        detail=verdict.detail if verdict else "",
        held_out=len(outcomes),
        held_out_failed=sum(not passed for passed in outcomes.values()),
    )


def load_episode(custody: Custody, episode: str) -> tuple[EpisodeRecord, Task]:
    """An episode that was played, and its task.

    Raises:
        CallerError: no such episode, or it was not played yet.
    """
    row = custody.journal.episode(episode)
    record = episode_of(custody.blobs, row)
    if record is None:
        raise CallerError(f"{episode} was not played yet.", next_step=f"ropewalk run --resume {row.run}")
    return record, task_of(custody.journal, custody.blobs, row.run, row.task)


def check_step(record: EpisodeRecord, step: int | None) -> int:
    """The step's index; without one the last, 0 for the beginning.

    Raises:
        CallerError: the episode has no such step.
    """
    last = len(record.steps)
    chosen = last if step is None else step
    if not 0 <= chosen <= last:
        raise CallerError(f"{record.id} has {last} steps.", next_step=f"give --step 0 to {last}.")
    return chosen


def files_after(record: EpisodeRecord, step: int) -> dict[str, str]:
    """Path relative to the workdir → digest of all declared files changed until then; '' where deleted."""
    changed: dict[str, str] = {}
    for each in record.steps[:step]:
        changed |= each.files_changed
    return changed


def diff_lines(custody: Custody, record: EpisodeRecord, task: Task, step: int) -> list[str]:
    """What the episode changed until a step, as a unified diff."""
    before = read_record(custody.blobs, task.source, FileSet).files
    lines: list[str] = []
    for path, digest in sorted(files_after(record, step).items()):
        old = _text(custody, before.get(path, ""))
        new = _text(custody, digest)
        lines += difflib.unified_diff(
            old.splitlines(),
            new.splitlines(),
            f"a/{path}" if path in before else "/dev/null",
            f"b/{path}" if digest else "/dev/null",
            lineterm="",
        )
    return lines


def dropped_edit(record: EpisodeRecord, step: int) -> bool:
    """Whether a step is one of a search that came to nothing: an edit, tried in a fork and dropped with it."""
    if not step:
        return False
    taken = record.steps[step - 1]
    return bool(taken.calls) and all(call.name == TRY_EDIT for call in taken.calls) and not taken.files_changed


@asynccontextmanager
async def state_at(
    world: RunWorld, sandboxes: Sandboxes, custody: Custody, record: EpisodeRecord, task: Task, *, step: int
) -> AsyncIterator[tuple[Sandbox, str]]:
    """A fresh sandbox in the state after a step, and one line on how that state was got. It ends with the block.

    The kept snapshot of that step where there is one; else the task's ready state with the recorded files written in.
    A dropped edit left the state that was there before it.
    """
    shelf = Shelf(sandboxes, custody.journal)
    while dropped_edit(record, step):
        step -= 1
    snapshot = record.steps[step - 1].snapshot if step else record.snapshot
    if snapshot and shelf.exists(snapshot):
        async with await sandboxes.fork(snapshot) as sandbox:
            yield sandbox, f"the very state, from {snapshot}"
        return
    with _lease(custody) as owner:
        try:
            kept = shelf.exists(record.snapshot)
            ready = record.snapshot if kept else (await make_ready(world, task, shelf, owner)).id
            async with await sandboxes.fork(ready) as sandbox:
                await _write(sandbox, custody, task, files_after(record, step))
                yield sandbox, "rebuilt from the task and the recorded files; what else the episode left is not there"
        finally:
            with anyio.CancelScope(shield=True):
                await shelf.release(owner)


async def release_forgotten(sandboxes: Sandboxes, custody: Custody) -> None:
    """Lets go of states that `state_at` held in processes that were killed."""
    for lease in custody.layout.runs.glob(f"{_KIND}-*{_LEASE}"):
        with suppress(FileNotFoundError), lease.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            with anyio.CancelScope(shield=True):
                await Shelf(sandboxes, custody.journal).release(lease.name.removesuffix(_LEASE).replace("-", ":", 1))
            lease.unlink(missing_ok=True)


@contextmanager
def _lease(custody: Custody) -> Iterator[str]:
    """An owner of snapshots that is known to be gone once this process is: its lock goes then."""
    owner = new_id(_KIND)
    folder = custody.layout.runs
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lease = folder / f"{owner.replace(':', '-')}{_LEASE}"
    fresh = lease.with_name(f".{lease.name}")
    with fresh.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fresh.rename(lease)  # only now, that it is held, others see it
        try:
            yield owner
        finally:
            lease.unlink(missing_ok=True)


async def play_again(
    sandbox: Sandbox, custody: Custody, record: EpisodeRecord, task: Task, tell: Callable[[Step, StepAgain], None]
) -> bool:
    """Repeats every recorded call in a sandbox that is in the episode's first state.

    Returns:
        Whether everything came out the same.
    """
    all_same = True
    for step in record.steps:
        differences: list[str] = []
        outputs: list[str] = []
        if all(call.name in TOOLS for call in step.calls):
            for call, recorded in zip(step.calls, step.results, strict=False):
                result = await tools.perform(
                    call, sandbox, workdir=task.workdir, timeout_s_max=task.limits.episode_timeout_s
                )
                differences += _compare(call.name, recorded, result)
                if not same_output(recorded.output, result.output):
                    outputs += output_diff(recorded.output, result.output)
        else:
            await _write(sandbox, custody, task, step.files_changed)
        differences += await _compare_files(sandbox, task, step)
        again = StepAgain(
            index=step.index, same=not differences, differences=tuple(differences), outputs=tuple(outputs)
        )
        all_same = all_same and again.same
        tell(step, again)
    return all_same


async def _write(sandbox: Sandbox, custody: Custody, task: Task, files: dict[str, str]) -> None:
    written = {
        posixpath.join(task.workdir, path): custody.blobs.get(digest, bytes_max=limits.FILE_BYTES_MAX)
        for path, digest in files.items()
        if digest
    }
    for path, digest in files.items():
        inside = posixpath.join(task.workdir, path)
        if not digest and await sandbox.exists(inside):
            await sandbox.remove(inside)
    if written:
        await sandbox.write_many(written)


def _compare(name: str, recorded: ToolResult, result: ToolResult) -> list[str]:
    found = []
    if recorded.exit_code != result.exit_code:
        found.append(f"{name}: exit code {result.exit_code}, recorded {recorded.exit_code}")
    if not same_output(recorded.output, result.output):
        found.append(f"{name}: another output")
    return found


async def _compare_files(sandbox: Sandbox, task: Task, step: Step) -> list[str]:
    found = []
    for path, digest in step.files_changed.items():
        inside = posixpath.join(task.workdir, path)
        now = digest_bytes(await sandbox.read(inside)) if await sandbox.exists(inside) else ""
        if now != digest:
            found.append(f"{path}: another content")
    return found


def _text(custody: Custody, digest: str) -> str:
    return custody.blobs.get(digest, bytes_max=limits.FILE_BYTES_MAX).decode(errors="replace") if digest else ""
