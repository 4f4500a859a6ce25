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

_NUMBER_TEXT_MAX = 40_000
_ROOM_MIN = 2_000
_KEY_NODES_MAX = 2_000
_BASES_MAX = 64
_SEQUENCES = frozenset({"l", "t", "q", "sl"})
_NAN = ("nan",)


class MalformedValueError(ValueError):
    """Not an encoded value, or one too large to be compared."""


def same(expected: Any, actual: Any) -> bool:
    """Whether the actual value equals the expected one. Never raises on account of `actual`."""
    try:
        return _same(expected, actual)
    except (MalformedValueError, ArithmeticError, ValueError, TypeError, RecursionError):
        return False


def same_multiset(expected: Any, actual: Any) -> bool:
    """Whether two sequences hold equal elements equally often (`assertCountEqual`)."""
    left, right = _elements(expected), _elements(actual)
    if left is None or right is None or len(left) != len(right):
        return False
    rest = list(right)
    for item in left:
        for index, other in enumerate(rest):
            if same(item, other):
                del rest[index]
                break
        else:
            return False
    return True


def close(expected: Any, actual: Any, *, relative: float, absolute: float) -> bool:
    """Whether numbers, or containers of numbers, are equal within a tolerance (`pytest.approx`)."""
    try:
        return _close(expected, actual, relative, absolute)
    except (MalformedValueError, ArithmeticError, ValueError, TypeError, RecursionError):
        return False


def exception_names(value: Any) -> tuple[str, ...]:
    """Names of an encoded exception's type and its bases, nearest first; empty for anything else."""
    if _tag(value) == "E" and len(value) == 3 and isinstance(value[1], list):
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
    tag = _tag(value)
    if tag in ("o", "E"):
        return False
    return all(is_plain(child) for child in children(value))


def children(value: Any) -> list[Any]:
    """The encoded values directly inside one; keys and values for a dictionary."""
    tag = _tag(value)
    if tag in _SEQUENCES or tag == "S":
        return list(value[1])
    if tag in ("d", "O"):
        return [child for pair in value[1] for child in pair]
    return []


def _tag(value: Any) -> str:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else ""


def _same(expected: Any, actual: Any) -> bool:
    number = number_of(expected)
    if number is not None:
        other = number_of(actual, text_max=_room_for(expected))
        return other is not None and _numbers_equal(number, other)
    tag = _tag(expected)
    if not tag:
        return bool(type(expected) is type(actual) and expected == actual)
    other_tag = _tag(actual)
    if tag in ("d", "O"):
        if other_tag not in ("d", "O"):
            return False
        pairs, others = _pairs(expected), _pairs(actual)
        if tag == other_tag == "O":
            return _all_same([part for pair in pairs for part in pair], [part for pair in others for part in pair])
        return _same_pairs(pairs, others)
    if tag != other_tag or tag in ("o", "E"):
        return False
    if tag in _SEQUENCES:
        return _all_same(_body(expected), _body(actual))
    if tag == "S":
        return _same_pairs([(item, None) for item in _body(expected)], [(item, None) for item in _body(actual)])
    if tag == "r":
        return _range(expected) == _range(actual)
    return bool(expected == actual)


def _all_same(expected: list[Any], actual: list[Any]) -> bool:
    return len(expected) == len(actual) and all(map(_same, expected, actual))


def _same_pairs(expected: list[tuple[Any, Any]], actual: list[tuple[Any, Any]]) -> bool:
    # Only trusted keys enter a hash table: keys from outside could be chosen to collide.
    if len(expected) != len(actual):
        return False
    table = {hashable(key): value for key, value in expected}
    for key, value in actual:
        place = hashable(key)
        if place not in table or not _same(table.pop(place), value):
            return False
    return not table


def _body(value: list[Any]) -> list[Any]:
    if len(value) != 2 or not isinstance(value[1], list):
        raise MalformedValueError(_tag(value))
    return value[1]


