"""Release tasks: the older release's source, the newer release's tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from ropewalk.interface.task import TaskKind, TaskOrigin
from ropewalk.security.data_classes import most_restricted
from ropewalk.tasks.assembly import Assembly, Problem
from ropewalk.tasks.baselines import release
from ropewalk.tasks.bench import Bench, Tell
from ropewalk.tasks.bodies import BodyKeys
from ropewalk.tasks.cases import make_cases
from ropewalk.tasks.changelog import mentions, release_notes
from ropewalk.tasks.changes import ChangedLines, changed_lines
from ropewalk.tasks.journal import Attempts
from ropewalk.tasks.killers import Killers, Pair, confirm, find_killers, make_pair, reach
from ropewalk.tasks.quota import PairPlaces
from ropewalk.tasks.records import PairPlan, Reason, Rejection, SourceYield, TaskRecord
from ropewalk.tasks.specified import Reached, Specification, words_of
from ropewalk.tasks.split import SplitRefused, split_killers
from ropewalk.tasks.tree import NoTestsError, SourceTree
from ropewalk.tasks.units import Changed, Unit, changed_functions, make_units, short_name

_REACH_TESTS_MAX: Final = 200
_REACH_TIMEOUT_S: Final = 120.0
_SPLIT_FAILS: Final = (Reason.NOT_GRADABLE, Reason.LOW_ENTROPY, Reason.GRADER, Reason.UNSTABLE)
"""What a unit's own tests may be to blame for, when they judge."""
_KILLERS_SHARE_MAX: Final = 0.5
_KILLERS_FEW: Final = 30
"""Where more tests than these and more than that share fail on the older source, the suite does not fit it: another
Python, a package that was renamed."""


