"""What a forger can see, and what is a trivial step away from it.

Values come from two places: literals spelled out in sources (`values.literals`), and objects that a trusted run found
within reach of the code under test. Everything is kept as *outlines*: texts that are equal for values that look alike.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ropewalk.reward.values.encode import encode
from ropewalk.reward.values.made import NOTHING_MADE, UNKNOWN_CALL, MadeIndex
from ropewalk.reward.values.notation import notation
from ropewalk.reward.values.outlines import (
    SEPARATOR,
    in_order,
    items_of,
    outline,
    outline_items,
    parts_of,
    plain_number,
    text_of,
)

_LETTERS_MAX = 2_000
"""Of a text whose letters are looked at one by one."""
_STEPPED_MAX = 20_000
"""Values from which steps are taken; where there are more, nothing counts as secret."""
_SHORT_MAX = 200
"""Items of a sequence that is looked at in every way; of a longer one only its order is."""
_WORD = re.compile(r"[^\s,;:=|]+")
_DIGITS = re.compile(r"\d{1,300}")


@dataclass(frozen=True)
class Visible:
    """What can be seen.

    Attributes:
        wholes: outlines of values as they stand.
        near: outlines of their parts, and of what one trivial function makes of them: length, order, sum, sign …
        numbers: all numbers among these.
        text: all strings among these in lower case, between separators.
        runs: the outlines of all sequences' items, between separators.
        made: what calls of the source made.
        call: the call that a value comes from which is held against all this: what that one made is no sight.
        unopened: what may hold more, and could not be looked into: where there is any, nothing counts as secret.
    """

    wholes: frozenset[str] = frozenset()
    near: frozenset[str] = frozenset()
    numbers: frozenset[float] = frozenset()
    text: str = ""
    runs: str = ""
    made: MadeIndex = NOTHING_MADE
    call: int = UNKNOWN_CALL
    unopened: frozenset[str] = frozenset()

    def __or__(self, other: Visible) -> Visible:
        return union((self, other))

    def is_near(self, name: str) -> bool:
        """Whether a value of this outline is a step away."""
        return name in self.near or self.made.elsewhere(name, self.call)

    def has_run(self, names: list[str]) -> bool:
        """Whether values of these outlines stand somewhere in this order."""
        return f"{SEPARATOR}{SEPARATOR.join(names)}{SEPARATOR}" in self.runs or self.made.has_run(names, self.call)

    def has_number(self, number: float, margin: float) -> bool:
        """Whether there is a number that is no farther away."""
        return any(abs(number - seen) <= margin for seen in self.numbers) or self.made.has_number(
            number, margin, self.call
        )


def gathered(values: Iterable[Any]) -> Visible:
    """What encoded values show as they stand."""
    return _found(values).visible()


def seen_among(values: Iterable[Any]) -> Visible:
    """What encoded values show that are within reach in one process, and what is one trivial step away from them."""
    found = _found(values)
    found.step()
    return found.visible()


class _Found:
    """Values by outline, and what follows from them."""

    def __init__(self) -> None:
        self.wholes: dict[str, Any] = {}
        self.parts: dict[str, Any] = {}
        self.near: set[str] = set()
        self.numbers: set[float] = set()
        self.texts: set[str] = set()
        self.runs: set[str] = set()
        self.unopened: set[str] = set()

    def add(self, value: Any) -> None:
        """A value and all its parts."""
        name = outline(value)
        if name in self.wholes:
            return
        self.wholes[name] = value
        for part in (value, *parts_of(value)):
            self.parts.setdefault(outline(part), part)

    def step(self) -> None:
        """What the most obvious functions make of each."""
        if len(self.parts) > _STEPPED_MAX:
            self.unopened.add(f"{len(self.parts)} values")
            return
        for value in list(self.parts.values()):
            scalars, sequences = _steps(value)
            for sequence in sequences:
                self.near.add(outline_items(sequence))
                self._note_run(sequence)
            for scalar in scalars:
                self.near.add(outline(scalar))
                self._note(scalar)

    def visible(self) -> Visible:
        """All of it."""
        for value in self.parts.values():
            self._note(value)
            if items := items_of(value):
                self._note_run(list(map(outline, items)))
        return Visible(
            wholes=frozenset(self.wholes),
            near=frozenset(self.near | self.parts.keys()),
            numbers=frozenset(self.numbers),
            text=_joined(self.texts),
            runs=_joined(self.runs),
            unopened=frozenset(self.unopened),
        )

    def _note(self, value: Any) -> None:
        if text := text_of(value):
            self.texts.add(text.lower())
        elif (number := plain_number(value)) is not None:
            self.numbers.add(number)

    def _note_run(self, outlines: list[str]) -> None:
        if len(outlines) > 1:
            self.runs.add(SEPARATOR.join(outlines))


def _found(values: Iterable[Any]) -> _Found:
    found = _Found()
    for value in values:
        found.add(value)
    return found


def union(parts: Iterable[Visible]) -> Visible:
    """All that is in any of them."""
    found = list(parts)
    made = [part.made for part in found if part.made]
    if len(made) > 1:
        raise ValueError("what calls made cannot be joined")
    return Visible(
        wholes=frozenset().union(*(part.wholes for part in found)),
        near=frozenset().union(*(part.near for part in found)),
        numbers=frozenset().union(*(part.numbers for part in found)),
        text="".join(part.text for part in found),
        runs="".join(part.runs for part in found),
        made=made[0] if made else NOTHING_MADE,
        unopened=frozenset().union(*(part.unopened for part in found)),
    )


def _joined(texts: Iterable[str]) -> str:
    joined = SEPARATOR.join(texts)
    return f"{SEPARATOR}{joined}{SEPARATOR}" if joined else ""


def _steps(value: Any) -> tuple[list[Any], list[list[str]]]:
    """What the most obvious functions make of one value: scalars, and sequences as their items' outlines."""
    number = plain_number(value)
    if number is not None:
        exact = int(number) if number == int(number) else number
        return [*map(encode, (-exact, exact + 1, exact - 1, int(number), round(number))), encode(str(exact))], []
    if isinstance(value, str):
        return _steps_of_text(value)
    tag = value[0] if isinstance(value, list) and value else ""
    scalars, sequences = _steps_of_container(value, tag)
    if tag in ("l", "t", "d") and len(value[1]) <= _SHORT_MAX and len(text := notation(value)) <= _LETTERS_MAX:
        scalars = [*scalars, text, text.replace("'", '"')]
    return scalars, sequences


