"""Mutant tasks: a labelled control, one small mistake in a function that the package's own tests reach."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ropewalk.interface.task import TaskKind, TaskOrigin
from ropewalk.reward.suite import SuitePlan
from ropewalk.tasks.assembly import Assembly, Problem
from ropewalk.tasks.bench import BASELINE_TIMEOUT_S, Bench, Tell, limit_s
from ropewalk.tasks.bodies import BodyKeys, parse, walk
from ropewalk.tasks.cases import make_cases
from ropewalk.tasks.killers import (
    SLOW_TEST_S,
    Pair,
    hanging_test,
    make_pair,
    name_of,
    passing,
    place_of,
    selection,
    start_s,
)  # fmt: skip
from ropewalk.tasks.operators import Edit, mutate, mutations
from ropewalk.tasks.records import MutantPlan, Reason, Rejection, SourceYield, TaskRecord
from ropewalk.tasks.split import SplitRefused, split_killers
from ropewalk.tasks.tree import NoTestsError, SourceTree
from ropewalk.tasks.worlds import reach_folders, source_files

SELECTED_MAX: Final = 60
"""Tests run against one mutant."""
_PER_FUNCTION_MAX: Final = 1
"""Tasks out of one function, so that a catalogue is not about a few."""


@dataclass(frozen=True)
class _Reached:
    """What the tests of a release reach."""

    seconds: dict[str, float]
    by_function: dict[str, tuple[str, ...]]
    start_s: float


class MutantBuilder:
    """Makes mutant tasks of one release."""

    def __init__(self, bench: Bench, assembly: Assembly, *, seed: int) -> None:
        self._bench = bench
        self._assembly = assembly
        self._seed = seed

    async def build(self, plan: MutantPlan, tree: SourceTree, count: int, tell: Tell) -> SourceYield:
        """At most `count` tasks; every other mutation that was tried is in the rejections.

        Raises:
            SandboxGoneError, UnavailableError: our side failed.
        """
        started_s = self._bench.clock.monotonic_s()
        tasks: list[TaskRecord] = []
        rejections: list[Rejection] = []
        tests = tried = 0
        try:
            pair = await make_pair(self._bench, tree, tree, modules=plan.modules)
            tell("baseline", f"{len(pair.modules)} test modules")
            reached = await self._reach(pair)
            tests = len(reached.seconds)
            bodies = BodyKeys({path: text for path, text in pair.tests.items() if path.endswith(".py")})
            used: dict[str, int] = {}
            for path, edit in self._candidates(pair, reached, bodies):
                function = f"{path}::{edit.function}"
                if len(tasks) >= count or tried >= plan.attempts_max:
                    break
                if used.get(function, 0) >= _PER_FUNCTION_MAX:
                    continue
                tried += 1
                outcome = await self._try(plan, pair, reached, bodies, path, edit)
                if isinstance(outcome, TaskRecord):
                    used[function] = used.get(function, 0) + 1
                    tasks.append(outcome)
                    tell("task", outcome.task.name)
                else:
                    rejections.append(outcome)
                    tell("rejected", f"{outcome.name}: {outcome.reason}")
        except NoTestsError as error:
            rejections.append(Rejection(name=plan.name, reason=Reason.NO_TESTS, detail=error.message))
        return SourceYield(
            name=plan.name, kind=TaskKind.MUTANT, distribution=plan.release.distribution, tests=tests, units=tried,
            tasks=tuple(tasks), rejections=tuple(rejections),
            seconds=round(self._bench.clock.monotonic_s() - started_s, 2),
        )  # fmt: skip

    async def _reach(self, pair: Pair) -> _Reached:
        plan = SuitePlan(files=pair.modules, timeout_s=BASELINE_TIMEOUT_S, reach=reach_folders(pair.after))
        record = await self._bench.baseline(pair.after, pair.source_after, pair.tests, plan)
        seconds: dict[str, float] = {}
        by_function: dict[str, list[str]] = {}
        for test in record.tests:
            if test.outcome != "passed" or test.seconds > SLOW_TEST_S:
                continue
            seconds[name_of(test)] = test.seconds
            for place in test.reached:
                by_function.setdefault(place_of(place), []).append(name_of(test))
        return _Reached(seconds, {name: tuple(tests) for name, tests in by_function.items()}, start_s(record))

    def _candidates(self, pair: Pair, reached: _Reached, bodies: BodyKeys) -> Iterator[tuple[str, Edit]]:
        """Mutations in random order, operators by turns, of functions that two bodies of tests reach."""
        by_operator: dict[str, list[tuple[str, Edit]]] = {}
        for path, source in sorted(pair.before.editable_files.items()):
            tree = parse(source)
            for name, node in walk(tree) if tree else ():
                tests = reached.by_function.get(f"{path}::{name}", ())
                if len({bodies.key(test) for test in tests}) < 2:
                    continue
                for edit in mutations(source, name, node):
                    by_operator.setdefault(edit.operator, []).append((path, edit))
        chance = random.Random(self._seed)
        queues = [by_operator[operator] for operator in sorted(by_operator)]
        for queue in queues:
            chance.shuffle(queue)
        chance.shuffle(queues)
        while queues:
            for queue in queues:
                yield queue.pop()
            queues = [queue for queue in queues if queue]

    async def _try(
        self, plan: MutantPlan, pair: Pair, reached: _Reached, bodies: BodyKeys, path: str, edit: Edit
    ) -> TaskRecord | Rejection:
        name = f"{edit.operator} in {edit.function}"
        title = f"{plan.release.distribution} {plan.release.version} {name}"
        before = dict(pair.before.editable_files)
        mutated = mutate(before[path], edit)
        if mutated is None:
            return Rejection(name=title, reason=Reason.SURVIVES, detail="the mutation means nothing")
        before[path] = mutated
        function = f"{path}::{edit.function}"
        selected = sorted(reached.by_function[function], key=lambda test: (reached.seconds[test], test))[:SELECTED_MAX]
        source = await self._bench.layer(source_files(pair.before, before))
        limit = limit_s(sum(reached.seconds[test] for test in selected) + reached.start_s)
        record = await self._bench.run(pair.before, source, pair.tests, selection(pair.modules, selected, limit))
        if hanging_test(record) is not None or not record.complete:
            return Rejection(name=title, reason=Reason.HANGS, detail=record.problem or str(record.termination))
        alive = passing(record)
        killers = tuple(test for test in selected if test not in alive)
        if not killers:
            return Rejection(name=title, reason=Reason.SURVIVES, detail=f"{len(selected)} tests pass")
        problem = self._problem(
            plan, pair, before, name, edit, killers, tuple(t for t in selected if t in alive), reached
        )
        keys = {killer: bodies.key(killer) for killer in killers}
        try:
            split = split_killers(killers, keys, may_judge=killers, seed=self._seed)
        except SplitRefused:
            made = await make_cases(
                self._bench,
                problem,
                source,
                pair.source_after,
                functions=(function, *self._near(reached, killers)),
                seed=self._seed,
            )
            if made is None:
                return Rejection(
                    name=title, reason=Reason.ONE_BODY, detail="one killing body, no case tells them apart"
                )
            return await self._assembly.admit(made)
        chosen = self._problem(plan, pair, before, name, edit, split.visible, problem.both, reached, split.held_out)
        return await self._assembly.admit(chosen)

    def _near(self, reached: _Reached, killers: tuple[str, ...]) -> tuple[str, ...]:
        """Other functions that the killers reach."""
        return tuple(name for name, tests in reached.by_function.items() if not set(killers).isdisjoint(tests))

    def _problem(
        self, plan: MutantPlan, pair: Pair, before: dict[str, bytes], name: str, edit: Edit, visible: tuple[str, ...],
        both: tuple[str, ...], reached: _Reached, held_out: tuple[str, ...] = (),
    ) -> Problem:  # fmt: skip
        release = plan.release
        origin = TaskOrigin(
            commit=release.commit, distribution=release.distribution, version_before=release.version,
            version_after=release.version, raw=(release.raw,), licence=release.licence, operator=edit.operator,
        )  # fmt: skip
        return Problem(
            kind=TaskKind.MUTANT, name=name, level="mutant", tree=pair.before, after_tree=pair.after, before=before,
            after=pair.before.editable_files, tests=pair.tests, visible_killers=visible, held_out=held_out,
            origin=origin, both=both, seconds=reached.seconds,
        )  # fmt: skip
