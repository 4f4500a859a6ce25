"""Encoded values: what survives the way, what equals what, and what a hostile sender can do about it."""

from __future__ import annotations

import collections
import datetime
import json
import math
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.reward.values.codec import TooMuchWorkError, Work, close, exception_names, is_plain, same
from ropewalk.reward.values.encode import BYTES_MAX, DEPTH_MAX, encode
from ropewalk.reward.values.multisets import same_multiset

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5),
    st.complex_numbers(allow_nan=False, max_magnitude=1e6), st.fractions(), st.decimals(allow_nan=False, places=2),
    st.dates(), st.timedeltas(), st.builds(range, st.integers(-3, 3), st.integers(-3, 3)),
)  # fmt: skip
KEYS = st.one_of(st.integers(-3, 3), st.booleans(), st.text(max_size=2), st.tuples(st.integers(0, 1)))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=3),
        st.frozensets(KEYS, max_size=3), st.sets(KEYS, max_size=3), st.lists(inner, max_size=3).map(collections.deque),
    ),
    max_leaves=8,
)  # fmt: skip


def sent(value: Any) -> Any:
    return json.loads(json.dumps(encode(value)))


@given(VALUES, VALUES)
def test_equality_is_that_of_python(left: Any, right: Any) -> None:
    assert same(sent(left), sent(right)) == (left == right)


@given(VALUES)
def test_a_value_equals_itself_after_the_way(value: Any) -> None:
    assert is_plain(sent(value))
    assert same(sent(value), sent(value))


@given(VALUES, st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.sampled_from(
        ["l", "t", "d", "O", "S", "i", "f", "j", "D", "Q", "r", "q", "b", "s", "T", "E", "o", "dt", "td", "sl"])),
    lambda inner: st.lists(inner, max_size=4), max_leaves=12,
))  # fmt: skip
def test_malformed_values_equal_nothing_and_raise_nothing(expected: Any, hostile: Any) -> None:
    wanted = sent(expected)
    same_multiset(wanted, hostile)
    close(wanted, hostile, relative=0.1, absolute=0.1)
    exception_names(hostile)
    if same(wanted, hostile):  # then it is a well-formed spelling of an equal value
        assert same(hostile, wanted)


@pytest.mark.parametrize(("left", "right", "equal"), [
    (1, 1.0, True), (True, 1, True), (Decimal("1.50"), Fraction(3, 2), True), (2**70, float(2**70), True),
    ([1], (1,), False), ({1}, frozenset({1.0}), True), ({1: 2}, {True: 2.0}, True), ("1", 1, False),
    (float("nan"), float("nan"), True), ([float("nan")], [float("nan")], True), (0.1 + 0.2, 0.3, False),
    (b"a", bytearray(b"a"), True), (range(0), range(5, 5), True), (range(0, 3, 2), range(0, 4, 2), True),
    (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1), False),
    (collections.OrderedDict(a=1, b=2), {"b": 2, "a": 1}, True), (int, int, True), (int, bool, False),
    ("\ud800", "\ud800", True), (None, False, False), (..., ..., True), (slice(1, 2), slice(1, 2), True),
])  # fmt: skip
def test_cases(left: Any, right: Any, equal: bool) -> None:
    assert same(sent(left), sent(right)) is equal


class _Liar(list):  # type: ignore[type-arg]
    def __eq__(self, other: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter([1, 2, 3])

    def __len__(self) -> int:
        return 3


class _Always:
    __class__ = dict  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


class _Number(int):
    def __int__(self) -> int:
        return 5

    def __index__(self) -> int:
        return 5


def test_what_a_class_says_about_itself_does_not_count() -> None:
    assert sent(_Liar([9])) == ["l", [9]]
    assert sent(_Number(3)) == 3
    assert sent(_Always())[0] == "o"
    assert not same(sent({}), sent(_Always()))
    assert not same(sent(_Always()), sent(_Always())), "what is opaque equals nothing, not even itself"
    assert not same(sent(ValueError("x")), sent(ValueError("x")))


def test_iterators_are_not_consumed() -> None:
    numbers = iter([1, 2])
    assert sent(numbers)[0] == "o"
    assert list(numbers) == [1, 2]


def test_values_are_bounded() -> None:
    deep: Any = 1
    for _ in range(DEPTH_MAX + 2):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)
    for value in (deep, endless, list(range(50_000)), "x" * (BYTES_MAX + 1), 1 << 10_000_000):
        assert sent(value)[0] == "o"


