"""The search itself: one candidate a step, each in a fork of what was kept so far."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

import anyio

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record
from ropewalk.interface.episode import ToolCall, ToolResult
from ropewalk.interface.task import Task
from ropewalk.rollout.episodes.context import SearchContext
from ropewalk.rollout.plan import SearchSettings
from ropewalk.rollout.policies.contract import ContextKind, PolicyEnd
from ropewalk.rollout.policies.search.candidates import Candidate, candidates, parses_differently
from ropewalk.rollout.policies.search.localise import Localisation, localise
from ropewalk.rollout.policies.search.visible_tests import PytestAnswer, TestRun, pytest_command, run_tests
from ropewalk.sandbox.contract import SandboxGoneError

TRACE_SLOWDOWN = 8.0
"""A traced run may take this many times as long as a plain one."""
CURIOSITY = 0.5
"""Scale of the noise on log scores, so that one seed tries them in another order than the next."""
CALL = "try_edit"
"""The name of a search's steps: an edit, tried in a fork, and kept if it is better."""


class Survey(Record):
    """What all episodes of a task share: where the mistake may be, and what could be done about it."""

    localisation: Localisation
    candidates: tuple[Candidate, ...]


class SearchPolicy:
    """See `ropewalk.rollout.policies.search`. Surveys are kept by task, nothing by episode."""

    context: ClassVar[ContextKind] = ContextKind.SEARCH

    def __init__(self, settings: SearchSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._surveys: dict[str, Survey] = {}
        self._locks: dict[str, anyio.Lock] = {}

    @property
    def name(self) -> str:
        return f"search(forks={self._settings.forks_max})"

    async def close(self) -> None:
        """Nothing to let go of."""

    async def run(self, context: SearchContext) -> PolicyEnd | None:
        """Searches until all visible tests pass, or steps, forks or ideas are used up."""
        task = context.task
        try:
            pytest_command(task)
        except CallerError as error:
            return PolicyEnd(termination=Termination.POLICY_STOP, detail=error.message)
        survey = await self._survey(context)
        if survey is None:
            return PolicyEnd(termination=Termination.POLICY_STOP, detail="the visible tests could not be traced")
        return await _Search(context, survey, self._clock).run()

    async def _survey(self, context: SearchContext) -> Survey | None:
        task = context.task
        async with self._locks.setdefault(task.id, anyio.Lock()):
            if task.id not in self._surveys:
                async with context.fork() as fork:
                    run = await run_tests(
                        fork,
                        task,
                        first=task.visible_killers,
                        rest=[test for test in task.visible_tests if test not in task.visible_killers],
                        trace=[path for path in context.sources if path.endswith(".py")],
                        timeout_s=task.limits.test_timeout_s * TRACE_SLOWDOWN,
                    )
                if run.answer is None:
                    return None
                self._surveys[task.id] = await anyio.to_thread.run_sync(
                    self._surveyed, task, run.answer, run.failing(task.visible_tests), context.sources
                )
            return self._surveys[task.id]

    def _surveyed(self, task: Task, answer: PytestAnswer, failing: set[str], sources: Mapping[str, bytes]) -> Survey:
        found = localise(task, answer, failing)
        return Survey(localisation=found, candidates=self._ideas(found, sources))

    def _ideas(self, found: Localisation, sources: Mapping[str, bytes]) -> tuple[Candidate, ...]:
        ideas = [
            candidate
            for path, lines in found.suspicion.items()
            if path in sources
            for candidate in candidates(path, sources[path], lines)
        ]
        ideas.sort(key=lambda idea: (-idea.score, idea.path, idea.start, idea.text))
        return tuple(ideas[: self._settings.candidates_max])


class _Search:
    """One episode's search."""

    def __init__(self, context: SearchContext, survey: Survey, clock: Clock) -> None:
        self._context = context
        self._found = survey.localisation
        self._clock = clock
        self._files = dict(context.sources)
        self._failing = set(survey.localisation.failing)
        self._ideas = self._order(survey.candidates)
        self._tried: set[tuple[str, int, int, str]] = set()

    async def run(self) -> PolicyEnd | None:
        context = self._context
        while self._failing:
            if context.steps_left < 1:
                return _stop("all steps are used up", truncated=True)
            if context.forks_left < 1:
                return _stop("the budget of forks is used up", truncated=True)
            idea = await anyio.to_thread.run_sync(self._next)
            if idea is None:
                return _stop("no candidate edit is left")
            await self._try(idea)
        return None

    # Both parse whole modules, a fifth of a second for a long one: not on the event loop, where others wait.

    def _next(self) -> Candidate | None:
        while self._ideas:
            idea = self._ideas.pop(0)
            key = (idea.path, idea.line, idea.end - idea.start, idea.text)
            if key not in self._tried and parses_differently(idea, self._files[idea.path]):
                self._tried.add(key)
                return idea
        return None

    async def _try(self, idea: Candidate) -> None:
        context, task = self._context, self._context.task
        edited = idea.apply(self._files[idea.path])
        others = [test for test in self._found.passing if test not in self._failing]
        started_s = self._clock.monotonic_s()
        try:
            async with context.fork() as fork:
                run = await run_tests(
                    fork,
                    task,
                    first=[test for test in task.visible_tests if test in self._failing],
                    rest=others,
                    failing_max=len(self._failing) - 1,
                    timeout_s=task.limits.test_timeout_s,
                    files={idea.path: edited},
                )
        except SandboxGoneError as error:
            if error.termination.ours:
                raise
            # The edit itself ended its fork (it ate all memory): a bad edit, no more.
            run = TestRun(answer=None, termination=error.termination, duration_s=0.0)
        sandbox_s = max(self._clock.monotonic_s() - started_s - run.duration_s, 0.0)
        still = run.failing(sorted(self._failing))
        better = len(still) < len(self._failing) and not run.failing(others)
        result = ToolResult(
            output=_describe(idea, run, sorted(self._failing), others, kept=better),
            exit_code=0 if better else 1,
            termination=run.termination,
        )
        await context.step(
            _call(idea, self._files[idea.path]),
            result,
            keep={idea.path: edited} if better else None,
            time_s={"tests": run.duration_s, "sandbox": sandbox_s},
        )
        if better:
            self._failing = still
            self._files[idea.path] = edited
            await anyio.to_thread.run_sync(self._renew, idea.path)

    def _renew(self, path: str) -> None:
        """Offsets in an edited file have moved: its candidates are made anew, on the lines as first traced."""
        fresh = candidates(path, self._files[path], self._found.suspicion[path])
        others = [idea for idea in self._ideas if idea.path != path]
        self._ideas = self._order([*others, *fresh])

    def _order(self, ideas: Sequence[Candidate]) -> list[Candidate]:
        context = self._context
        return dealt(ideas, context.random, position=context.position, members=context.members)


def dealt(ideas: Sequence[Candidate], chance: random.Random, *, position: int, members: int) -> list[Candidate]:
    """The order in which one member of a group tries them: first its share, as cards are dealt, then what is left.

    A group that has as many first steps as it has members tries that many edits, not the likeliest that many times.
    """
    ranked = sorted(ideas, key=lambda idea: (-idea.score, idea.path, idea.start, idea.text))
    others = [idea for number, idea in enumerate(ranked) if number % members != position % members]
    return shuffled(ranked[position % members :: members], chance) + shuffled(others, chance)


def shuffled(ideas: Sequence[Candidate], chance: random.Random) -> list[Candidate]:
    """Best first, with noise: near scores change places, far ones do not."""
    keyed = []
    for idea in ideas:
        gumbel = -math.log(-math.log(chance.uniform(1e-12, 1 - 1e-12)))
        keyed.append((math.log(idea.score) + CURIOSITY * gumbel, idea))
    keyed.sort(key=lambda pair: (-pair[0], pair[1].path, pair[1].start, pair[1].text))
    return [idea for _, idea in keyed]


def _call(idea: Candidate, source: bytes) -> ToolCall:
    old = source[idea.start : idea.end].decode(errors="replace")
    return ToolCall(
        name=CALL,
        arguments={
            "path": idea.path,
            "line": idea.line,
            "start": idea.start,
            "end": idea.end,
            "old": old,
            "new": idea.text,
            "operator": idea.operator,
        },
    )


def _describe(idea: Candidate, run: TestRun, failing: list[str], others: list[str], *, kept: bool) -> str:
    if run.answer is None:
        return f"{idea.operator} at {idea.path}:{idea.line}: the tests did not end ({run.termination}); dropped"
    passed = len(failing) - len(run.failing(failing))
    broken = [test for test in others if run.answer.outcomes.get(test) == "failed"]
    text = f"{idea.operator} at {idea.path}:{idea.line}: {passed} of {len(failing)} failing tests pass now"
    if broken:
        text += f", {broken[0]} fails"
    return f"{text}; {'kept' if kept else 'dropped'}"


def _stop(detail: str, *, truncated: bool = False) -> PolicyEnd:
    return PolicyEnd(termination=Termination.POLICY_STOP, truncated=truncated, detail=detail)