def _pairs(value: list[Any]) -> list[tuple[Any, Any]]:
    pairs = _body(value)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise MalformedValueError("pairs")
    return [(pair[0], pair[1]) for pair in pairs]


def _elements(value: Any) -> list[Any] | None:
    tag = _tag(value)
    if (tag in _SEQUENCES or tag == "S") and len(value) == 2 and isinstance(value[1], list):
        return value[1]
    if tag in ("d", "O"):
        try:
            return [key for key, _ in _pairs(value)]
        except MalformedValueError:
            return None
    return list(value) if isinstance(value, str) else None


def _range(value: list[Any]) -> range:
    if len(value) != 4:
        raise MalformedValueError("range")
    parts = [number_of(part) for part in value[1:]]
    if not all(type(part) is int for part in parts):
        raise MalformedValueError("range")
    return range(*parts)  # type: ignore[arg-type]


def number_of(value: Any, *, text_max: int = _NUMBER_TEXT_MAX) -> Number | None:
    """The number that an encoded value stands for, or None for anything else.

    Raises:
        MalformedValueError: it claims to be a number and is none, or a needlessly long one.
    """
    if isinstance(value, (bool, int)):
        return value
    tag = _tag(value)
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


def _room_for(expected: Any) -> int:
    """How long a number's text may be to be compared with the expected one: long ones are costly."""
    return max(_ROOM_MIN, 2 * len(str(expected)))


def _fraction(top: Any, bottom: Any) -> Fraction:
    parts = [int(part[1], 16) if isinstance(part, list) and len(part) == 2 else part for part in (top, bottom)]
    if not all(type(part) is int for part in parts):
        raise MalformedValueError("fraction")
    return Fraction(parts[0], parts[1])


def _numbers_equal(left: Number, right: Number) -> bool:
    return (_is_nan(left) and _is_nan(right)) or left == right


def _is_nan(value: Number) -> bool:
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
        return _NAN if _is_nan(number) else number
    tag = _tag(value)
    if not tag:
        return ("plain", value) if value is None or isinstance(value, str) else _unhashable()
    if tag == "t":
        return (tag, *(_hashable(item, count) for item in _body(value)))
    if tag == "S":
        return (tag, frozenset(_hashable(item, count) for item in _body(value)))
    if tag == "r":
        span = _range(value)
        return (tag, len(span), span.start if span else None, span.step if len(span) > 1 else None)
    if tag in ("l", "d", "O", "q", "o", "E", "sl"):
        return _unhashable()
    if all(isinstance(part, (str, int)) for part in value):
        return tuple(value)
    return _unhashable()


def _unhashable() -> Hashable:
    raise MalformedValueError("not hashable")


def _close(expected: Any, actual: Any, relative: float, absolute: float) -> bool:
    number = number_of(expected)
    if number is not None:
        other = number_of(actual, text_max=_room_for(expected))
        if other is None or isinstance(number, bool) or isinstance(other, bool):
            return other is not None and _numbers_equal(number, other)
        if _numbers_equal(number, other):
            return True
        left, right = complex(number), complex(other)
        if not all(math.isfinite(part) for part in (left.real, left.imag, right.real, right.imag)):
            return False
        return abs(left - right) <= max(relative * abs(left), absolute)
    tag = _tag(expected)
    if tag in _SEQUENCES:
        if _tag(actual) != tag:
            return False
        left_items, right_items = _body(expected), _body(actual)
        return len(left_items) == len(right_items) and all(
            _close(left, right, relative, absolute) for left, right in zip(left_items, right_items, strict=True)
        )
    if tag in ("d", "O") and _tag(actual) in ("d", "O"):
        table = {hashable(key): item for key, item in _pairs(expected)}
        others = _pairs(actual)
        return len(table) == len(others) and all(
            (place := hashable(key)) in table and _close(table.pop(place), item, relative, absolute)
            for key, item in others
        )
    return _same(expected, actual)