def _steps_of_container(value: Any, tag: str) -> tuple[list[Any], list[list[str]]]:
    if tag in ("d", "O"):
        pairs = [(outline(key), outline(held)) for key, held in value[1]]
        keys, values = [key for key, _ in value[1]], [held for _, held in value[1]]
        in_pairs = [outline_items(list(pair)) for pair in pairs]
        turned = [name for key, held in pairs for name in (held, key)]
        of_keys, of_values = _steps_of_items(keys), _steps_of_items(values)
        plain = [[key for key, _ in pairs], [held for _, held in pairs], in_pairs, turned]
        return of_keys[0] + of_values[0], plain + of_keys[1] + of_values[1]
    if tag == "b":
        data = bytes.fromhex(value[1])
        return [encode(len(data)), encode(text_of(value)), encode(data[::-1])], [[outline(byte) for byte in data]]
    items = items_of(value)
    return _steps_of_items(items) if items else ([], [])


def _steps_of_text(text: str) -> tuple[list[Any], list[list[str]]]:
    found: list[Any] = [
        text.encode("utf-8", "replace"),
        len(text),
        text[::-1],
        text.strip(),
        text.upper(),
        text.lower(),
        text.title(),
    ]
    found += {*_WORD.findall(text), *map(int, _DIGITS.findall(text))}
    sequences = [[outline(word) for word in text.split()]]
    if len(text) <= _LETTERS_MAX:
        found.append("".join(sorted(text)))
        sequences.append([outline(letter) for letter in text])
    for kind in (int, float):
        with suppress(ValueError):
            found.append(kind(text))
    return [encode(one) for one in found], sequences


def _steps_of_items(items: list[Any]) -> tuple[list[Any], list[list[str]]]:
    names = list(map(outline, items))
    if len(items) > _SHORT_MAX:
        ordered = [outline(item) for item in in_order(items)]
        return [len(items)], [names[::-1], ordered, ordered[::-1], names[1:], names[:-1]]
    by_name = dict(zip(names, items, strict=True))
    ordered = [outline(item) for item in in_order(items)]
    unique = list(by_name)
    # The order in which sets are written down is one of those that a sequence can be in.
    as_set = [outline(item) for item in sorted(by_name.values(), key=lambda item: json.dumps(item, sort_keys=True))]
    in_order_once = [outline(item) for item in in_order(list(by_name.values()))]
    sequences = [names[::-1], ordered, ordered[::-1], unique, in_order_once, as_set, names[1:], names[:-1]]
    scalars: list[Any] = [len(items), len(unique), len(items) - 1]
    numbers = [number for item in items if (number := plain_number(item)) is not None]
    if numbers and len(numbers) == len(items):
        total = math.fsum(numbers)
        scalars += [encode(total), encode(total / len(numbers)), encode(math.prod(numbers))]
        sequences.append([outline(encode(-number)) for number in numbers])
    elif all(isinstance(item, str) for item in items):
        scalars += [encode(glue.join(items)) for glue in ("", " ", ",", ", ", "\n")]
    return scalars, sequences
