from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from tests.marks import MemoryMarks

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.records import canonical_bytes, digest
from ropewalk.interface.task import Task, TaskKind, TaskOrigin
from ropewalk.provenance.statement import Activity
from ropewalk.tasks import builder
from ropewalk.tasks.builder import TaskBuilder, Workshop, adjacent
from ropewalk.tasks.journal import Attempts, BuildJournal
from ropewalk.tasks.quota import MutantPlaces, PairPlaces, Quota, mutants_beside
from ropewalk.tasks.records import (
    BuildEvent,
    BuildPlan,
    MutantPlan,
    PairPlan,
    Reason,
    Rejection,
    ReleaseRef,
    SourceYield,
    TaskRecord,
    YieldReport,
)
from ropewalk.tasks.statements import task_statements
from ropewalk.tasks.tree import SourceTree, make_tree


def ref(version: str, name: str = "pkg") -> ReleaseRef:
    return ReleaseRef(distribution=name, version=version, raw=digest([name, version]), licence="MIT", commit="c" * 64)


def record(name: str, kind: TaskKind = TaskKind.RELEASE, distribution: str = "pkg") -> TaskRecord:
    origin = TaskOrigin(
        commit="c" * 64, distribution=distribution, version_before="1", version_after="2", raw=("a" * 64,),
        licence="MIT", operator="constant" if kind is TaskKind.MUTANT else "",
    )  # fmt: skip
    task = Task(
        name=name, kind=kind, prompt="p", image="1" * 64, layers=("2" * 64, "3" * 64), workdir="/work",
        visible_tests=("t.py::a",), visible_killers=("t.py::a",), test_command=("pytest",), editable=("pkg/*.py",),
        source="4" * 64, grader="5" * 64, oracle="6" * 64, origin=origin,
    )  # fmt: skip
    return TaskRecord(
        task=task, unit="u", level="class", held_out=("t.py::b",), killers_held_out=1, points=3, guess_bits=20.5,
        verdicts=("7" * 64,) * 4, scanned=("1" * 64,), started_s=1.0, ended_s=2.0,
    )  # fmt: skip


class Fake:
    """Stands for both kinds of builders: gives a number of tasks for each source, and counts."""

    def __init__(self, gives: dict[str, int]) -> None:
        self.gives = gives
        self.built: list[str] = []
        self.failures: dict[str, int] = {}

    async def release(
        self, plan: PairPlan, trees: tuple[SourceTree, SourceTree], tell: Any, places: PairPlaces, **_: Any
    ) -> SourceYield:
        self.built.append(plan.name)
        if self.failures.get(plan.name, 0):
            self.failures[plan.name] -= 1
            raise UnavailableError("the machine is full")
        tasks = []
        for number in range(self.gives.get(plan.name, 0)):
            if not await places.take():
                break
            places.settle(admitted=True)
            tasks.append(record(f"{plan.name} {number}"))
            tell("task", f"{plan.name} {number}")
        return SourceYield(name=plan.name, kind=TaskKind.RELEASE, distribution="pkg", tasks=tuple(tasks))

    async def mutants(
        self, plan: MutantPlan, tree: SourceTree, tell: Any, places: MutantPlaces, **_: Any
    ) -> SourceYield:
        self.built.append(plan.name)
        tasks = tuple(record(f"{plan.name} {number}", TaskKind.MUTANT) for number in range(plan.count))
        return SourceYield(name=plan.name, kind=TaskKind.MUTANT, distribution="pkg", tasks=tasks)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake({})

    class Releases:
        def __init__(self, *_: object, **__: object) -> None: ...

        build = staticmethod(made.release)

    class Mutants:
        def __init__(self, *_: object, **__: object) -> None: ...

        build = staticmethod(made.mutants)

    monkeypatch.setattr(builder, "ReleaseBuilder", Releases)
    monkeypatch.setattr(builder, "MutantBuilder", Mutants)
    return made


class Image:
    digest = "1" * 64
    layers = ("9" * 64,)