def test_colliding_keys_cost_nothing() -> None:
    wanted = sent(dict.fromkeys(range(20000 // 4)))
    prime = 2**61 - 1  # hash(n * prime) is 0 for every n
    hostile = ["d", [[["i", hex(number * prime)], None] for number in range(1, 5_001)]]
    assert not same(wanted, hostile)


@pytest.mark.parametrize("hostile", [
    ["f", "0x1p99999999999999999"], ["D", "1E+999999999999"], ["D", "sNaN"], ["Q", 1, 0], ["i", "9" * 1_000_000],
    ["i", "0x" + "f" * 1_000_000], ["j", "1"], ["r", 0, 1, 0], ["r", 0.5, 1, 1], ["l"], ["l", 1], ["l", [], []],
    ["d", [[1]]], ["d", {}], {"l": []}, ["S", [["l", []]]], ["t", "ab"], [[]], [], ["Q", ["i", "z"], 1],
])  # fmt: skip
def test_malformed_cases(hostile: Any) -> None:
    for value in (1, 1.5, Decimal(1), Fraction(1, 2), 1j, [], {}, {1: 1}, set(), {2}, range(3), (), "ab"):
        assert not same(sent(value), hostile)


def test_close() -> None:
    def near(left: Any, right: Any) -> bool:
        return close(sent(left), sent(right), relative=1e-6, absolute=1e-12)

    assert near(0.1 + 0.2, 0.3)
    assert near([1.0, {"a": 2.0}], [1.0000000001, {"a": 2}])
    assert not near(1.0, 1.1)
    assert not near(1.0, "1")
    assert not near(math.inf, 1e308)
    assert near(math.inf, math.inf)
    assert not near(True, 1.0000001)
    assert not near([1.0], (1.0,))


def test_multisets() -> None:
    assert same_multiset(sent([1, [2], 1.0]), sent([[2.0], 1, True]))
    assert not same_multiset(sent([1, 1, 2]), sent([1, 2, 2]))
    assert not same_multiset(sent([1]), "1")


NESTED = st.recursive(
    st.one_of(st.integers(-3, 3), st.booleans(), st.none(), st.text("ab", max_size=2), st.floats(width=16),
              st.sampled_from([Decimal("1"), Decimal("NaN"), Fraction(1, 2), 1 + 0j, range(2), range(0, 2, 1), b"a"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.integers(0, 3), inner, max_size=3), st.frozensets(st.integers(0, 3), max_size=3),
        st.lists(st.tuples(st.integers(0, 2), inner), max_size=3).map(collections.OrderedDict),
    ),
    max_leaves=6,
)  # fmt: skip


@given(st.lists(NESTED, max_size=5), st.lists(NESTED, max_size=5), st.randoms())
def test_a_multiset_is_what_comparing_each_with_each_finds(left: list[Any], other: list[Any], chance: Any) -> None:
    shuffled = list(left)
    chance.shuffle(shuffled)
    for right in (shuffled, other, [*shuffled[1:], *other[:1]]):
        rest = [encode(item) for item in right]
        for item in left:
            at = next((at for at, candidate in enumerate(rest) if same(encode(item), candidate)), None)
            if at is None:
                break
            del rest[at]
        else:
            at = 0
        wanted = len(left) == len(right) and at is not None and not rest
        assert same_multiset(sent(left), sent(right)) is wanted, (left, right)


def counted(count: int, item: Callable[[int], Any]) -> list[Any]:
    return ["l", [item(number) for number in range(count)]]


BIG_MULTISETS: dict[str, Callable[[int], Any]] = {
    "integers": lambda n: n,
    "lists": lambda n: ["l", [n, ["l", [n]]]],
    "dictionaries": lambda n: ["d", [[n, ["l", [n]]]]],
    "sets": lambda n: ["S", [n, n + 1]],
}


@pytest.mark.parametrize("kind", BIG_MULTISETS)
def test_a_multiset_costs_no_more_in_any_order(kind: str) -> None:
    """A candidate that knows all but one says them in the worst order, each number as long as it may be."""
    item = BIG_MULTISETS[kind]
    wanted = counted(4_000, lambda n: item(n + 1))
    long = counted(4_000, lambda n: ["D", f"{4_000 - n}." + "0" * 1_900] if kind == "integers" else item(4_000 - n))
    began = time.thread_time()
    assert same_multiset(wanted, long)
    long[1][-1] = item(0)
    assert not same_multiset(wanted, long)
    assert time.thread_time() - began < 5


def test_what_can_only_be_compared_pairwise_has_an_end() -> None:
    wanted = counted(6_000, lambda n: ["O", [[n, n]]])
    actual = counted(6_000, lambda n: ["O", [[5_999 - n, 5_999 - n]]])
    began = time.thread_time()
    with pytest.raises(TooMuchWorkError):
        same_multiset(wanted, actual, Work(100_000))
    assert time.thread_time() - began < 5
    assert same_multiset(counted(50, lambda n: ["O", [[n, n]]]), counted(50, lambda n: ["d", [[49 - n, 49 - n]]]))


def test_hashes_may_not_be_chosen() -> None:
    modulus = 2**61 - 1
    wanted = ["l", [["S", [0]], *range(20_000)]]
    chosen = ["l", [["S", [["i", hex(modulus * n)] for n in range(1, 20_000)]], *range(20_000)]]
    began = time.thread_time()
    assert not same_multiset(wanted, chosen)
    assert time.thread_time() - began < 2


def test_long_numbers_cost_nothing() -> None:
    big = (1 << 99_000) - 1
    fractions = ["l", [["Q", ["i", hex(number * big)], ["i", hex(big)]] for number in reversed(range(100))]]
    began = time.process_time()
    assert not same_multiset(["l", list(range(100))], fractions)
    assert not same_multiset(["l", [["D", f"{number}.5"] for number in range(100)]], ["l", [["i", hex(big)]] * 100])
    assert time.process_time() - began < 1.0
    assert same(sent(big), sent(big)) and not same(sent(big), sent(big - 1))


def test_exceptions_tell_their_bases() -> None:
    assert exception_names(sent(KeyError("k"))) == (
        "builtins.KeyError", "builtins.LookupError", "builtins.Exception", "builtins.BaseException",
    )  # fmt: skip
    assert exception_names(["E", "builtins.KeyError", []]) == ()


def test_times() -> None:
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
    assert same(sent(noon), sent(noon))
    assert not same(sent(noon), sent(noon.replace(tzinfo=None)))
    assert sent(noon.astimezone(datetime.timezone(datetime.timedelta(hours=1))))[0] == "o"
