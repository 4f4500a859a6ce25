"""Values that a candidate's process made up: comparing them raises nothing, takes no time, and is never true."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.expected import ExpectedValue, matches

DEEP = json.loads("[" * 900 + "]" * 900)
HOSTILE: list[Any] = [
    None, float("inf"), float("nan"), 10**400, {"a": 1}, {}, [], [[]], DEEP, ["l", DEEP], ["t", DEEP], "\ud800",
    "x" * 1_000_000, ["D", "1e999999999"], ["D", "-1e-999999999"], ["D", "sNaN"], ["D", "1" * 40_000], ["D", 5],
    ["Q", 1, 0], ["Q", "1", "2"], ["Q", 10**4000, 3], ["i", "f" * 100_000], ["i", "zz"], ["i", 5], ["f", "nan"],
    ["f", "0x1p99999"], ["f", 5], ["j", "nan", "inf"], ["b", "zz"], ["b", None], ["s", "ff"], ["l", None], ["l", 5],
    ["l", {"a": 1}], ["d", [[1]]], ["d", [[["l", [1]], 2]]], ["d", 5], ["S", [["l", [1]]]], ["S", [{"a": 1}]],
    ["O", [1, 2]], ["r", 0, 10**30, 1], ["r", 0, 5, 0], ["sl", [0]], ["E", ["builtins.object"] * 100, []],
    ["E", 5, []], ["E", [{}], []], ["dt", 5], ["dt", "x"], ["td", float("inf"), 0, 0], ["td", 10**30, 0, 0], ["tm"],
    ["dd", [1, 2, 3]], ["T", {}], ["q", [1]],
]  # fmt: skip
WRAPPED: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: ["l", [value, 1]],
    lambda value: ["S", [value, 2]],
    lambda value: ["d", [[value, 2]]],
    lambda value: ["d", [["a", value]]],
    lambda value: ["Q", value, 2],
    lambda value: ["j", value, value],
    lambda value: ["sl", [value, value, value]],
    lambda value: ["r", value, value, value],
    lambda value: ["E", value, value],
    lambda value: ["dt", value, value, value],
]
WANTED: list[tuple[Kind, Any]] = [
    *((Kind.EQUAL, value) for value in (
        1, 0.5, "x", ["D", "1.5"], ["Q", 1, 3], ["l", [1, 2]], ["S", [1, 2]], ["d", [[1, 2]]], ["O", [[1, 2]]],
        ["b", "00"], ["r", 0, 5, 1], ["dt", 2020, 1, 1, 0, 0, 0, 0], ["T", "a.b"], ["j", "0x1p1", "0x1p1"],
        ["sl", [1, 2, 3]], ["s", "eda080"], ["i", "ffffffffffffff"],
    )),
    (Kind.IDENTICAL, True), (Kind.MULTISET, ["l", [1, 2, ["l", [3]]]]), (Kind.SEQUENCE, ["l", [1, 5]]),
    (Kind.CLOSE, ["f", "0x1p3"]), (Kind.CLOSE, ["l", [1, 5]]), (Kind.CLOSE, ["d", [["a", 1]]]),
    (Kind.RAISES, ["l", [["T", "builtins.ValueError"]]]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wanted"), WANTED)
def test_made_up_values_match_nothing(kind: Kind, wanted: Any) -> None:
    expected = ExpectedValue(
        point="a", occurrence=0, kind=kind, value=json.dumps(wanted), tolerance=(1e-6, 1e-12)
    )  # fmt: skip
    for wrap in WRAPPED:
        for value in HOSTILE:
            started_s = time.process_time()
            assert not matches(expected, wrap(value)), (wrap(0), str(value)[:60])
            assert time.process_time() - started_s < 2.0, (wrap(0), str(value)[:60])
