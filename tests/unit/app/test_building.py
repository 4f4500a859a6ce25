"""Which pairs and mutants a plan builds, and which tasks come out of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.app import building
from ropewalk.app.building import Gathered, build_tasks, choose, plan_build
from ropewalk.app.custody import Custody
from ropewalk.app.machines import Machines
from ropewalk.core import limits
from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.limits import GIB
from ropewalk.interface.task import Task, TaskKind, TaskOrigin
from ropewalk.orchestration.drivers.local import LocalFleet
from ropewalk.orchestration.machine import Machine
from ropewalk.rollout.plan import SourcePlan, TasksPlan
from ropewalk.sandbox.sandboxes import Sandboxes
from ropewalk.tasks.bench import SLOT_SANDBOXES
from ropewalk.tasks.builder import Workshop
from ropewalk.tasks.pins import load_pins
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


def ref(name: str, version: str) -> ReleaseRef:
    return ReleaseRef(distribution=name, version=version, raw="a" * 64, licence="MIT", commit="b" * 64)


def record(name: str, number: int, kind: TaskKind) -> TaskRecord:
    origin = TaskOrigin(
        commit="b" * 64, distribution=name, version_before="1", version_after="2", raw=("a" * 64,), licence="MIT"
    )
    task = Task(
        name=f"{name} {kind} {number}", kind=kind, prompt="", image="c" * 64, layers=(), workdir="/work",
        visible_tests=(), visible_killers=(), test_command=(), editable=(), source="d" * 64, grader="e" * 64,
        oracle="f" * 64, origin=origin,
    )  # fmt: skip
    return TaskRecord(
        task=task, unit="", level="", held_out=(), killers_held_out=1, points=1, guess_bits=20, started_s=0, ended_s=1
    )


def test_neighbours_become_pairs_newest_first_and_distributions_take_turns() -> None:
    gathered = Gathered(
        releases={"a": (ref("a", "1"), ref("a", "2"), ref("a", "3")), "b": (ref("b", "1"), ref("b", "2"))}, pinned={}
    )
    plan = plan_build(gathered, TasksPlan(count=12), SourcePlan(), tenant="local")
    assert [pair.name for pair in plan.pairs] == ["a 2→3", "b 1→2", "a 1→2"]
    assert plan.tasks_max == 9 and not plan.control_only
    assert [mutants.count for mutants in plan.mutants] == [2, 2]


@pytest.mark.parametrize(("share", "mutants", "releases"), [(0.0, [], 12), (0.5, [3, 3], 6), (0.1, [1, 1], 11)])
def test_the_plan_says_how_many_mutants_are_tried(share: float, mutants: list[int], releases: int) -> None:
    gathered = Gathered(
        releases={"a": (ref("a", "1"), ref("a", "2")), "b": (ref("b", "1"), ref("b", "2"))}, pinned={}
    )  # fmt: skip
    plan = plan_build(gathered, TasksPlan(count=12, mutant_share_max=share), SourcePlan(), tenant="local")
    assert ([each.count for each in plan.mutants], plan.tasks_max) == (mutants, releases)


def test_no_place_is_kept_for_mutants_that_nobody_wants() -> None:
    gathered = Gathered(releases={"a": (ref("a", "1"), ref("a", "2"))}, pinned={})
    plan = plan_build(gathered, TasksPlan(count=4, kinds=(TaskKind.RELEASE,)), SourcePlan(), tenant="local")
    assert (plan.tasks_max, plan.mutants, plan.control_only) == (4, (), False)


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_pinned_catalogue_has_its_mutants_only_where_the_plan_wants_any(share: float) -> None:
    pinned = tuple(ref(each.distribution, each.version) for each in load_pins("demo").releases)
    gathered = Gathered(releases={}, pinned={"demo": pinned})
    plan = plan_build(gathered, TasksPlan(mutant_share_max=share), SourcePlan(), tenant="local")
    assert bool(plan.mutants) == bool(share) and plan.pairs


def test_one_release_alone_gives_a_control_only() -> None:
    gathered = Gathered(releases={"mine": (ref("mine", "1"),)}, pinned={})
    plan = plan_build(gathered, TasksPlan(count=5), SourcePlan(), tenant="local")
    assert plan.control_only and not plan.pairs and [mutants.count for mutants in plan.mutants] == [5]
    with pytest.raises(CallerError, match="two releases"):
        plan_build(gathered, TasksPlan(kinds=(TaskKind.RELEASE,)), SourcePlan(), tenant="local")


@pytest.mark.parametrize("count", [1, 10, 40])
def test_mutants_that_are_asked_for_alone_are_as_many_as_that(count: int) -> None:
    """Whatever the sources are, the quarter is a share of real tasks, and there are none."""
    wanted = TasksPlan(count=count, kinds=(TaskKind.MUTANT,))
    pinned = tuple(ref(each.distribution, each.version) for each in load_pins("demo").releases)
    for gathered in (
        Gathered(releases={"a": (ref("a", "1"), ref("a", "2")), "b": (ref("b", "1"),)}, pinned={}),
        Gathered(releases={}, pinned={"demo": pinned}),
    ):
        plan = plan_build(gathered, wanted, SourcePlan(), tenant="local")
        assert plan.control_only and not plan.pairs
        assert sum(mutants.count for mutants in plan.mutants) >= count
        records = tuple(record("a", number, TaskKind.MUTANT) for number in range(count))
        assert len(choose(records, count, control_only=plan.control_only)) == count
        mutants = SourceYield(name="a", kind=TaskKind.MUTANT, distribution="a", tasks=records)
        assert YieldReport(sources=(mutants,), seconds=0).control_only
    real = SourceYield(name="a", kind=TaskKind.RELEASE, distribution="a", tasks=(record("a", 0, TaskKind.RELEASE),))
    assert not YieldReport(sources=(mutants, real), seconds=0).control_only


SHARES = st.sampled_from([0.0, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.7, 1.0])


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 12), st.integers(1, 16), SHARES)
def test_mutants_are_at_most_the_share_that_the_plan_says(
    first: int, second: int, mutants: int, count: int, share_max: float
) -> None:
    records = [record("a", n, TaskKind.RELEASE) for n in range(first)]
    records += [record("b", n, TaskKind.RELEASE) for n in range(second)]
    records += [record("a", n, TaskKind.MUTANT) for n in range(mutants)]
    chosen = choose(records, count, mutant_share_max=share_max)
    assert len(chosen) <= count and len({each.id for each in chosen}) == len(chosen)
    places = [place for place, each in enumerate(chosen) if each.task.kind is TaskKind.MUTANT]
    # Not only in all, but among the first ones too, however many are taken of them; and no more would have fitted.
    assert all(number <= share_max * (place + 1) + 1e-6 for number, place in enumerate(places, start=1))
    more = len(places) + 1
    fits = more <= mutants and more <= share_max * min(count, first + second + more) - 1e-6
    assert not fits
    if share_max == 0.25:
        assert places == [4 * number - 1 for number in range(1, len(places) + 1)]
        assert chosen == choose(records, count)
    assert len(choose(records, count, control_only=True)) == min(count, len(records))


async def test_one_build_says_why_fewer_tasks_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Rejection(name="a 1→2 f", reason=Reason.LOW_ENTROPY, detail="worth 0 bits")
    source = SourceYield(
        name="a 1→2", kind=TaskKind.RELEASE, distribution="a", tasks=(record("a", 0, TaskKind.RELEASE),),
        rejections=(refused,),
    )  # fmt: skip

    shops: list[Workshop] = []

    class Builder:
        def __init__(self, shop: Workshop) -> None:
            shops.append(shop)

        async def build(self, plan: BuildPlan, **_: object) -> YieldReport:
            return YieldReport(sources=(source,), seconds=0)

    async def image(self: Machines) -> Any:
        return SimpleNamespace(digest="c" * 64, layers=())

    monkeypatch.setattr(building, "TaskBuilder", Builder)
    monkeypatch.setattr(building, "measure", lambda: Machine(cpus=1.5, memory_bytes=8 * GIB, notes=()))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(building, "task_statements", lambda tasks, wheels: [])
    monkeypatch.setattr(Machines, "image", image)
    looked_over: list[str] = []
    monkeypatch.setattr(Sandboxes, "check_unchanged", lambda self, image, layers: looked_over.append(image))
    told: list[BuildEvent] = []
    plan = BuildPlan(pairs=(PairPlan(before=ref("a", "1"), after=ref("a", "2")),), tenant="local")
    with Custody.open(state=tmp_path / "state") as custody:
        made = await build_tasks(custody, Machines(custody), plan, count=4, tell=told.append)
        assert "4 tasks were wanted and 1 came: 1 × what tests compare can be guessed" in made.fewer
        assert [event.detail for event in told if event.stage == "fewer"] == [made.fewer]
        enough = await build_tasks(custody, Machines(custody), plan, count=1, tell=told.append)
    assert enough.fewer == "" and len(told) == 1
    assert looked_over == ["c" * 64] * 2, "nothing is signed that rests on layers which moved"
    assert shops[0].parallel == 3, "what this process may use counts, not what the board carries"


async def test_a_builds_sandboxes_have_their_room_in_the_fleet() -> None:
    fleet = LocalFleet(machine=Machine(cpus=4, memory_bytes=9 * GIB, notes=()))
    free = fleet.capacity().memory_bytes_free
    for declares, each in (((), limits.SANDBOX_MEMORY_BYTES),
                           (("disk_in_memory",), limits.SANDBOX_MEMORY_BYTES + limits.SANDBOX_DISK_BYTES)):  # fmt: skip
        machines: Any = SimpleNamespace(fleet=fleet, tenant="t", declares=declares)
        async with building._room(machines):
            assert fleet.capacity().memory_bytes_free == free - SLOT_SANDBOXES * each
    small: Any = SimpleNamespace(
        fleet=LocalFleet(machine=Machine(cpus=1, memory_bytes=GIB, notes=())), tenant="t", declares=("disk_in_memory",)
    )
    async with building._room(small):
        assert small.fleet.capacity().memory_bytes_free == 0, "all that there is"


@pytest.mark.parametrize("position", ["before", "after", "mutant"])
async def test_no_release_meets_a_driver_that_its_class_forbids(tmp_path: Path, position: str) -> None:
    closed = msgspec.structs.replace(ref("a", "2"), data_class="restricted")
    pairs = {
        "before": (PairPlan(before=closed, after=ref("a", "3")),),
        "after": (PairPlan(before=ref("a", "1"), after=closed),),
    }
    plan = BuildPlan(
        pairs=pairs.get(position, (PairPlan(before=ref("a", "1"), after=ref("a", "3")),)),
        mutants=(MutantPlan(release=closed, count=1),) if position == "mutant" else (), tenant="local",
    )  # fmt: skip
    with Custody.open(state=tmp_path / "state") as custody:
        machines = Machines(custody)
        machines.driver_name = "cloud"
        with pytest.raises(DeniedError) as denied:
            await build_tasks(custody, machines, plan, count=1)
        assert denied.value.rule == "data_class:restricted:driver"
        assert not list(machines.images.records()), "refused before anything is made"
