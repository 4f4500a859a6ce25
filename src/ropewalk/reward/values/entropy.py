"""How much a forger must guess.

Whoever controls the candidate's process can report any value. What keeps a forger from being paid is that the right
values are not there to be read, so a grader states how many bits its voting values are worth. The estimate is on the
low side: a value counts once however often it is expected, nothing if it can be seen, and little if it is made of
what can be seen or if many values would do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Any, Final, NamedTuple

from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.codec import children, number_of
from ropewalk.reward.values.made import UNKNOWN_CALL
from ropewalk.reward.values.outlines import in_order, items_of, outline, plain_number, text_of
from ropewalk.reward.values.visible import Visible

GUESS_BITS_MIN: Final = 10.0
"""A grader below this is refused: one forgery in a thousand would be paid."""
_VALUE_BITS_MAX = 40.0
_TEXT_BITS_MAX = 24.0
_PART_BITS = 1.0
"""Of a part that can be seen: its place."""


class _Way(Enum):
    """How a value comes out of what is visible: bits of one such value at most, and of all of them together.

    One rule may yield them all, and a forger who finds it needs no second guess.
    """

    STEP = (2.0, 6.0)
    """By one trivial function, or as a part of something."""
    ARRANGED = (4.0, 12.0)
    """All its parts are visible; only their arrangement is not."""
    NONE = (_VALUE_BITS_MAX, math.inf)


_PIECE_BITS = 3.0
"""Of a stretch that stands somewhere in what is visible."""
_PIECE_TEXT_MIN = 3
_PIECE_ITEMS_MIN = 2
_LOOKED_AT_MAX = 200
_VISIBLE_CHARACTERS_MAX = 8 * 1024 * 1024
_VALUES_MAX = 300
"""Values that are estimated; more count nothing."""
_ENOUGH_BITS = 400.0
"""What is worth so much need not be known more exactly."""


class Telling(NamedTuple):
    """A value that the broken source gets wrong."""

    kind: Kind
    value: Any
    """Encoded expected value."""
    tolerance: tuple[float, ...] = ()
    call: int = UNKNOWN_CALL
    """The call of the source that it comes from."""


def guess_bits(values: Iterable[Telling], visible: Visible) -> float:
    """Bits of all values together; none where something that may hold them could not be looked into."""
    if visible.unopened:
        return 0.0
    if len(visible.runs) + len(visible.text) > _VISIBLE_CHARACTERS_MAX:
        return 0.0  # too much to look through, and too much to say that a value is not in it
    held: set[str] = set()
    sure = 0.0
    worth: dict[str, tuple[float, _Way]] = {}
    for telling in values:
        if telling.kind in (Kind.TRUTH, Kind.RAISES):
            # Everybody knows the answer to the one, and an exception may be of many types at once.
            held.add(telling.kind)
            continue
        name = outline(telling.value)
        if name in visible.wholes or (name not in worth and (sure >= _ENOUGH_BITS or len(worth) >= _VALUES_MAX)):
            continue
        # Whoever has to guess it once has it from then on, and all of them have to be right.
        found = _worth(telling, visible)
        worth[name] = max(found, worth.get(name, found), key=lambda one: one[0])
        sure = sum(bits for bits, way in worth.values() if way is _Way.NONE)
    bits = float(len(held))
    for way in _Way:
        bits += min(sum(each for each, how in worth.values() if how is way), way.value[1])
    return bits


def why_worth_little(telling: Telling, visible: Visible) -> str:
    """What makes a value easy to guess, for people."""
    if telling.kind is Kind.TRUTH:
        return "it only has to hold"
    if telling.kind is Kind.RAISES:
        return "an exception's type can be guessed"
    if outline(telling.value) in visible.wholes:
        return "it stands in the source, in what that computes, or in what the policy is shown"
    bits, way = _worth(telling, visible)
    told = {
        _Way.STEP: "it is one step away from what is seen there",
        _Way.ARRANGED: "all its parts are seen there",
        _Way.NONE: "it is short or small",
    }
    return f"{told[way]}, {bits:.0f} bits"


def _worth(telling: Telling, visible: Visible) -> tuple[float, _Way]:
    """Bits of one value that is not visible as it stands."""
    value, visible = telling.value, replace(visible, call=telling.call)
    if telling.kind == Kind.CLOSE:
        return _close_bits(value, telling.tolerance, visible), _Way.NONE
    way = _Way.NONE
    names = [outline(value)]
    if telling.kind == Kind.MULTISET:
        names.append(outline(["l", in_order(items_of(value))]))
    stands = any(name in visible.wholes or visible.is_near(name) for name in names)
    if stands or _is_wrapped(value, visible) or _is_stretch(value, visible):
        way = _Way.STEP
    elif _is_arranged(value, visible):
        way = _Way.ARRANGED
    bits = min(_bits(value, visible), way.value[0])
    return bits, _Way.NONE if bits <= 1.0 else way


def _is_wrapped(value: Any, visible: Visible) -> bool:
    """Whether it is something visible in a container of its own, or in several."""
    inner = children(value) or items_of(value)
    return len(inner) == 1 and (_is_seen(inner[0], visible) or _is_wrapped(inner[0], visible))


def _is_stretch(value: Any, visible: Visible) -> bool:
    """Whether all that is in it stands somewhere in this order: as a row of a table, say."""
    leaves: list[str] = []
    pending = [value]
    while pending and len(leaves) <= _LOOKED_AT_MAX:
        part = pending.pop()
        inner = children(part) or items_of(part)
        if inner:
            pending += reversed(inner)
        else:
            leaves.append(outline(part))
    # What is longer is looked up by its beginning: that only makes it worth less.
    return len(leaves) > 1 and visible.has_run(leaves)


def _is_arranged(value: Any, visible: Visible) -> bool:
    """Whether every part, or every part of it, is visible."""
    inner = children(value) or items_of(value)
    return bool(inner) and all(_is_seen(part, visible) or _is_arranged(part, visible) for part in inner)


def _is_seen(part: Any, visible: Visible) -> bool:
    name = outline(part)
    return part is None or isinstance(part, bool) or name in visible.wholes or visible.is_near(name)


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
    if visible.has_number(number, margin):
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
    if tag == "b":
        return _text_bits(text_of(value), visible)
    if tag == "s":
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
    bits = _bits(part, visible)
    return min(bits, _PART_BITS) if _is_seen(part, visible) else bits


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
        while at + length < len(items) and visible.has_run(names[at : at + length + 1]):
            length += 1
        if length >= _PIECE_ITEMS_MIN:
            bits += _PIECE_BITS
        else:
            bits += _part_bits(items[at], visible)
        at += length
    return bits
