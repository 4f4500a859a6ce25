"""Which pairs and mutants a plan builds, and which tasks come out of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.app.building import Gathered, choose, plan_build
from ropewalk.core.errors import CallerError
from ropewalk.interface.task import Task, TaskKind, TaskOrigin
from ropewalk.rollout.plan import SourcePlan, TasksPlan
from ropewalk.tasks.records import ReleaseRef, TaskRecord


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
    assert plan.tasks_max == 9 and not plan.private
    assert [mutants.count for mutants in plan.mutants] == [2, 2]


def test_one_release_alone_is_a_private_package_with_mutants_only() -> None:
    gathered = Gathered(releases={"mine": (ref("mine", "1"),)}, pinned={})
    plan = plan_build(gathered, TasksPlan(count=5), SourcePlan(), tenant="local")
    assert plan.private and not plan.pairs and [mutants.count for mutants in plan.mutants] == [5]
    with pytest.raises(CallerError, match="two releases"):
        plan_build(gathered, TasksPlan(kinds=(TaskKind.RELEASE,)), SourcePlan(), tenant="local")


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 12), st.integers(1, 16))
def test_mutants_are_a_quarter_at_most(first: int, second: int, mutants: int, count: int) -> None:
    records = [record("a", n, TaskKind.RELEASE) for n in range(first)]
    records += [record("b", n, TaskKind.RELEASE) for n in range(second)]
    records += [record("a", n, TaskKind.MUTANT) for n in range(mutants)]
    chosen = choose(records, count)
    assert len(chosen) <= count
    share = sum(each.task.kind is TaskKind.MUTANT for each in chosen)
    assert share * 4 <= len(chosen) or share == 0
    assert len({each.id for each in chosen}) == len(chosen)
    places = [place for place, each in enumerate(chosen) if each.task.kind is TaskKind.MUTANT]
    assert places == [4 * number - 1 for number in range(1, share + 1)]
    assert len(choose(records, count, private=True)) == min(count, len(records))