class ReleaseBuilder:
    """Makes the tasks of one pair of adjacent releases."""

    def __init__(self, bench: Bench, assembly: Assembly, *, seed: int) -> None:
        self._bench = bench
        self._assembly = assembly
        self._seed = seed

    async def build(
        self,
        plan: PairPlan,
        trees: tuple[SourceTree, SourceTree],
        tell: Tell,
        places: PairPlaces,
        *,
        attempts: Attempts | None = None,
    ) -> SourceYield:
        """Every task that the pair gives and that there is a place for, and why not more.

        Args:
            plan: the pair.
            trees: of the older and of the newer release.
            tell: is told of progress.
            places: for its tasks.
            attempts: what came of units in an earlier, interrupted build; takes what comes of others.

        Raises:
            SandboxGoneError, UnavailableError: our side failed.
        """
        started_s = self._bench.clock.monotonic_s()
        try:
            data_class = most_restricted(plan.before.data_class, plan.after.data_class)
            pair = await make_pair(self._bench, *trees, data_class=data_class, modules=plan.modules)
        except NoTestsError as error:
            return self._nothing(plan, Reason.NO_TESTS, error.message)
        tell("baseline", f"{len(pair.modules)} test modules")
        found = await find_killers(self._bench, pair)
        if found.problem:
            return self._nothing(plan, _reason(found), found.problem, found)
        count, total = len(found.killers), len(found.killers) + len(found.both)
        if count > _KILLERS_FEW and count > _KILLERS_SHARE_MAX * total:
            detail = f"{count} of {total} tests fail on the older source"
            return self._nothing(plan, Reason.IMPORT_FAILS, detail, found)
        found = await confirm(self._bench, pair, found) if found.killers else found
        tell("killers", f"{len(found.killers)} of {len(found.seconds)} tests")
        if not found.killers:
            return self._nothing(plan, Reason.NO_KILLERS, "no test fails before and passes after", found)
        work = await self._look(plan, pair, found, tell)
        tasks, rejections = await self._build_units(work, tell, places, attempts)
        return SourceYield(
            name=plan.name, kind=plan.kind, distribution=plan.distribution, tests=len(found.seconds),
            killers=len(found.killers), units=len(work.units), tasks=tuple(tasks), rejections=tuple(rejections),
            dropped=found.dropped, left_out=found.left_out, remarks=_remarks(work),
            seconds=round(self._bench.clock.monotonic_s() - started_s, 2),
        )  # fmt: skip

    async def _look(self, plan: PairPlan, pair: Pair, found: Killers, tell: Tell) -> _PairWork:
        modules = {killer.partition("::")[0] for killer in found.killers}
        near = [test for test in found.both if test.partition("::")[0] in modules][:_REACH_TESTS_MAX]
        older, newer = pair.before.editable_files, pair.after.editable_files
        lines = changed_lines(older, newer)
        reached = await reach(self._bench, pair, (*found.killers, *near), lines=lines, budget_s=_REACH_TIMEOUT_S)
        changed = changed_functions(older, newer)
        bodies = BodyKeys({path: text for path, text in pair.tests.items() if path.endswith(".py")})
        units = make_units(found.killers, bodies, reached.functions, changed)
        notes = release_notes(pair.after.files, pair.before.version, pair.after.version)
        tell("units", f"{len(units)} units of {len(found.killers)} killers")
        return _PairWork(
            plan=plan, pair=pair, found=found, bodies=bodies, reached=reached, changed=changed, lines=lines,
            notes=notes, units=units,
        )  # fmt: skip

    async def _build_units(
        self, work: _PairWork, tell: Tell, places: PairPlaces, attempts: Attempts | None
    ) -> tuple[list[TaskRecord], list[Rejection]]:
        tasks: list[TaskRecord] = []
        rejections: list[Rejection] = []
        places.expect(min(len(work.units), work.plan.tasks_max))
        for unit in work.units:
            if len(tasks) >= work.plan.tasks_max or not await places.take():
                break
            tried = (unit.name, *unit.killers)
            make = partial(self._build_unit, work, unit)
            outcome = await (attempts.once(make, *tried) if attempts else make())
            places.settle(admitted=isinstance(outcome, TaskRecord))
            if isinstance(outcome, TaskRecord):
                tasks.append(outcome)
                tell("task", outcome.task.name)
            else:
                rejections.append(outcome)
                tell("rejected", f"{outcome.name}: {outcome.reason}")
        return tasks, rejections

    async def _build_unit(self, work: _PairWork, unit: Unit) -> TaskRecord | Rejection:
        name = f"{work.plan.name} {unit.name}"
        keys = {killer: work.bodies.key(killer) for killer in unit.killers}
        symbols = [name for name in dict.fromkeys(map(short_name, unit.symbols)) if not name.startswith("_")]
        notes = mentions(work.notes, symbols, words=words_of(unit.killers))
        told = Specification(unit, work.reached, work.changed, work.lines, notes)
        try:
            split = split_killers(unit.killers, keys, may_judge=unit.killers, seed=self._seed, allows=told.allows)
        except SplitRefused:
            detail = next((why for test in unit.killers if (why := told.unknown(_others(test, keys), test))), "")
            refused = Rejection(name=name, reason=Reason.UNSPECIFIED, detail=detail)
        else:
            problem = work.problem(unit, split.visible, split.held_out, notes)
            made = await self._cases(work, unit, problem, told)
            outcome = await self._assembly.admit(made or problem)
            if isinstance(outcome, TaskRecord) or outcome.reason not in _SPLIT_FAILS:
                return outcome
            refused = outcome
        # All killers are seen, and only cases that the oracle makes judge.
        problem = work.problem(unit, unit.killers, (), notes)
        made = await self._cases(work, unit, problem, told)
        if made is not None:
            return await self._assembly.admit(made)
        if len(set(keys.values())) > 1:
            return refused
        return Rejection(
            name=problem.title, reason=Reason.ONE_BODY,
            detail="one test body, and no call of the changed functions with plain data that tells them apart",
        )  # fmt: skip

    async def _cases(self, work: _PairWork, unit: Unit, problem: Problem, told: Specification) -> Problem | None:
        """The problem with cases besides its held-out tests, so that knowing those tests is not enough."""
        return await make_cases(
            self._bench,
            problem,
            work.pair.source_before,
            work.pair.source_after,
            functions=(
                *unit.symbols,
                *(place for test in unit.killers for place in work.reached.functions.get(test, ())),
            ),
            seed=self._seed,
            fair=told.cases(problem.visible_killers),
        )

    def _nothing(self, plan: PairPlan, reason: Reason, detail: str, found: Killers | None = None) -> SourceYield:
        return SourceYield(
            name=plan.name, kind=plan.kind, distribution=plan.distribution,
            tests=len(found.seconds) if found else 0, killers=len(found.killers) if found else 0,
            rejections=(Rejection(name=plan.name, reason=reason, detail=detail[:500]),),
            dropped=found.dropped if found else (), left_out=found.left_out if found else (),
        )  # fmt: skip