def shop(folder: Path, trees: Any = None) -> Workshop:
    def tree(release: ReleaseRef) -> SourceTree:
        return make_tree({"pkg.py": b"", "test_pkg.py": b""}, distribution="pkg", version=release.version)

    nothing: Any = None
    return Workshop(
        sandboxes=nothing, blobs=nothing, layers=nothing, image=Image(), trees=trees or tree, folder=folder, marks=MARKS
    )


MARKS = MemoryMarks()


PAIRS = adjacent([ref("1"), ref("2"), ref("3"), ref("4")])


async def test_mutants_are_a_quarter_at_most(fake: Fake, tmp_path: Path) -> None:
    fake.gives = {"pkg 1→2": 3, "pkg 2→3": 1, "pkg 3→4": 3}
    mutants = (
        MutantPlan(release=ref("4"), count=1),
        MutantPlan(release=ref("3"), count=50),
        MutantPlan(release=ref("2"), count=5),
    )
    report = await TaskBuilder(shop(tmp_path)).build(BuildPlan(pairs=PAIRS, mutants=mutants, tenant="t"))
    assert (report.count(TaskKind.RELEASE), report.count(TaskKind.MUTANT)) == (7, 2)
    assert report.count(TaskKind.MUTANT) <= len(report.tasks) / 4
    assert report.reasons == {Reason.QUOTA: 54}
    assert report.distributions == {"pkg": 7}


async def made(places: MutantPlaces, *, of: int) -> int:
    """Mutants that are made where every `of`-th attempt succeeds."""
    count = tried = 0
    while await places.take():
        tried += 1
        places.settle(admitted=tried % of == 0)
        count += tried % of == 0
    return count


@pytest.mark.parametrize(("units", "admitted", "mutants"), [(3, 1, 1), (9, 9, 3), (2, 2, 0), (40, 5, 4)])
async def test_no_more_mutants_are_made_than_release_tasks_can_allow(units: int, admitted: int, mutants: int) -> None:
    """A quarter of twelve at most, and none before it is known how many units there are."""
    plan = BuildPlan(pairs=PAIRS[:1], mutants=(MutantPlan(release=ref("2"), count=40),), tenant="t", tasks_max=12)
    quota = Quota(plan)
    found: list[int] = []
    async with anyio.create_task_group() as group:

        async def make() -> None:
            found.append(await made(quota.mutants(1), of=2))

        group.start_soon(make)
        await anyio.wait_all_tasks_blocked()
        assert not found, "it waits for the units"
        pair = quota.pair(0)
        pair.expect(units)
        await anyio.wait_all_tasks_blocked()
        assert found == [mutants]
        for number in range(units):
            assert await pair.take()
            pair.settle(admitted=number < admitted)
        quota.finish(0, admitted)
    assert mutants_beside(admitted, 0.25) <= mutants


async def test_release_tasks_that_are_there_let_mutants_begin_and_a_pair_without_any_ends_them() -> None:
    plan = BuildPlan(pairs=PAIRS[:2], mutants=(MutantPlan(release=ref("2"), count=40),), tenant="t", tasks_max=12)
    quota = Quota(plan)
    quota.finish(0, 3)
    places = quota.mutants(2)
    assert await places.take()
    places.settle(admitted=True)
    quota.finish(1, 0)
    assert not await places.take()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
async def test_places_go_to_sources_in_the_plan_s_order_whichever_is_faster(order: list[int]) -> None:
    """Units of three pairs that give 2 of 3, 1 of 4 and 3 of 3: five places, so the last pair has two."""
    gives = [[True, False, True], [False, False, True, False], [True, True, True]]
    mutants = (MutantPlan(release=ref("2"), count=1), MutantPlan(release=ref("3"), count=4))
    plan = BuildPlan(pairs=PAIRS, mutants=mutants, tenant="t", tasks_max=5, mutant_share_max=0.4)
    quota = Quota(plan)
    taken: dict[int, int] = {}

    async def pair(number: int) -> None:
        places, count = quota.pair(number), 0
        places.expect(len(gives[number]))
        for admitted in gives[number]:
            if not await places.take():
                break
            await pause()
            places.settle(admitted=admitted)
            count += admitted
        taken[number] = count
        quota.finish(number, count)

    async def release(number: int) -> None:
        places, count = quota.mutants(number), 0
        while count < mutants[number - 3].count and await places.take():
            await pause()
            places.settle(admitted=True)
            count += 1
        taken[number] = count
        quota.finish(number, count)

    async def pause() -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for number in (4, 3):
            group.start_soon(release, number)
        for number in order:
            group.start_soon(pair, number)
            await anyio.wait_all_tasks_blocked()
    assert taken == {0: 2, 1: 1, 2: 2, 3: 1, 4: 2}


