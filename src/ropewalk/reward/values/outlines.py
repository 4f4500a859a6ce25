"""What values look like: texts that are equal for values that look alike, and what lies inside a value.

Everything that is held against what can be seen is encoded (`values/encode.py`).
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from ropewalk.reward.values.codec import children, number_of
from ropewalk.reward.values.encode import NODES_MAX

SEPARATOR: Final = "\x1f"
ITEMS_MAX: Final = NODES_MAX
"""Of one sequence, and parts of one value: a value that is handed out has no more."""
_DECIMAL_MAX = 10**4000
"""Python refuses to write longer numbers in decimal."""
_LISTS = ("l", "t", "q", "S", "sl")
_NUMBERS = ("i", "f", "j", "D", "Q")
_BETWEEN = "\x1e"


def outline(value: Any) -> str:
    """A text that is equal for values that look alike: the types of sequences and of numbers do not matter."""
    if isinstance(value, str):
        return f'"{value}'
    if isinstance(value, int):
        return _outline_number(value)
    if isinstance(value, list) and value:
        if value[0] == "r":
            return outline_items([f"n{item}" for item in items_of(value)])
        if value[0] in _NUMBERS:
            number = number_of(value)
            return json.dumps(value) if number is None else _outline_number(number)
        if value[0] in ("d", "O"):
            # In whatever order: two dictionaries are equal all the same.
            return outline_items(sorted(f"{outline(key)}:{outline(held)}" for key, held in value[1]))
        inner = children(value)
        if inner or value[1:] == [[]]:
            return outline_items(list(map(outline, inner)))
    return json.dumps(value, sort_keys=True)


def outline_items(outlines: list[str]) -> str:
    """Of a sequence of values with these."""
    return f"+({_BETWEEN.join(outlines)})"


def parts_of(value: Any) -> list[Any]:
    """Everything inside a value."""
    found: list[Any] = []
    pending = children(value) or items_of(value)
    while pending and len(found) < ITEMS_MAX:
        part = pending.pop()
        found.append(part)
        pending += children(part)
    return found


def plain_number(value: Any) -> float | None:
    """A real, finite number; None for anything else."""
    try:
        number = number_of(value)
        if number is None or isinstance(number, complex):
            return None
        plain = float(number)
    except (ValueError, OverflowError):
        return None
    return plain if math.isfinite(plain) else None


def text_of(value: Any) -> str:
    """A string, or bytes as one character each; empty for anything else."""
    if isinstance(value, str):
        return value
    return bytes.fromhex(value[1]).decode("latin-1") if isinstance(value, list) and value[:1] == ["b"] else ""


def items_of(value: Any) -> list[Any]:
    """Items of an encoded sequence or set; empty for anything else."""
    if not isinstance(value, list) or not value:
        return []
    if value[0] == "r":
        span = range(*(number_of(part) for part in value[1:]))  # type: ignore[arg-type]
        return list(span[:ITEMS_MAX])
    return list(value[1][:ITEMS_MAX]) if value[0] in _LISTS else []


def in_order(items: list[Any]) -> list[Any]:
    """Encoded items, sorted as Python sorts numbers and strings, and anyhow where it does not."""
    numbers = [plain_number(item) for item in items]
    if all(number is not None for number in numbers):
        return [item for _, item in sorted(zip(numbers, items, strict=True), key=lambda pair: pair[0] or 0.0)]
    if all(isinstance(item, str) for item in items):
        return sorted(items)
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _outline_number(number: Any) -> str:
    if isinstance(number, int):
        return f"n{int(number)}" if abs(number) < _DECIMAL_MAX else f"n{number:x}"
    try:
        plain = complex(number)
    except OverflowError:
        return f"n{number}"
    whole = plain.imag == 0 and math.isfinite(plain.real) and plain.real == int(plain.real)
    return f"n{int(plain.real) if whole else plain}"
