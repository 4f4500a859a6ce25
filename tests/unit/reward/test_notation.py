"""How encoded values are shown to people."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.reward.values.encode import encode
from ropewalk.reward.values.notation import notation

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**52), 2**52) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
def test_what_is_plain_looks_as_python_writes_it(value: Any) -> None:
    assert notation(encode(value)) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([3.0, (1,), set()], "[3.0, (1,), set()]"),
        (2**70, hex(2**70)),
        (2j, "2j"),
        (decimal.Decimal("1.50"), "Decimal('1.50')"),
        (fractions.Fraction(1, 3), "Fraction(1, 3)"),
        ("\ud800", r"'\ud800'"),
        ({5}, "{5}"),
        (collections.deque([1]), "[1]"),
        (range(3), "range(0, 3, 1)"),
        (slice(1, None), "slice(1, None, None)"),
        (int, "builtins.int"),
        (object(), "<builtins.object>"),
    ],
)
def test_everything_else_is_told_in_words(value: Any, text: str) -> None:
    assert notation(encode(value)) == text


def test_dates_have_their_tag_and_what_is_no_value_says_so() -> None:
    assert "2024" in notation(encode(datetime.date(2024, 2, 3)))
    deep: Any = 1
    for _ in range(60):
        deep = ["l", [deep]]
    assert "…" in notation(deep)
    assert [notation(value) for value in ([], ["f", "x"], ["d", [1]], [["l"]])] == ["…"] * 4
