"""What calls made, looked up for a value that comes from one of them, held against a plain reading of the rule."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.reward.values.made import UNKNOWN_CALL, MadeIndex
from ropewalk.reward.values.outlines import outline

BIG = st.integers(2_000, 2_005)
CALLS = st.integers(0, 4)


@given(st.lists(st.tuples(CALLS, BIG)), BIG, st.integers(-1, 5))
def test_a_value_is_elsewhere_where_another_call_made_it_and_its_own_did_not(
    made: list[tuple[int, int]], asked: int, call: int
) -> None:
    index = MadeIndex([number for _, number in made], [(caller, place) for place, (caller, _) in enumerate(made)])
    makers = {caller for caller, number in made if number == asked}
    assert index.elsewhere(outline(asked), call) == (bool(makers) and call not in makers)
    assert index.has_number(float(asked), 0.5, call) == (bool(makers) and call not in makers)


@given(st.lists(st.tuples(st.integers(0, 2), CALLS, BIG), max_size=30), st.data(), st.integers(-1, 5))
def test_a_run_is_found_in_a_row_unless_it_is_its_own_call_s(
    items: list[tuple[int, int, int]], data: Any, call: int
) -> None:
    asked = data.draw(st.lists(BIG, min_size=2, max_size=4))
    rows = [[(caller, number) for row, caller, number in items if row == wanted] for wanted in range(3)]
    places = [
        [caller for caller, _ in row[at : at + len(asked)]]
        for row in rows
        for at in range(len(row))
        if [number for _, number in row[at : at + len(asked)]] == asked
    ]
    index = MadeIndex(
        [number for *_, number in items], rows=[(row, place, caller) for place, (row, caller, _) in enumerate(items)]
    )
    expected = bool(places) and not any(set(callers) == {call} for callers in places)
    assert index.has_run([outline(number) for number in asked], call) == expected


def test_parts_count_and_what_is_small_does_not() -> None:
    index = MadeIndex([["l", [7, 70_001, "x", "a word", None, ["f", (0.125).hex()]]]], [(3, 0)])
    for part in (70_001, "a word", ["f", (0.125).hex()]):
        assert index.elsewhere(outline(part), 4) and not index.elsewhere(outline(part), 3)
        assert index.elsewhere(outline(part), UNKNOWN_CALL)
    for part in (7, "x", None):
        assert not index.elsewhere(outline(part), 4)
    assert not MadeIndex() and index
