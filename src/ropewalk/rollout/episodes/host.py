"""The trusted end of an episode: holds its sandbox, runs what the policy asks for, and writes down every step."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from ropewalk.core import limits
from ropewalk.core.clock import Clock
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.interface.episode import Message, Step, ToolCall, ToolResult
from ropewalk.interface.task import Task
from ropewalk.reward.bundle import shown
from ropewalk.reward.ports import CommandResult
from ropewalk.rollout.episodes import tools
from ropewalk.rollout.episodes.changes import FileWatch
from ropewalk.rollout.episodes.clean import clean_call, clean_message, clean_result, storable
from ropewalk.rollout.episodes.context import Action, Answer, SearchFork
from ropewalk.rollout.metering import add_usage
from ropewalk.rollout.ports import EpisodeSandbox, EpisodeSandboxes, memory_of
from ropewalk.sandbox.contract import SandboxGoneError

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 20.0
RECORD_BYTES_MAX = limits.JSON_BYTES_MAX // 2
"""Of an episode's steps as JSON. A record larger than `JSON_BYTES_MAX` could be written and never be read."""
OMITTED = "[omitted: the episode's record is full]"
_NOTHING: Mapping[str, int] = MappingProxyType({})


class EpisodeHost:
    """One attempt of one episode. See the module's text."""

    def __init__(
        self,
        task: Task,
        sandbox: EpisodeSandbox,
        watch: FileWatch,
        *,
        clock: Clock,
        steps_max: int,
        keep: Callable[[EpisodeSandbox, str], Awaitable[str]] | None,
        on_step: Callable[[Step], None],
    ) -> None:
        """`keep` saves the state after a step that may have changed it, and returns the snapshot's id."""
        self.task = task
        self.sandbox = sandbox
        self.steps: list[Step] = []
        self._watch = watch
        self._clock = clock
        self._steps_max = steps_max
        self._keep = keep
        self._on_step = on_step
        self._recorded_bytes = 0

    @property
    def steps_left(self) -> int:
        return self._steps_max - len(self.steps)

    async def serve(self, channel: MemoryObjectReceiveStream[tuple[Action, Answer]]) -> None:
        """Answers an agent's actions until its end of the channel is closed.

        Raises:
            SandboxGoneError: the sandbox died.
        """
        async for action, answer in channel:
            answer.results = await self.act(action)
            answer.arrived.set()

    async def act(self, action: Action) -> tuple[ToolResult, ...]:
        """Runs and records one agent's step; nothing where no steps are left."""
        if self.steps_left < 1:
            return tuple(ToolResult(output="error: no steps left.", exit_code=2) for _ in action.calls)
        started_s = self._clock.monotonic_s()
        results = []
        calls = tuple(clean_call(call) for call in action.calls)
        for call in calls:
            result = await tools.perform(
                call,
                self.sandbox,
                workdir=self.task.workdir,
                timeout_s_max=min(limits.TOOL_SHELL_TIMEOUT_S_MAX, self.task.limits.episode_timeout_s),
            )
            _check_machine(result.termination, call.name)
            results.append(clean_result(result))
        touched = any(call.name != "read" for call in calls)
        changes = await self._watch.look(self.sandbox) if touched else {}
        time_s = {**action.time_s, "sandbox": self._clock.monotonic_s() - started_s}
        await self._record(
            calls, results, changes, time_s=time_s, tokens=action.tokens, touched=touched,
            messages=tuple(clean_message(message) for message in action.messages),
        )  # fmt: skip
        return tuple(results)

    async def keep(
        self, call: ToolCall, result: ToolResult, files: Mapping[str, bytes | None], time_s: Mapping[str, float]
    ) -> bool:
        """Records a search's step; `files` are written into the sandbox first. Returns whether it changed any.

        Raises:
            CallerError: no steps left.
        """
        if self.steps_left < 1:
            raise CallerError("The episode has no steps left.", next_step="look at steps_left before a step.")
        started_s = self._clock.monotonic_s()
        for path, data in files.items():
            if data is None:
                await self.sandbox.remove(posixpath.join(self.task.workdir, path))
        written = {posixpath.join(self.task.workdir, path): data for path, data in files.items() if data is not None}
        if written:
            await self.sandbox.write_many(written)
        changes = await self._watch.put(files)
        spent = self._clock.monotonic_s() - started_s
        time_s = {**time_s, "sandbox": time_s.get("sandbox", 0.0) + spent}
        await self._record((clean_call(call),), [clean_result(result)], changes, time_s=time_s, touched=bool(changes))
        return bool(changes)

    async def _record(
        self,
        calls: tuple[ToolCall, ...],
        results: Sequence[ToolResult],
        changes: dict[str, str],
        *,
        time_s: dict[str, float],
        touched: bool,
        messages: tuple[Message, ...] = (),
        tokens: Mapping[str, int] = _NOTHING,
    ) -> None:
        index = len(self.steps) + 1
        snapshot = None
        if self._keep and touched:
            snapshot = await self._saved(self._keep, f"step {index}")
        made = Step(
            index=index,
            messages=messages,
            calls=calls,
            results=tuple(results),
            files_changed=changes,
            snapshot=snapshot,
            duration_s=sum(time_s.values()),
            time_s=time_s,
            tokens=dict(tokens),
        )
        step = self._within_bounds(storable(made))
        self.steps.append(step)
        self._on_step(step)

    def _within_bounds(self, step: Step) -> Step:
        """The step, without its words where the episode's record would grow larger than a record may be."""
        size = len(msgspec.json.encode(step))
        if self._recorded_bytes + size > RECORD_BYTES_MAX:
            step = msgspec.structs.replace(
                step,
                messages=(),
                calls=tuple(ToolCall(name=call.name[:100], arguments={}, id=call.id[:100]) for call in step.calls[:20]),
                results=tuple(ToolResult(output=OMITTED, exit_code=each.exit_code) for each in step.results[:20]),
                files_changed=dict(list(step.files_changed.items())[:20]),
            )
            size = len(msgspec.json.encode(step))
            if self._recorded_bytes + size > RECORD_BYTES_MAX + limits.MIB:
                self._steps_max = len(self.steps)  # not even the bare steps fit: it is over
        self._recorded_bytes += size
        return step

    async def _saved(self, keep: Callable[[EpisodeSandbox, str], Awaitable[str]], label: str) -> str | None:
        """The state's snapshot; None where it cannot be saved. Candidates make such states (folders nested too deep,
        files larger than the disk), and a convenience of ours may not end their episode unscored."""
        try:
            return await keep(self.sandbox, label)
        except SandboxGoneError:
            raise
        except (CallerError, UnavailableError) as error:
            log.warning("the state of %s after %s is not kept: %s", self.sandbox.id, label, shown(error.message))
            return None


