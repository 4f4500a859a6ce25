"""Mutant tasks: a labelled control, one small mistake in a function that the package's own tests reach."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from ropewalk.interface.task import TaskKind, TaskOrigin
from ropewalk.reward.suite import SuitePlan
from ropewalk.tasks.assembly import Assembly, Problem
from ropewalk.tasks.baselines import left_out, nothing_passes, release
from ropewalk.tasks.bench import BASELINE_TIMEOUT_S, Bench, Tell, limit_s, settled_s
from ropewalk.tasks.bodies import BodyKeys, parse, walk
from ropewalk.tasks.cases import make_cases
from ropewalk.tasks.journal import Attempts
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
from ropewalk.tasks.quota import MutantPlaces
from ropewalk.tasks.records import MutantPlan, Reason, Rejection, SourceYield, TaskRecord
from ropewalk.tasks.split import SplitRefused, split_killers
from ropewalk.tasks.tree import NoTestsError, SourceTree
from ropewalk.tasks.worlds import reach_folders, source_files

SELECTED_MAX: Final = 60
"""Tests run against one mutant."""
_PER_FUNCTION_MAX: Final = 1
"""Tasks out of one function, so that a catalogue is not about a few."""


@dataclass(frozen=True)
class _Work:
    """What is known of a release while it is mutated.

    Attributes:
        seconds: test → its time.
        by_function: `path::dotted name` → tests that reach it.
        start_s: what a run takes besides its tests.
        refused: why none of its tests can be used; empty where some can.
        left_out: its tests that fail on it, in sentences.
    """

    plan: MutantPlan
    pair: Pair
    bodies: BodyKeys
    seconds: dict[str, float]
    by_function: dict[str, tuple[str, ...]]
    start_s: float
    refused: str
    left_out: tuple[str, ...]


class MutantBuilder:
    """Makes mutant tasks of one release."""

    def __init__(self, bench: Bench, assembly: Assembly, *, seed: int) -> None:
        self._bench = bench
        self._assembly = assembly
        self._seed = seed

    async def build(
        self,
        plan: MutantPlan,
        tree: SourceTree,
        tell: Tell,
        places: MutantPlaces,
        *,
        attempts: Attempts | None = None,
    ) -> SourceYield:
        """At most `plan.count` tasks; every other mutation that was tried is in the rejections.

        Args:
            plan: the release.
            tree: its tree.
            tell: is told of progress.
            places: for its tasks.
            attempts: what came of mutations in an earlier, interrupted build; takes what comes of others.

        Raises:
            SandboxGoneError, UnavailableError: our side failed.
        """
        started_s = self._bench.clock.monotonic_s()
        tasks: list[TaskRecord] = []
        rejections: list[Rejection] = []
        tests = tried = 0
        lacking: tuple[str, ...] = ()
        try:
            data_class = plan.release.data_class
            pair = await make_pair(self._bench, tree, tree, data_class=data_class, modules=plan.modules)
            tell("baseline", f"{len(pair.modules)} test modules")
            work = await self._look(plan, pair)
            tests = len(work.seconds)
            if not work.refused:
                lacking = work.left_out
            else:
                rejections.append(Rejection(name=plan.name, reason=Reason.BASELINE_FAILS, detail=work.refused))
            used: dict[str, int] = {}
            candidates = list(self._candidates(work))
            for path, edit in candidates:
                function = f"{path}::{edit.function}"
                if len(tasks) >= plan.count or tried >= plan.attempts_max:
                    break
                if used.get(function, 0) >= _PER_FUNCTION_MAX:
                    continue
                if not await places.take():
                    break
                tried += 1
                outcome = None
                try:
                    outcome = await self._try_once(work, path, edit, attempts)
                finally:
                    places.settle(admitted=isinstance(outcome, TaskRecord))
                if isinstance(outcome, TaskRecord):
                    used[function] = used.get(function, 0) + 1
                    tasks.append(outcome)
                    tell("task", outcome.task.name)
                else:
                    rejections.append(outcome)
                    tell("rejected", f"{outcome.name}: {outcome.reason}")
            if not candidates and not work.refused:
                detail = f"{release(tree)}: no function is reached by two tests of different bodies"
                rejections.append(Rejection(name=plan.name, reason=Reason.ONE_BODY, detail=detail))
        except NoTestsError as error:
            rejections.append(Rejection(name=plan.name, reason=Reason.NO_TESTS, detail=error.message))
        return SourceYield(
            name=plan.name, kind=plan.kind, distribution=plan.distribution, tests=tests, units=tried,
            tasks=tuple(tasks), rejections=tuple(rejections), left_out=lacking,
            seconds=round(self._bench.clock.monotonic_s() - started_s, 2),
        )  # fmt: skip

    async def _look(self, plan: MutantPlan, pair: Pair) -> _Work:
        suite = SuitePlan(files=pair.modules, timeout_s=BASELINE_TIMEOUT_S, reach=reach_folders(pair.after))
        record = await self._bench.baseline(
            pair.after, pair.source_after, pair.tests, suite, data_class=pair.data_class
        )  # fmt: skip
        seconds: dict[str, float] = {}
        by_function: dict[str, list[str]] = {}
        for test in record.tests:
            if test.outcome != "passed" or test.seconds > SLOW_TEST_S:
                continue
            seconds[name_of(test)] = test.seconds
            for place in test.reached:
                by_function.setdefault(place_of(place), []).append(name_of(test))
        return _Work(
            plan=plan, pair=pair, seconds=seconds, start_s=start_s(record),
            refused=nothing_passes(pair.after, pair.modules, record),
            left_out=left_out(pair.after, pair.modules, record),
            bodies=BodyKeys({path: text for path, text in pair.tests.items() if path.endswith(".py")}),
            by_function={name: tuple(tests) for name, tests in by_function.items()},
        )  # fmt: skip

    def _candidates(self, work: _Work) -> Iterator[tuple[str, Edit]]:
        """Mutations in random order, operators by turns, of functions that two bodies of tests reach."""
        by_operator: dict[str, list[tuple[str, Edit]]] = {}
        for path, source in sorted(work.pair.before.editable_files.items()):
            tree = parse(source)
            for name, node in walk(tree) if tree else ():
                tests = work.by_function.get(f"{path}::{name}", ())
                if len({work.bodies.key(test) for test in tests}) < 2:
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

    async def _try_once(self, work: _Work, path: str, edit: Edit, attempts: Attempts | None) -> TaskRecord | Rejection:
        """One mutation, unless an interrupted build tried it already."""
        tried = (path, edit.function, edit.operator, f"{edit.start}-{edit.end}", edit.text)
        make = partial(self._try, work, path, edit)
        return await (attempts.once(make, *tried) if attempts else make())

    async def _try(self, work: _Work, path: str, edit: Edit) -> TaskRecord | Rejection:
        """One mutation: run the tests that reach it, and make a task of what they show."""
        release = work.plan.release
        title = f"{release.distribution} {release.version} {_title(edit)}"
        before = dict(work.pair.before.editable_files)
        mutated = mutate(before[path], edit)
        if mutated is None:
            return Rejection(name=title, reason=Reason.SURVIVES, detail="the mutation means nothing")
        before[path] = mutated
        function = f"{path}::{edit.function}"
        selected = sorted(work.by_function[function], key=lambda test: (settled_s(work.seconds[test]), test))[
            :SELECTED_MAX
        ]
        source = await self._bench.layer(source_files(work.pair.before, before))
        limit = limit_s(sum(work.seconds[test] for test in selected) + work.start_s)
        suite = selection(work.pair.modules, selected, limit)
        record = await self._bench.run(
            work.pair.before, source, work.pair.tests, suite, data_class=work.pair.data_class
        )  # fmt: skip
        if hanging_test(record) is not None or not record.complete:
            return Rejection(name=title, reason=Reason.HANGS, detail=record.problem or str(record.termination))
        alive = passing(record)
        killers = tuple(test for test in selected if test not in alive)
        both = tuple(test for test in selected if test in alive)
        if not killers:
            return Rejection(name=title, reason=Reason.SURVIVES, detail=f"{len(selected)} tests pass")
        keys = {killer: work.bodies.key(killer) for killer in killers}
        refused = Rejection(name=title, reason=Reason.ONE_BODY, detail="one killing body, no case tells them apart")
        near = (name for name, tests in work.by_function.items() if not set(killers).isdisjoint(tests))
        functions = (function, *near)
        try:
            split = split_killers(killers, keys, may_judge=killers, seed=self._seed)
        except SplitRefused:
            pass
        else:
            problem = _problem(work, before, edit, visible=split.visible, both=both, held_out=split.held_out)
            made = await self._cases(work, problem, source, functions)
            outcome = await self._assembly.admit(made or problem)
            if isinstance(outcome, TaskRecord) or outcome.reason not in (Reason.NOT_GRADABLE, Reason.LOW_ENTROPY):
                return outcome
            refused = outcome
        made = await self._cases(work, _problem(work, before, edit, visible=killers, both=both), source, functions)
        return refused if made is None else await self._assembly.admit(made)

    async def _cases(self, work: _Work, problem: Problem, source: str, functions: tuple[str, ...]) -> Problem | None:
        return await make_cases(
            self._bench, problem, source, work.pair.source_after, functions=functions, seed=self._seed
        )


def _title(edit: Edit) -> str:
    return f"{edit.operator} in {edit.function}"


def _problem(
    work: _Work, before: dict[str, bytes], edit: Edit, *, visible: tuple[str, ...], both: tuple[str, ...],
    held_out: tuple[str, ...] = (),
) -> Problem:  # fmt: skip
    release, pair = work.plan.release, work.pair
    origin = TaskOrigin(
        commit=release.commit, distribution=release.distribution, version_before=release.version,
        version_after=release.version, raw=(release.raw,), licence=release.licence, operator=edit.operator,
    )  # fmt: skip
    return Problem(
        kind=TaskKind.MUTANT, name=_title(edit), level="mutant", tree=pair.before, after_tree=pair.after, before=before,
        after=pair.before.editable_files, tests=pair.tests, visible_killers=visible, held_out=held_out, origin=origin,
        data_class=release.data_class, both=both, seconds=work.seconds,
    )  # fmt: skip