async def test_the_share_of_mutants_is_the_plan_s(fake: Fake, tmp_path: Path) -> None:
    fake.gives = {"pkg 1→2": 4}
    plan = BuildPlan(
        pairs=PAIRS[:1], mutants=(MutantPlan(release=ref("2"), count=9),), tenant="t", mutant_share_max=0.5
    )
    report = await TaskBuilder(shop(tmp_path)).build(plan)
    assert (report.count(TaskKind.RELEASE), report.count(TaskKind.MUTANT)) == (4, 4)


async def test_what_was_tried_in_a_source_is_kept_before_the_source_is_through(tmp_path: Path) -> None:
    step = MutantPlan(release=ref("1"), count=2)
    plan = BuildPlan(pairs=(), mutants=(step,), tenant="t", control_only=True)
    outcomes: list[TaskRecord | Rejection] = [
        record("one", TaskKind.MUTANT),
        Rejection(name="two", reason=Reason.SURVIVES, detail="4 tests pass"),
    ]
    failed = Rejection(name="three", reason=Reason.INFRASTRUCTURE)
    journal = BuildJournal(tmp_path, plan, image="1" * 64, marks=MARKS)
    for number, outcome in enumerate((*outcomes, failed)):
        await Attempts(journal, step).store(outcome, "pkg.py", str(number))

    again = BuildJournal(tmp_path, plan, image="1" * 64, marks=MARKS)
    attempts = Attempts(again, step)
    assert [await attempts.load("pkg.py", str(number)) for number in range(4)] == [*outcomes, None, None]

    async def must_not_run() -> TaskRecord | Rejection:
        raise AssertionError("it was tried before")

    assert [await attempts.once(must_not_run, "pkg.py", str(number)) for number in range(2)] == outcomes
    made: list[int] = []

    async def make() -> TaskRecord | Rejection:
        made.append(1)
        return outcomes[1]

    assert [await attempts.once(make, "pkg.py", "3") for _ in range(2)] == [outcomes[1]] * 2 and made == [1]
    again.store(step, SourceYield(name=step.name, kind=TaskKind.MUTANT, distribution="pkg"))

    # A plan of more tasks finds what was tried, and not what the whole source gave.
    more = msgspec.structs.replace(step, count=9, attempts_max=100)
    wider = BuildJournal(
        tmp_path, msgspec.structs.replace(plan, mutants=(more,), tasks_max=7), image="1" * 64, marks=MARKS
    )
    assert [await Attempts(wider, more).load("pkg.py", str(number)) for number in range(2)] == outcomes
    assert (again.load(step), wider.load(more), wider.load(step)) == (again.load(step), None, None)
    assert again.load(step) is not None

    # Another seed, another release, another image: nothing is the same.
    for other, image, its in (
        (msgspec.structs.replace(plan, seed=1), "1" * 64, step),
        (plan, "2" * 64, step),
        (plan, "1" * 64, msgspec.structs.replace(step, release=ref("2"))),
    ):
        elsewhere = BuildJournal(tmp_path, other, image=image, marks=MARKS)
        assert await Attempts(elsewhere, its).load("pkg.py", "0") is None


async def test_mutants_alone_are_for_a_user_s_own_package(fake: Fake, tmp_path: Path) -> None:
    alone = BuildPlan(pairs=(), mutants=(MutantPlan(release=ref("1"), count=4),), tenant="t")
    with pytest.raises(CallerError, match="control beside release tasks"):
        await TaskBuilder(shop(tmp_path)).build(alone)
    private = BuildPlan(pairs=(), mutants=alone.mutants, tenant="t", control_only=True)
    report = await TaskBuilder(shop(tmp_path)).build(private)
    assert report.count(TaskKind.MUTANT) == 4
    assert {task.task.kind for task in report.tasks} == {TaskKind.MUTANT}