@dataclass(frozen=True)
class _PairWork:
    """What is known of a pair while its units are built."""

    plan: PairPlan
    pair: Pair
    found: Killers
    bodies: BodyKeys
    reached: Reached
    changed: Changed
    lines: ChangedLines
    notes: str
    units: tuple[Unit, ...]

    def problem(self, unit: Unit, visible: tuple[str, ...], held_out: tuple[str, ...], notes: str) -> Problem:
        """The unit as a problem; tests that reach what it is about come first among those that still pass."""
        about = set(unit.symbols)
        modules = {killer.partition("::")[0] for killer in unit.killers}
        near = [test for test in self.found.both if test.partition("::")[0] in modules]
        near.sort(key=lambda test: (not about.intersection(self.reached.functions.get(test, ())), test))
        others = tuple(killer for killer in self.found.killers if killer not in unit.killers)
        return _problem(
            self.plan, self.pair, self.found, name=unit.name, level=unit.level, visible=visible, held_out=held_out,
            hidden=(*others, *self.found.dropped), both=tuple(near), notes=notes,
        )  # fmt: skip


def _problem(
    plan: PairPlan, pair: Pair, found: Killers, *, name: str, level: str, visible: tuple[str, ...],
    held_out: tuple[str, ...], hidden: tuple[str, ...] = (), both: tuple[str, ...] = (), notes: str = "",
) -> Problem:  # fmt: skip
    origin = TaskOrigin(
        commit=plan.after.commit, distribution=plan.after.distribution, version_before=plan.before.version,
        version_after=plan.after.version, raw=(plan.before.raw, plan.after.raw), licence=plan.after.licence,
    )  # fmt: skip
    return Problem(
        kind=TaskKind.RELEASE, name=name, level=level, tree=pair.before, after_tree=pair.after,
        before=pair.before.editable_files, after=pair.after.editable_files, tests=pair.tests, visible_killers=visible,
        held_out=held_out, origin=origin, data_class=pair.data_class,
        hidden=hidden, both=both, seconds=found.seconds, notes=notes,
    )  # fmt: skip


def _remarks(work: _PairWork) -> tuple[str, ...]:
    if work.notes:
        return ()
    return (
        f"{release(work.pair.after)}: no release notes on what came after {work.plan.before.version} were found "
        "(CHANGELOG, CHANGES, HISTORY, NEWS, …, at its top or in doc/ or docs/): prompts quote none, and killers whose "
        "changed statements no visible killer executes are not held out.",
    )


def _others(test: str, keys: Mapping[str, str]) -> list[str]:
    """Killers with other bodies."""
    return [other for other, key in keys.items() if key != keys[test]]


def _reason(found: Killers) -> Reason:
    if found.hangs:
        return Reason.HANGS
    return Reason.IMPORT_FAILS if found.problem.startswith("not importable") else Reason.BASELINE_FAILS
