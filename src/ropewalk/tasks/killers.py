"""Which tests of a newer release fail on the older source and pass on the newer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ropewalk.core.outcomes import Termination
from ropewalk.reward.suite import SuitePlan, SuiteRecord, TestOutcome
from ropewalk.tasks.baselines import left_out, nothing_passes, release
from ropewalk.tasks.bench import BASELINE_TIMEOUT_S, Bench, limit_s
from ropewalk.tasks.changes import ChangedLines, read_places
from ropewalk.tasks.line_probe import POINT
from ropewalk.tasks.specified import Reached
from ropewalk.tasks.surgery import guard_imports
from ropewalk.tasks.symbols import Symbols
from ropewalk.tasks.tree import SourceTree
from ropewalk.tasks.worlds import WORKDIR, reach_folders, source_files

HANGS_MAX: Final = 4
"""Hanging tests that are left out before a pair is given up."""
SLOW_TEST_S: Final = 2.0
"""Tests slower than this are not used."""


@dataclass(frozen=True)
class Pair:
    """A source before and after, with the tests of the latter.

    Attributes:
        before, after: the trees.
        source_before, source_after: digests of their layers.
        tests: test files, with imports guarded.
        modules: those that are collected.
        data_class: the more restricted one of both releases'.
    """

    before: SourceTree
    after: SourceTree
    source_before: str
    source_after: str
    tests: Mapping[str, bytes]
    modules: tuple[str, ...]
    data_class: str


@dataclass(frozen=True)
class Killers:
    """What two runs of the newer tests showed.

    Attributes:
        killers: fail before, pass after; sorted.
        both: pass before and after.
        seconds: test → time on the newer source.
        dropped: tests that hang on the older source.
        hangs: whether the pair was given up for hanging.
        problem: why nothing can be said, else empty.
        left_out: tests that fail on the newer source itself, in sentences.
    """

    killers: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    seconds: Mapping[str, float] = ()  # type: ignore[assignment]
    dropped: tuple[str, ...] = ()
    hangs: bool = False
    problem: str = ""
    left_out: tuple[str, ...] = ()


async def make_pair(
    bench: Bench, before: SourceTree, after: SourceTree, *, data_class: str, modules: tuple[str, ...] = ()
) -> Pair:
    """Stores both sources and guards the tests' imports of names that the older one lacks.

    Raises:
        NoTestsError: the newer release ships no tests.
    """
    chosen = modules or after.test_modules
    symbols = Symbols(before.editable_files, source_root=before.source_root)
    tests = dict(after.test_files)
    for path in after.test_modules:
        text, missing = guard_imports(tests[path].decode("utf-8", "replace"), symbols, path=path)
        if missing:
            tests[path] = text.encode()
    return Pair(
        before=before, after=after, source_before=await bench.layer(source_files(before)),
        source_after=await bench.layer(source_files(after)), tests=tests, modules=tuple(sorted(chosen)),
        data_class=data_class,
    )  # fmt: skip


async def find_killers(bench: Bench, pair: Pair) -> Killers:
    """Runs the newer tests on both sources, once; tests that hang on the older one are left out."""
    plan = SuitePlan(files=pair.modules, timeout_s=BASELINE_TIMEOUT_S)
    right = await bench.baseline(pair.after, pair.source_after, pair.tests, plan, data_class=pair.data_class)
    if refused := nothing_passes(pair.after, pair.modules, right):
        return Killers(problem=refused)
    lacking = left_out(pair.after, pair.modules, right)
    seconds = {name_of(test): test.seconds for test in right.tests if test.outcome == "passed"}
    usable = [name for name, taken in seconds.items() if taken <= SLOW_TEST_S]
    if not usable:
        problem = f"{release(pair.after)}: every test that passes takes longer than {SLOW_TEST_S:g} s"
        return Killers(problem=problem, left_out=lacking)
    left, dropped = usable, []
    for _ in range(HANGS_MAX + 1):
        limit = limit_s(sum(seconds[name] for name in left) + start_s(right))
        chosen = selection(pair.modules, left, limit)
        wrong = await bench.baseline(
            pair.before, pair.source_before, pair.tests, chosen, data_class=pair.data_class
        )  # fmt: skip
        stuck = hanging_test(wrong)
        if stuck is None:
            break
        dropped.append(stuck)
        left = [name for name in left if name != stuck]
    else:
        return Killers(
            dropped=tuple(dropped), hangs=True, left_out=lacking,
            problem=f"{len(dropped)} tests hang on the older source",
        )  # fmt: skip
    if not wrong.complete and not wrong.tests:
        return Killers(problem=f"the older source: {wrong.problem or wrong.termination}", left_out=lacking)
    passed, ran = passing(wrong), {name_of(test) for test in wrong.tests}
    killers = sorted(name for name in left if name in ran - passed)
    lost = sorted({name.partition("::")[0] for name in left} - {name.partition("::")[0] for name in ran})
    return Killers(
        killers=tuple(killers), both=tuple(name for name in left if name in passed), seconds=seconds,
        dropped=tuple(dropped),
        problem=f"not importable on the older source: {', '.join(lost)}" if lost and not killers else "",
        left_out=lacking,
    )  # fmt: skip


async def confirm(bench: Bench, pair: Pair, found: Killers) -> Killers:
    """Runs the killers alone once more on both sources and keeps those that behave the same."""
    limit = limit_s(sum(found.seconds[name] for name in found.killers) + 1.0)
    plan = selection(pair.modules, found.killers, limit)
    again = partial(bench.baseline, data_class=pair.data_class, repeat=1)
    wrong = await again(pair.before, pair.source_before, pair.tests, plan)
    right = await again(pair.after, pair.source_after, pair.tests, plan)
    ended = {name_of(test) for test in wrong.tests if test.outcome != "started"}
    kept = (ended - passing(wrong)) & passing(right)
    return replace(found, killers=tuple(name for name in found.killers if name in kept))


async def reach(bench: Bench, pair: Pair, tests: Iterable[str], *, lines: ChangedLines, budget_s: float) -> Reached:
    """What tests execute on the newer source: functions, and which of these lines. One run."""
    files = tuple(sorted({name.partition("::")[0] for name in tests}))
    plan = SuitePlan(files=files, tests=tuple(tests), timeout_s=budget_s, reach=reach_folders(pair.after))
    record = await bench.baseline(
        pair.after, pair.source_after, pair.tests, plan, data_class=pair.data_class, lines=lines
    )
    functions = {name_of(test): tuple(place_of(place) for place in test.reached) for test in record.tests}
    said = {
        name_of(test): [emission.value for emission in test.emissions if emission.point == POINT]
        for test in record.tests
    }
    return Reached(functions, {name: read_places(texts, lines) for name, texts in said.items()})


def selection(modules: Iterable[str], tests: Iterable[str], timeout_s: float) -> SuitePlan:
    """A plan that runs these tests and collects no more modules than they need."""
    wanted = tuple(tests)
    files = {name.partition("::")[0] for name in wanted}
    return SuitePlan(files=tuple(sorted(files.intersection(modules) or files)), tests=wanted, timeout_s=timeout_s)


def hanging_test(record: SuiteRecord) -> str | None:
    """The test during which a run's time was up."""
    stuck = [test for test in record.tests if test.outcome == "started"]
    if not stuck or (record.termination is not Termination.TIMEOUT and record.signal is None):
        return None
    return name_of(stuck[-1])


def passing(record: SuiteRecord) -> set[str]:
    """Ids of tests that passed."""
    return {name_of(test) for test in record.tests if test.outcome == "passed"}


def name_of(test: TestOutcome) -> str:
    """Its node id."""
    return test.node_id or test.key


def place_of(reached: str) -> str:
    """`/work/pkg/mod.py:12:Class.method` → `pkg/mod.py::Class.method`."""
    path, _, name = reached.split(":", 2)
    return f"{path.removeprefix(f'{WORKDIR}/')}::{name.replace('.<locals>', '')}"


def start_s(record: SuiteRecord) -> float:
    """What a run takes besides its tests: the interpreter, pytest, imports."""
    return max(0.5, record.duration_s - sum(test.seconds for test in record.tests))
