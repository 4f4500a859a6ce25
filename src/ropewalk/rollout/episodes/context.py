"""What policies hold: `AgentContext` (tools alone), `SearchContext` (forks), `TrustedContext` (the answer).

An AgentContext talks to its sandbox through a channel: it sends tool calls and gets results, and holds no object
that leads to the sandbox, to its snapshots or to a grader. `ropewalk.rollout.episodes.host` is at the other end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectSendStream

from ropewalk.core.records import Record
from ropewalk.interface.episode import Message, ToolCall, ToolResult
from ropewalk.interface.task import Task
from ropewalk.reward.ports import CommandResult
from ropewalk.rollout.episodes.tools import tool_definitions


class TaskView(Record):
    """A task as an agent may know it: no digests of answer or grader."""

    name: str
    prompt: str
    workdir: str
    visible_tests: tuple[str, ...]
    visible_killers: tuple[str, ...]
    test_command: tuple[str, ...]
    editable: tuple[str, ...]

    @classmethod
    def of(cls, task: Task) -> TaskView:
        """What may be known of `task`."""
        return cls(**{name: getattr(task, name) for name in cls.__struct_fields__})


class Action(Record):
    """One step's request, as it crosses the channel."""

    calls: tuple[ToolCall, ...]
    messages: tuple[Message, ...] = ()
    tokens: dict[str, int] = {}
    time_s: dict[str, float] = {}


class Answer:
    """Where the step's results arrive."""

    __slots__ = ("arrived", "results")

    def __init__(self) -> None:
        self.arrived = anyio.Event()
        self.results: tuple[ToolResult, ...] = ()


class AgentContext:
    """Tools, and what an agent is told. See the module's text for what it is not."""

    def __init__(
        self, task: TaskView, *, seed: int, steps_max: int, channel: MemoryObjectSendStream[tuple[Action, Answer]]
    ) -> None:
        self.task = task
        self.seed = seed
        self.tokens_unrecorded: dict[str, int] = {}
        """`prompt` and `completion` tokens that stand in no step: what is in here at the end counts as the episode's
        too, however it ends."""
        self._steps_left = steps_max
        self._channel = channel

    @property
    def steps_left(self) -> int:
        """How many more steps the episode allows."""
        return self._steps_left

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools' definitions, as chat completion endpoints take them."""
        return tool_definitions()

    async def act(
        self,
        calls: Sequence[ToolCall],
        *,
        messages: Sequence[Message] = (),
        tokens: Mapping[str, int] | None = None,
        time_s: Mapping[str, float] | None = None,
    ) -> tuple[ToolResult, ...]:
        """One step: runs the calls in order and records them with what led to them.

        Args:
            calls: May be empty (a turn in which a model only talks).
            messages: New in this step.
            tokens: `prompt`, `completion` that this step took.
            time_s: What the policy itself spent: `model`, `policy`.

        Returns:
            One result per call. With no steps left nothing runs, and each result says so.
        """
        if self._steps_left < 1:
            # A policy that goes on regardless must not keep its own time limit from firing.
            await anyio.lowlevel.checkpoint()
            return tuple(ToolResult(output="error: no steps left.", exit_code=2) for _ in calls)
        self._steps_left -= 1
        answer = Answer()
        action = Action(
            calls=tuple(calls), messages=tuple(messages), tokens=dict(tokens or {}), time_s=dict(time_s or {})
        )
        await self._channel.send((action, answer))
        await answer.arrived.wait()
        return answer.results

    async def shell(self, command: str, *, timeout_s: float | None = None) -> ToolResult:
        """One step with one shell call."""
        arguments: dict[str, Any] = {"command": command}
        if timeout_s is not None:
            arguments["timeout_s"] = timeout_s
        return (await self.act([ToolCall(name="shell", arguments=arguments)]))[0]

    async def read(self, path: str, *, start_line: int = 1, lines: int | None = None) -> ToolResult:
        """One step with one read call."""
        arguments: dict[str, Any] = {"path": path, "start_line": start_line}
        if lines is not None:
            arguments["lines"] = lines
        return (await self.act([ToolCall(name="read", arguments=arguments)]))[0]

    async def edit(self, path: str, old: str, new: str) -> ToolResult:
        """One step with one edit call."""
        return (await self.act([ToolCall(name="edit", arguments={"path": path, "old": old, "new": new})]))[0]


class SearchFork(Protocol):
    """A fork of the episode's state, for one experiment."""

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Files by path relative to the task's workdir, or absolute."""
        ...

    async def exec(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float
    ) -> CommandResult:
        """A command in the workdir."""
        ...


class SearchBench(Protocol):
    """What stands behind a SearchContext."""

    def fork(self) -> AbstractAsyncContextManager[SearchFork]: ...

    async def step(
        self, call: ToolCall, result: ToolResult, *, files: Mapping[str, bytes | None], time_s: Mapping[str, float]
    ) -> None: ...

    @property
    def forks_left(self) -> int: ...

    @property
    def steps_left(self) -> int: ...


class SearchContext:
    """For a program of ours that searches: forks of the episode's state, counted, and the task's sources."""

    def __init__(
        self,
        task: Task,
        *,
        seed: int,
        sources: Mapping[str, bytes],
        bench: SearchBench,
        position: int = 0,
        members: int = 1,
    ) -> None:
        self.task = task
        self.seed = seed
        self.position, self.members = position, members
        """Which episode of its group this is, from 0, and of how many."""
        self.random = random.Random(seed)
        self.sources = dict(sources)
        """Editable files before the episode, by path relative to the workdir."""
        self._bench = bench

    @property
    def forks_left(self) -> int:
        """How many more forks the budget allows."""
        return self._bench.forks_left

    @property
    def steps_left(self) -> int:
        """How many more steps the episode allows."""
        return self._bench.steps_left

    def fork(self) -> AbstractAsyncContextManager[SearchFork]:
        """A fork of the current state, which is what was kept so far; gone on exit.

        Raises:
            CallerError: the budget is used up.
        """
        return self._bench.fork()

    async def step(
        self,
        call: ToolCall,
        result: ToolResult,
        *,
        keep: Mapping[str, bytes | None] | None = None,
        time_s: Mapping[str, float] | None = None,
    ) -> None:
        """Records one step. `keep`: files that become part of the episode's state; None: deleted.

        Raises:
            CallerError: no steps left.
        """
        await self._bench.step(call, result, files=keep or {}, time_s=time_s or {})


class TrustedContext(SearchContext):
    """For `oracle`: also the answer."""

    def __init__(
        self,
        task: Task,
        *,
        seed: int,
        sources: Mapping[str, bytes],
        bench: SearchBench,
        answer: Mapping[str, bytes | None],
    ) -> None:
        super().__init__(task, seed=seed, sources=sources, bench=bench)
        self.answer = dict(answer)
        """The fixed files by path relative to the workdir; None: deleted."""