async def test_a_build_stops_where_enough_tasks_are(fake: Fake, tmp_path: Path) -> None:
    fake.gives = {pair.name: 5 for pair in PAIRS}
    report = await TaskBuilder(shop(tmp_path)).build(BuildPlan(pairs=PAIRS, tenant="t", tasks_max=7))
    assert len(report.tasks) == 7


async def test_tests_that_fail_on_their_own_source_are_told_also_when_read_again(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def lacking(*arguments: Any, **named: Any) -> SourceYield:
        return msgspec.structs.replace(await fake.release(*arguments, **named), left_out=("1 of 2 tests fails here",))

    monkeypatch.setattr(builder.ReleaseBuilder, "build", staticmethod(lacking))
    plan = BuildPlan(pairs=PAIRS[:1], tenant="t")
    for _ in range(2):
        told: list[BuildEvent] = []
        await TaskBuilder(shop(tmp_path)).build(plan, on_event=told.append)
        assert [event.detail for event in told if event.stage == "left_out"] == ["1 of 2 tests fails here"]
    assert fake.built == ["pkg 1→2"], "the second time from the journal"


async def test_what_is_built_is_read_again(fake: Fake, tmp_path: Path) -> None:
    fake.gives = {pair.name: 2 for pair in PAIRS}
    plan = BuildPlan(pairs=PAIRS, mutants=(MutantPlan(release=ref("4"), count=9),), tenant="t")
    first = await TaskBuilder(shop(tmp_path)).build(plan)
    built = len(fake.built)
    events: list[BuildEvent] = []
    second = await TaskBuilder(shop(tmp_path)).build(plan, on_event=events.append)
    assert len(fake.built) == built
    assert second.sources == first.sources
    assert {event.stage for event in events} == {"resumed"}
    assert events[-1].done == events[-1].total == 4
    assert events[-1].tasks == 6 + 9
    assert len(first.tasks) == 6 + 2


async def test_a_lost_sandbox_is_tried_again_and_not_kept(fake: Fake, tmp_path: Path) -> None:
    fake.gives = {pair.name: 1 for pair in PAIRS}
    fake.failures = {"pkg 1→2": 1, "pkg 2→3": 2}
    plan = BuildPlan(pairs=PAIRS, tenant="t")
    report = await TaskBuilder(shop(tmp_path)).build(plan)
    assert fake.built.count("pkg 1→2") == 2
    assert report.reasons == {Reason.INFRASTRUCTURE: 1}
    assert len(report.tasks) == 2
    again = await TaskBuilder(shop(tmp_path)).build(plan)
    assert len(again.tasks) == 3


async def test_a_damaged_entry_of_the_journal_is_built_again(fake: Fake, tmp_path: Path) -> None:
    fake.gives = {"pkg 1→2": 1}
    plan = BuildPlan(pairs=PAIRS[:1], tenant="t")
    await TaskBuilder(shop(tmp_path)).build(plan)
    entry = next((tmp_path / "builds").rglob("*.json"))
    entry.write_bytes(entry.read_bytes()[:-9])
    await TaskBuilder(shop(tmp_path)).build(plan)
    assert fake.built == ["pkg 1→2"] * 2


def test_entries_belong_to_one_plan_and_one_step(tmp_path: Path) -> None:
    plan = BuildPlan(pairs=PAIRS, tenant="t")
    result = SourceYield(name="x", kind=TaskKind.RELEASE, distribution="pkg")

    def journal(plan: BuildPlan = plan, image: str = "image", **fields: Any) -> BuildJournal:
        return BuildJournal(tmp_path, plan, **{"image": image, "marks": MARKS, **fields})

    journal().store(PAIRS[0], result)
    assert journal().load(PAIRS[0]) == result
    assert journal().load(PAIRS[1]) is None
    assert journal(image="another image").load(PAIRS[0]) is None
    assert journal(wheels=("w" * 64,)).load(PAIRS[0]) is None
    assert journal(BuildPlan(pairs=PAIRS, tenant="t", seed=1)).load(PAIRS[0]) is None
    assert journal(marks=MemoryMarks()).load(PAIRS[0]) is None


@pytest.mark.parametrize("how", ["another result", "another step's", "no mark"])
async def test_what_others_wrote_into_the_journal_is_built_again(fake: Fake, tmp_path: Path, how: str) -> None:
    """Its tasks would be signed as admitted."""
    plan = BuildPlan(pairs=PAIRS[:2], tenant="t")
    await TaskBuilder(shop(tmp_path)).build(plan)
    first, second = sorted((tmp_path / "builds").rglob("*.json"))
    entry, other = (json.loads(path.read_bytes()) for path in (first, second))
    if how == "another result":
        entry["result"]["tests"] = 99
    elif how == "no mark":
        del entry["mark"]
    else:
        entry |= {"result": other["result"], "mark": other["mark"]}
    first.write_bytes(canonical_bytes(entry))
    built = len(fake.built)
    report = await TaskBuilder(shop(tmp_path)).build(plan)
    assert len(fake.built) == built + 1
    assert 99 not in [source.tests for source in report.sources]


def test_progress_counts_reasons() -> None:
    rejections = tuple(Rejection(name="n", reason=reason) for reason in (Reason.LEAK, Reason.HANGS, Reason.LEAK))
    source = SourceYield(name="x", kind=TaskKind.RELEASE, distribution="pkg", rejections=rejections)
    assert list(YieldReport(sources=(source,), seconds=1.0).reasons.items()) == [(Reason.LEAK, 2), (Reason.HANGS, 1)]


def test_statements_lead_back_to_raw_files_and_name_no_held_out_test() -> None:
    made = record("a task", TaskKind.MUTANT)
    derive, admit = task_statements([made])
    assert (derive.activity, admit.activity) == (Activity.DERIVE, Activity.ADMIT)
    assert {link.sha256 for link in derive.inputs} == {"a" * 64}
    assert {link.sha256 for link in derive.subjects} == {"2" * 64, "3" * 64}
    assert admit.subjects[0].name == made.task.id
    assert admit.subjects[0].sha256.startswith(made.task.id.partition(":")[2])
    assert {"a" * 64, "5" * 64, "6" * 64, "2" * 64, "3" * 64} <= {link.sha256 for link in admit.inputs}
    assert admit.predicate["commit"] == "c" * 64, "a fact: the commit holds other packages' files too"
    assert admit.predicate["operator"] == "constant"
    assert admit.predicate["controls"] == {"noop": 0, "oracle": 1, "oracle_repeats": 3}
    assert "t.py::b" not in str(admit)


@pytest.mark.parametrize(
    "trouble",
    [
        CallerError("no importable package"),
        ValueError("\x1b[31mred"),
        AssertionError(),
        RecursionError("too deep"),
        ExceptionGroup("tasks", [CallerError("not a module")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_odd_source_does_not_end_the_build_of_the_others(
    fake: Fake, tmp_path: Path, trouble: Exception
) -> None:
    def tree(release: ReleaseRef) -> SourceTree:
        if release.version == "2":
            raise trouble
        return make_tree({"pkg.py": b"", "test_pkg.py": b""}, distribution="pkg", version=release.version)

    fake.gives = {"pkg 3→4": 2}
    report = await TaskBuilder(shop(tmp_path, tree)).build(BuildPlan(pairs=PAIRS, tenant="t"))
    assert report.count(TaskKind.RELEASE) == 2
    assert report.reasons == {Reason.UNREADABLE: 2}
    details = [rejection.detail for source in report.sources for rejection in source.rejections]
    assert all(detail.isprintable() and detail.isascii() for detail in details)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_damage_ends_a_build(fake: Fake, tmp_path: Path, wrapped: bool) -> None:
    def tree(release: ReleaseRef) -> SourceTree:
        damage = IntegrityError("not what was stored")
        raise ExceptionGroup("tasks", [ValueError(), damage]) if wrapped else damage

    with pytest.raises(IntegrityError, match="not what was stored"):
        await TaskBuilder(shop(tmp_path, tree)).build(BuildPlan(pairs=PAIRS, tenant="t"))
