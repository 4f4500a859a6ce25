"""Values of builtin types as plain JSON, without calling a method that the value's own class could have overridden.

Stand-alone: this file runs inside sandboxes, with nothing of Ropewalk beside it. What it says there is hearsay: the
reader (`ropewalk.reward.values.codec`) trusts no byte of it. Format: docs/design/formats/values.md.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
from collections.abc import Callable, Iterable
from typing import Any

DEPTH_MAX = 24
NODES_MAX = 20_000
BYTES_MAX = 262_144
_EXACT_MAX = 2**53
_DIGITS_BITS_MAX = 100_000


class _TooLarge(Exception):
    pass


def encode(value: Any) -> Any:
    """The value as JSON-ready data; `["o", type, why]` where it is not plain data or is too large."""
    try:
        plain = _encode(value, 0, [0])
        if isinstance(plain, (list, str)) and len(json.dumps(plain)) > BYTES_MAX:
            raise _TooLarge
        return plain
    except _TooLarge:
        return ["o", type_name(type(value)), "too large"]


def type_name(kind: type) -> str:
    """`module.qualname`, from the type's own slots, not from attributes that a metaclass could fake."""
    module = type.__dict__["__module__"].__get__(kind)
    name = type.__dict__["__qualname__"].__get__(kind)
    return f"{module}.{name}"[:200] if isinstance(module, str) else str(name)[:200]


def encode_text(text: str) -> Any:
    """A string; `["s", hex]` where it holds surrogates, which JSON cannot carry everywhere."""
    text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return ["s", text.encode("utf-8", "surrogatepass").hex()]
    return text


def _encode(value: Any, depth: int, count: list[int]) -> Any:
    count[0] += 1
    if depth > DEPTH_MAX or count[0] > NODES_MAX:
        raise _TooLarge
    if value is None or value is True or value is False:
        return value
    for kind in type.mro(type(value)) if type(type(value)) is type else type(value).__mro__:
        encoder = _ENCODERS.get(kind)
        if encoder is not None:
            return encoder(value, depth, count)
    if isinstance(value, type):
        return ["T", type_name(value)]
    if value is Ellipsis or value is NotImplemented:
        return ["c", repr(value)]
    return ["o", type_name(type(value)), ""]


def _int(value: Any, _depth: int, _count: list[int]) -> Any:
    value = int.__int__(value)
    if -_EXACT_MAX < value < _EXACT_MAX:
        return value
    if value.bit_length() > _DIGITS_BITS_MAX:
        raise _TooLarge
    return ["i", hex(value)]


def _float(value: Any, _depth: int, _count: list[int]) -> Any:
    return ["f", float.hex(float.__float__(value))]


def _complex(value: Any, depth: int, count: list[int]) -> Any:
    value = complex.__complex__(value)
    return ["j", float.hex(value.real), float.hex(value.imag)]


def _items(values: Iterable[Any], depth: int, count: list[int]) -> list[Any]:
    return [_encode(item, depth + 1, count) for item in values]


def _unordered(values: Iterable[Any], depth: int, count: list[int]) -> list[Any]:
    return sorted(_items(values, depth, count), key=lambda item: json.dumps(item, sort_keys=True))


def _pairs(pairs: Iterable[tuple[Any, Any]], depth: int, count: list[int]) -> list[Any]:
    return [[_encode(key, depth + 1, count), _encode(item, depth + 1, count)] for key, item in pairs]


def _decimal(value: Any, _depth: int, _count: list[int]) -> Any:
    text = decimal.Decimal.__str__(value)
    if len(text) > 2000:
        raise _TooLarge
    return ["D", text]


def _fraction(value: Any, depth: int, count: list[int]) -> Any:
    return ["Q", _int(value._numerator, depth, count), _int(value._denominator, depth, count)]


def _datetime(value: Any, _depth: int, _count: list[int]) -> Any:
    if value.tzinfo is not None and value.tzinfo is not datetime.UTC:
        return ["o", "datetime.datetime", "time zone"]
    return ["dt", datetime.datetime.isoformat(value)]


def _time(value: Any, _depth: int, _count: list[int]) -> Any:
    if value.tzinfo is not None:
        return ["o", "datetime.time", "time zone"]
    return ["tm", datetime.time.isoformat(value)]


def _exception(value: Any, depth: int, count: list[int]) -> Any:
    names = [type_name(kind) for kind in type(value).__mro__ if kind is not object]
    arguments = BaseException.__dict__["args"].__get__(value)
    return ["E", names, _items(tuple.__iter__(arguments), depth, count)]


_ENCODERS: dict[type, Callable[[Any, int, list[int]], Any]] = {
    int: _int,
    float: _float,
    complex: _complex,
    str: lambda value, depth, count: encode_text(value),
    bytes: lambda value, depth, count: ["b", bytes.hex(bytes.__getitem__(value, slice(None)))],
    bytearray: lambda value, depth, count: ["b", bytearray.hex(value)],
    list: lambda value, depth, count: ["l", _items(list.__iter__(value), depth, count)],
    tuple: lambda value, depth, count: ["t", _items(tuple.__iter__(value), depth, count)],
    set: lambda value, depth, count: ["S", _unordered(set.__iter__(value), depth, count)],
    frozenset: lambda value, depth, count: ["S", _unordered(frozenset.__iter__(value), depth, count)],
    collections.deque: lambda value, depth, count: ["q", _items(collections.deque.__iter__(value), depth, count)],
    collections.OrderedDict: lambda value, depth, count: [
        "O",
        _pairs(collections.OrderedDict.items(value), depth, count),
    ],
    dict: lambda value, depth, count: ["d", _pairs(dict.items(value), depth, count)],
    range: lambda value, depth, count: [
        "r",
        *(_int(part, depth, count) for part in (value.start, value.stop, value.step)),
    ],
    slice: lambda value, depth, count: ["sl", _items((value.start, value.stop, value.step), depth, count)],
    decimal.Decimal: _decimal,
    fractions.Fraction: _fraction,
    datetime.datetime: _datetime,
    datetime.date: lambda value, depth, count: ["dd", datetime.date.isoformat(value)],
    datetime.time: _time,
    datetime.timedelta: lambda value, depth, count: ["td", value.days, value.seconds, value.microseconds],
    BaseException: _exception,
}