class _SearchFork:
    """See `ropewalk.rollout.episodes.context.SearchFork`."""

    def __init__(self, sandbox: EpisodeSandbox, workdir: str) -> None:
        self._sandbox = sandbox
        self._workdir = workdir

    async def write(self, files: Mapping[str, bytes]) -> None:
        await self._sandbox.write_many({posixpath.join(self._workdir, path): data for path, data in files.items()})

    async def exec(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float
    ) -> CommandResult:
        result = await self._sandbox.exec(command, cwd=self._workdir, env=env, timeout_s=timeout_s)
        _check_machine(result.termination, command[0])
        return result


class ForkBench:
    """Forks of an episode's state for a search: counted, and gone on exit whatever happens."""

    def __init__(
        self,
        host: EpisodeHost,
        sandboxes: EpisodeSandboxes,
        *,
        snapshot: str,
        save: Callable[[EpisodeSandbox, str], Awaitable[str]],
        forks_max: int,
    ) -> None:
        """`snapshot`: the state that the episode began with. `save` saves a later one and returns its id."""
        self.usage: dict[str, float] = {"forks": 0.0}
        self._host = host
        self._sandboxes = sandboxes
        self._snapshot = snapshot
        self._save = save
        self._stale = False
        self._forks_max = forks_max

    @property
    def forks_left(self) -> int:
        return self._forks_max - int(self.usage["forks"])

    @property
    def steps_left(self) -> int:
        return self._host.steps_left

    async def step(
        self, call: ToolCall, result: ToolResult, *, files: Mapping[str, bytes | None], time_s: Mapping[str, float]
    ) -> None:
        if await self._host.keep(call, result, files, time_s):
            self._stale = True

    @asynccontextmanager
    async def fork(self) -> AsyncIterator[SearchFork]:
        if self.forks_left < 1:
            raise CallerError(
                f"The budget of {self._forks_max} forks is used up.",
                next_step="look at forks_left, or raise forks_max.",
            )
        if self._stale:
            self._snapshot = await self._save(self._host.sandbox, "kept edits")
            self._stale = False
        self.usage["forks"] += 1
        sandbox = await forked(self._sandboxes, self._snapshot)
        try:
            yield _SearchFork(sandbox, self._host.task.workdir)
            add_usage(self.usage, memory_of(await sandbox.stats()))
        finally:
            await close(sandbox)


class SnapshotLostError(UnavailableError):
    """The state that an episode or its search needs is gone: somebody removed it."""


async def forked(sandboxes: EpisodeSandboxes, snapshot: str) -> EpisodeSandbox:
    """A fork, or an error that says whose doing it is that there is none: never the policy's, which may be asking.

    Raises:
        SnapshotLostError: the snapshot is gone.
        UnavailableError: the machine has no room for it.
        IntegrityError: stored bytes are damaged.
    """
    try:
        return await sandboxes.fork(snapshot)
    except CallerError as error:
        raise SnapshotLostError(error.message, next_step=error.next_step) from error
    except OSError as error:
        raise UnavailableError(f"{snapshot} cannot be forked: {error.strerror or error}.") from error


def _check_machine(termination: Termination, command: str) -> None:
    """Raises:
    SandboxGoneError: the machine, not the policy, ended a command. What follows would be no fair episode.
    """
    if termination.ours:
        raise SandboxGoneError(f"This machine ended a command ({shown(command)[:100]}): {termination}.")


async def close(sandbox: EpisodeSandbox) -> None:
    """Ends a sandbox, also while cancelled; never waits longer than CLOSE_TIMEOUT_S."""
    with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
        await sandbox.close()
