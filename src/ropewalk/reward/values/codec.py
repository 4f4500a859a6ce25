"""Compares encoded values where candidate code never ran.

Both sides are JSON from `encode.py`. The expected side was recorded in trusted runs; the actual side comes from a
hostile process and may be anything. The walk follows the expected side, so its cost is bounded by that alone, and
what is malformed on the actual side equals nothing.

Equality is Python's `==` among builtin types: 1, 1.0, True and Decimal(1) are equal, a list never equals a tuple, a
set equals a frozenset, dictionaries ignore order (two OrderedDicts do not). One departure: NaN equals NaN, since
identity, by which Python lets `[nan] == [nan]` pass, does not travel.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Hashable
from decimal import Decimal
from fractions import Fraction
from typing import Any

Number = int | float | complex | Decimal | Fraction

NUMBER_TEXT_MAX = 40_000
_ROOM_MIN = 2_000
_KEY_NODES_MAX = 2_000
_BASES_MAX = 64
SEQUENCES = frozenset({"l", "t", "q", "sl"})
_KEYLESS = frozenset({"l", "t", "S", "d", "O", "q", "o", "E", "sl"})
NAN = ("nan",)
WORK_MAX = 8_000_000
"""A grading's output holds half as many values at most."""
_TEXT_OF_A_VISIT = 64


class MalformedValueError(ValueError):
    """Not an encoded value, or one too large to be compared."""


class TooMuchWorkError(Exception):
    """Comparing takes more than is allowed for one judgement."""


