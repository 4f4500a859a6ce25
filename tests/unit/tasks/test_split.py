from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.tasks.split import Split, SplitRefused, group_by_body, split_killers

BODIES = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.sampled_from("12345"), min_size=1, max_size=12)


@given(BODIES, st.integers(0, 5), st.data())
def test_split_properties(bodies: dict[str, str], seed: int, data: st.DataObject) -> None:
    judges = data.draw(st.sets(st.sampled_from(sorted(bodies))))
    try:
        split = split_killers(bodies, bodies, may_judge=judges, seed=seed)
    except SplitRefused:
        assert len(set(bodies.values())) < 2 or not judges
        return
    assert sorted((*split.visible, *split.held_out)) == sorted(bodies)
    assert split.visible
    assert split.held_out
    assert {bodies[test] for test in split.visible}.isdisjoint(bodies[test] for test in split.held_out)
    assert judges.intersection(split.held_out)
    for body in {bodies[test] for test in split.held_out}:
        assert judges.intersection(test for test in bodies if bodies[test] == body)
    assert split == split_killers(reversed(list(bodies)), bodies, may_judge=sorted(judges), seed=seed)


def test_about_half_of_the_bodies_is_held_out() -> None:
    bodies = {f"t{number}": str(number) for number in range(10)}
    assert len(split_killers(bodies, bodies, may_judge=bodies, seed=0).held_out) == 5


def test_seeds_give_different_splits() -> None:
    bodies = {f"t{number}": str(number) for number in range(10)}
    assert len({split_killers(bodies, bodies, may_judge=bodies, seed=seed) for seed in range(8)}) > 1


def test_one_body_is_refused_with_the_count() -> None:
    with pytest.raises(SplitRefused, match="2 tests of one body"):
        split_killers(["a", "b"], {"a": "x", "b": "x"}, may_judge=["a"], seed=0)


def test_no_judge_is_refused() -> None:
    with pytest.raises(SplitRefused, match="None of 2 tests can judge"):
        split_killers(["a", "b"], {}, may_judge=[], seed=0)


def test_a_test_without_a_known_body_shares_it_with_nobody() -> None:
    assert group_by_body(["b", "a"], {}) == [["a"], ["b"]]


@given(BODIES, st.integers(0, 5), st.data())
def test_nothing_is_held_out_that_is_not_allowed(bodies: dict[str, str], seed: int, data: st.DataObject) -> None:
    """Tests need places; each of a held-out one must be among those of the visible ones."""
    needs = {test: data.draw(st.frozensets(st.integers(0, 3), max_size=2)) for test in sorted(bodies)}

    def allows(visible: Iterable[str], held_out: Iterable[str]) -> bool:
        shown = frozenset[int]().union(*(needs[test] for test in visible))
        return all(needs[test] <= shown for test in held_out)

    def split() -> Split | None:
        try:
            return split_killers(bodies, bodies, may_judge=bodies, seed=seed, allows=allows)
        except SplitRefused:
            return None

    made, groups = split(), group_by_body(bodies, bodies)
    assert made == split()
    if made is None:
        others = [(group, [test for test in bodies if test not in group]) for group in groups]
        assert len(groups) < 2 or not any(allows(rest, group) for group, rest in others)
    else:
        assert made.visible and allows(made.visible, made.held_out)


def test_a_body_that_may_not_be_held_out_gives_its_place_to_another() -> None:
    bodies = {f"t{number}": str(number) for number in range(8)}
    alone = {"t1", "t4", "t6"}
    for seed in range(8):
        split = split_killers(
            bodies, bodies, may_judge=bodies, seed=seed, allows=lambda visible, held_out: alone.isdisjoint(held_out)
        )
        assert len(split.held_out) == 4 and alone.isdisjoint(split.held_out)
