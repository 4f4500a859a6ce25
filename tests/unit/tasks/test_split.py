from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.tasks.split import SplitRefused, group_by_body, split_killers

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