class Work:
    """What comparing may cost, in visited values: one for all comparisons of a judgement."""

    def __init__(self, most: int = WORK_MAX) -> None:
        self._left = most

    def spend(self, count: int = 1) -> None:
        """Counts visits.

        Raises:
            TooMuchWorkError: there are none left.
        """
        self._left -= count
        if self._left < 0:
            raise TooMuchWorkError("more to compare than is allowed")

    def visit(self, value: Any) -> None:
        """Counts one value, a long number as several.

        Raises:
            TooMuchWorkError: see `spend`.
        """
        text = value[1] if isinstance(value, list) and len(value) > 1 else ""
        self.spend(1 + (len(text) // _TEXT_OF_A_VISIT if isinstance(text, str) else 0))


def same(expected: Any, actual: Any, work: Work | None = None) -> bool:
    """Whether the actual value equals the expected one. Never raises on account of `actual` alone.

    Raises:
        TooMuchWorkError: `work` is used up.
    """
    try:
        return _same(expected, actual, work or Work())
    except (MalformedValueError, ArithmeticError, ValueError, TypeError, RecursionError):
        return False


def close(expected: Any, actual: Any, *, relative: float, absolute: float, work: Work | None = None) -> bool:
    """Whether numbers, or containers of numbers, are equal within a tolerance (`pytest.approx`).

    Raises:
        TooMuchWorkError: `work` is used up.
    """
    try:
        return _close(expected, actual, (relative, absolute), work or Work())
    except (MalformedValueError, ArithmeticError, ValueError, TypeError, RecursionError):
        return False


def exception_names(value: Any) -> tuple[str, ...]:
    """Names of an encoded exception's type and its bases, nearest first; empty for anything else."""
    if tag_of(value) == "E" and len(value) == 3 and isinstance(value[1], list):
        return tuple(name for name in value[1] if isinstance(name, str))
    return ()


def is_lineage(names: tuple[str, ...]) -> bool:
    """Whether a type can have these bases: none twice, each builtin one followed by all of its own bases."""
    if len(set(names)) != len(names) or len(names) > _BASES_MAX:
        return False
    for at, name in enumerate(names):
        kind = getattr(builtins, name.removeprefix("builtins."), None) if name.startswith("builtins.") else None
        if not isinstance(kind, type):
            continue
        if not {f"builtins.{base.__name__}" for base in kind.__mro__[1:-1]} <= set(names[at + 1 :]):
            return False
    return True


def is_plain(value: Any) -> bool:
    """Whether a trusted encoded value can be compared at all: nothing opaque and no exception in it."""
    tag = tag_of(value)
    if tag in ("o", "E"):
        return False
    return all(is_plain(child) for child in children(value))


def children(value: Any) -> list[Any]:
    """The encoded values directly inside one; keys and values for a dictionary."""
    tag = tag_of(value)
    if tag in SEQUENCES or tag == "S":
        return list(value[1])
    if tag in ("d", "O"):
        return [child for pair in value[1] for child in pair]
    return []


def tag_of(value: Any) -> str:
    """What kind of encoded value it is; empty for plain ones."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else ""


def _same(expected: Any, actual: Any, work: Work) -> bool:
    work.visit(actual)
    number = number_of(expected)
    if number is not None:
        other = number_of(actual, text_max=room_of(len(str(expected))))
        return other is not None and _numbers_equal(number, other)
    tag = tag_of(expected)
    if not tag:
        return bool(type(expected) is type(actual) and expected == actual)
    other_tag = tag_of(actual)
    if tag in ("d", "O"):
        if other_tag not in ("d", "O"):
            return False
        pairs, others = pairs_of(expected), pairs_of(actual)
        if tag == other_tag == "O":
            mine, theirs = ([part for pair in both for part in pair] for both in (pairs, others))
            return _all_same(mine, theirs, work)
        return _same_pairs(pairs, others, work)
    if tag != other_tag or tag in ("o", "E"):
        return False
    if tag in SEQUENCES:
        return _all_same(body_of(expected), body_of(actual), work)
    if tag == "S":
        items, others = ([(item, None) for item in body_of(value)] for value in (expected, actual))
        return _same_pairs(items, others, work)
    if tag == "r":
        return range_of(expected) == range_of(actual)
    return bool(expected == actual)


def _all_same(expected: list[Any], actual: list[Any], work: Work) -> bool:
    return len(expected) == len(actual) and all(
        _same(item, other, work) for item, other in zip(expected, actual, strict=True)
    )


def _same_pairs(expected: list[tuple[Any, Any]], actual: list[tuple[Any, Any]], work: Work) -> bool:
    # Only trusted keys enter a hash table: keys from outside could be chosen to collide.
    if len(expected) != len(actual):
        return False
    work.spend(len(expected))
    table = {hashable(key): value for key, value in expected}
    for key, value in actual:
        place = hashable(key)
        if place not in table or not _same(table.pop(place), value, work):
            return False
    return not table


def body_of(value: list[Any]) -> list[Any]:
    """What an encoded container holds.

    Raises:
        MalformedValueError: it is none.
    """
    if len(value) != 2 or not isinstance(value[1], list):
        raise MalformedValueError(tag_of(value))
    return value[1]


def pairs_of(value: list[Any]) -> list[tuple[Any, Any]]:
    """What an encoded dictionary holds.

    Raises:
        MalformedValueError: it is none.
    """
    pairs = body_of(value)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise MalformedValueError("pairs")
    return [(pair[0], pair[1]) for pair in pairs]


def range_of(value: list[Any]) -> range:
    """An encoded range.

    Raises:
        MalformedValueError: it is none.
    """
    if len(value) != 4:
        raise MalformedValueError("range")
    parts = [number_of(part) for part in value[1:]]
    if not all(type(part) is int for part in parts):
        raise MalformedValueError("range")
    return range(*parts)  # type: ignore[arg-type]


def number_of(value: Any, *, text_max: int = NUMBER_TEXT_MAX) -> Number | None:
    """The number that an encoded value stands for, or None for anything else.

    Raises:
        MalformedValueError: it claims to be a number and is none, or a needlessly long one.
    """
    if isinstance(value, (bool, int)):
        return value
    tag = tag_of(value)
    if tag not in ("i", "f", "j", "D", "Q"):
        return None
    texts = value[1:]
    if any(not isinstance(text, (str, int, list)) or len(str(text)) > text_max for text in texts):
        raise MalformedValueError(tag)
    try:
        match tag, texts:
            case "i", [str(text)]:
                return int(text, 16)
            case "f", [str(text)]:
                return float.fromhex(text)
            case "j", [str(real), str(imaginary)]:
                return complex(float.fromhex(real), float.fromhex(imaginary))
            case "D", [str(text)]:
                return Decimal(text)
            case "Q", [top, bottom]:
                return _fraction(top, bottom)
    except (ValueError, ArithmeticError) as error:
        raise MalformedValueError(tag) from error
    raise MalformedValueError(tag)


def room_of(length: int) -> int:
    """How long a number's text may be to be compared with one of that length: long ones are costly."""
    return max(_ROOM_MIN, 2 * length)


def _fraction(top: Any, bottom: Any) -> Fraction:
    parts = [int(part[1], 16) if isinstance(part, list) and len(part) == 2 else part for part in (top, bottom)]
    if not all(type(part) is int for part in parts):
        raise MalformedValueError("fraction")
    return Fraction(parts[0], parts[1])


def _numbers_equal(left: Number, right: Number) -> bool:
    return (is_nan(left) and is_nan(right)) or left == right


def is_nan(value: Number) -> bool:
    """Whether it, or a part of it, is not a number."""
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, complex):
        return math.isnan(value.real) or math.isnan(value.imag)
    return isinstance(value, float) and math.isnan(value)


def hashable(value: Any) -> Hashable:
    """Equal for equal encoded values of hashable types.

    Raises:
        MalformedValueError: the type is not hashable, or the key is too large.
    """
    return _hashable(value, [0])


def _hashable(value: Any, count: list[int]) -> Hashable:
    count[0] += 1
    if count[0] > _KEY_NODES_MAX:
        raise MalformedValueError("key")
    number = number_of(value)
    if number is not None:
        return NAN if is_nan(number) else number
    tag = tag_of(value)
    if tag == "t":
        return (tag, *(_hashable(item, count) for item in body_of(value)))
    if tag == "S":
        return (tag, frozenset(_hashable(item, count) for item in body_of(value)))
    return plain_key(value)


def plain_key(value: Any) -> Hashable:
    """`hashable` for what is neither number nor container.

    Raises:
        MalformedValueError: it is one, or equals nothing.
    """
    tag = tag_of(value)
    if not tag and (value is None or isinstance(value, str)):
        return ("plain", value)
    if tag == "r":
        span = range_of(value)
        return (tag, len(span), span.start if span else None, span.step if len(span) > 1 else None)
    if not tag or tag in _KEYLESS or not all(isinstance(part, (str, int)) for part in value):
        raise MalformedValueError("not hashable")
    return tuple(value)


def _close(expected: Any, actual: Any, margins: tuple[float, float], work: Work) -> bool:
    work.visit(actual)
    number = number_of(expected)
    if number is not None:
        other = number_of(actual, text_max=room_of(len(str(expected))))
        if other is None or isinstance(number, bool) or isinstance(other, bool):
            return other is not None and _numbers_equal(number, other)
        if _numbers_equal(number, other):
            return True
        left, right = complex(number), complex(other)
        if not all(math.isfinite(part) for part in (left.real, left.imag, right.real, right.imag)):
            return False
        return abs(left - right) <= max(margins[0] * abs(left), margins[1])
    tag = tag_of(expected)
    if tag in SEQUENCES:
        if tag_of(actual) != tag:
            return False
        left_items, right_items = body_of(expected), body_of(actual)
        return len(left_items) == len(right_items) and all(
            _close(left, right, margins, work) for left, right in zip(left_items, right_items, strict=True)
        )
    if tag in ("d", "O") and tag_of(actual) in ("d", "O"):
        table = {hashable(key): item for key, item in pairs_of(expected)}
        others = pairs_of(actual)
        return len(table) == len(others) and all(
            (place := hashable(key)) in table and _close(table.pop(place), item, margins, work) for key, item in others
        )
    return _same(expected, actual, work)
