"""How much a forger must guess.

Whoever controls the candidate's process can report any value. What keeps a forger from being paid is that the right
values are not there to be read, so a grader states how many bits its voting values are worth. The estimate is on the
low side: a value counts once however often it is expected, nothing if it can be seen, and little if it is made of
what can be seen or if many values would do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.codec import children, number_of
from ropewalk.reward.values.visible import (
    SEPARATOR,
    Visible,
    in_order,
    items_of,
    outline,
    plain_number,
)

GUESS_BITS_MIN: Final = 10.0
"""A grader below this is refused: one forgery in a thousand would be paid."""
_VALUE_BITS_MAX = 40.0
_TEXT_BITS_MAX = 24.0
_NEAR_BITS = 2.0
"""Of a value that is part of something visible, or one trivial step away from it."""
_NEAR_BITS_ALL = 6.0
"""Of all such values together: one trivial function may yield them all."""
_PIECE_BITS = 3.0
"""Of a stretch that stands somewhere in what is visible."""
_PIECE_TEXT_MIN = 3
_PIECE_ITEMS_MIN = 2
_LOOKED_AT_MAX = 200


class Telling(NamedTuple):
    """A value that the broken source gets wrong."""

    kind: Kind
    value: Any
    """Encoded expected value."""
    tolerance: tuple[float, ...] = ()


def guess_bits(values: Iterable[Telling], visible: Visible) -> float:
    """Bits of all values together."""
    held: set[str] = set()
    near: dict[str, float] = {}
    far: dict[str, float] = {}
    for telling in values:
        if telling.kind in (Kind.TRUTH, Kind.RAISES):
            # Everybody knows the answer to the one, and an exception may be of many types at once.
            held.add(telling.kind)
            continue
        name = outline(telling.value)
        if name in visible.wholes:
            continue
        bits, is_near = _worth(telling, visible)
        kept = near if is_near else far
        kept[name] = min(bits, kept.get(name, bits))
    easy = sum(bits for name, bits in near.items() if name not in far)
    return len(held) + min(easy, _NEAR_BITS_ALL) + sum(min(bits, near.get(name, bits)) for name, bits in far.items())


def _worth(telling: Telling, visible: Visible) -> tuple[float, bool]:
    """Bits, and whether the value is a step away from what is visible."""
    value = telling.value
    if telling.kind == Kind.CLOSE:
        return _close_bits(value, telling.tolerance, visible), False
    is_near = outline(value) in visible.near
    if telling.kind == Kind.MULTISET:
        ordered = ["l", in_order(items_of(value))]
        is_near = is_near or outline(ordered) in visible.wholes or outline(ordered) in visible.near
    bits = _bits(value, visible)
    return (min(bits, _NEAR_BITS), True) if is_near and bits > 1.0 else (bits, False)


def _close_bits(value: Any, tolerance: tuple[float, ...], visible: Visible) -> float:
    """The room that the value may be in against the room that will do."""
    number = plain_number(value)
    if number is None:
        inner = children(value)
        if not inner:
            return _bits(value, visible)
        parts = {outline(part): _close_bits(part, tolerance, visible) for part in inner}
        return min(sum(parts.values()), _VALUE_BITS_MAX)
    relative, absolute = tolerance if len(tolerance) == 2 else (0.0, 0.0)
    margin = max(relative * abs(number), absolute)
    if any(abs(number - seen) <= margin for seen in visible.numbers):
        return 0.0
    rounded = round(number)
    bits = _bits(value, visible)
    if abs(number - rounded) <= margin:
        bits = min(bits, _bits(rounded, visible))
    if margin == 0.0:
        return bits
    return min(bits, max(0.0, math.log2(max(abs(number), margin) / margin) - 1.0))


def _bits(value: Any, visible: Visible) -> float:
    number = number_of(value)
    if isinstance(number, bool) or value is None:
        return 1.0
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int):
        return min(number.bit_length() + 1.0, 4.0 if abs(number) <= 1_000 else 24.0)
    if number is not None:
        return 8.0
    if isinstance(value, str):
        return _text_bits(value, visible)
    tag = value[0]
    if tag == "b" or tag == "s":
        return min(2.0 * len(value[1]), _TEXT_BITS_MAX) or 1.0
    if tag in ("T", "c"):
        return 2.0
    if tag == "r":
        return sum({outline(part): _part_bits(part, visible) for part in value[1:]}.values())
    inner = children(value)
    if not inner and tag in ("dt", "dd", "tm", "td"):
        return 12.0
    # Equal parts tell nothing new.
    bits = 1.0 + sum({outline(part): _part_bits(part, visible) for part in inner}.values())
    return min(bits, _run_bits(value, visible), _VALUE_BITS_MAX)


def _part_bits(part: Any, visible: Visible) -> float:
    name, bits = outline(part), _bits(part, visible)
    return min(bits, _NEAR_BITS) if name in visible.wholes or name in visible.near else bits


def _text_bits(text: str, visible: Visible) -> float:
    bits, at, low = 0.0, 0, text.lower()[:_LOOKED_AT_MAX]
    while at < len(low) and bits < _TEXT_BITS_MAX:
        length = _longest(low, at, visible.text)
        if length >= _PIECE_TEXT_MIN:
            bits, at = bits + _PIECE_BITS, at + length
        else:
            bits, at = bits + 4.0, at + 1
    return min(bits, _TEXT_BITS_MAX) or 1.0


def _longest(text: str, at: int, within: str) -> int:
    """Length of the longest stretch from there that stands within a text."""
    low, high = 0, 1
    while at + high <= len(text) and text[at : at + high] in within:
        low, high = high, high * 2
    high = min(high, len(text) - at + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if text[at : at + middle] in within:
            low = middle
        else:
            high = middle
    return low


def _run_bits(value: Any, visible: Visible) -> float:
    """Bits of a sequence put together from stretches of visible ones."""
    items = items_of(value)[:_LOOKED_AT_MAX]
    if len(items) < _PIECE_ITEMS_MIN:
        return _VALUE_BITS_MAX
    names = [outline(item) for item in items]
    bits, at = 1.0, 0
    while at < len(items) and bits < _VALUE_BITS_MAX:
        length = _PIECE_ITEMS_MIN - 1
        while at + length < len(items) and _stretch(names[at : at + length + 1]) in visible.runs:
            length += 1
        if length >= _PIECE_ITEMS_MIN:
            bits += _PIECE_BITS
        else:
            bits += _part_bits(items[at], visible)
        at += length
    return bits


def _stretch(names: list[str]) -> str:
    return f"{SEPARATOR}{SEPARATOR.join(names)}{SEPARATOR}"
