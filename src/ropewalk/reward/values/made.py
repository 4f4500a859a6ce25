"""What calls of the source made, looked up for a value that comes from one of them.

A value is within reach where a call made it, or was given it, other than the one it comes from (`values/followed.py`).
What its own call made as well is no find: to hand out just that may be the fix. Values and their parts count as they
stand, and no step is taken from them: much of what broken code makes is near to what is right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ropewalk.reward.values.outlines import outline, parts_of, plain_number, text_of

UNKNOWN_CALL: Final = -1
_SMALL_MAX = 1_000
_RUN_MIN = 2
_PLACES_MAX = 1_000
"""Of one row in all that was made: where it stands more often, it is seen."""
_BREAK = "\0"


class MadeIndex:
    """Values by the calls that made them."""

    def __init__(
        self,
        values: Sequence[Any] = (),
        calls: Iterable[tuple[int, int]] = (),
        rows: Iterable[tuple[int, int, int]] = (),
    ) -> None:
        """Args:
        values: Encoded.
        calls: Call, and place of a value it made.
        rows: Row, place of a value, and call: what one variable was time after time, in order.

        Raises:
            IndexError: a place where no value is.
        """
        seen: dict[str, float | None] = {}
        names = [self._names(value, seen) for value in values]
        self._calls: defaultdict[str, set[int]] = defaultdict(set)
        for call, number in calls:
            for name in names[number]:
                self._calls[name].add(call)
        self._numbers = sorted((number, name) for name, number in seen.items() if number is not None)
        self._letters: dict[str, str] = {}
        self._text, self._callers = self._join([outline(value) for value in values], rows)

    @staticmethod
    def _names(value: Any, seen: dict[str, float | None]) -> list[str]:
        """Outlines of a value and its parts, and for numbers among them what they are."""
        names = set()
        for part in (value, *parts_of(value)):
            if not _is_anywhere(part):
                name = outline(part)
                names.add(name)
                if name not in seen:
                    seen[name] = plain_number(part)
        return list(names)

    def __bool__(self) -> bool:
        return bool(self._calls) or bool(self._text)

    def elsewhere(self, name: str, call: int) -> bool:
        """Whether a value of this outline was made in other calls than this one, and not in this one."""
        calls = self._calls.get(name)
        return calls is not None and call not in calls

    def has_number(self, number: float, margin: float, call: int) -> bool:
        """Whether such a number that is no farther away was."""
        at = bisect_left(self._numbers, (number - margin, ""))
        while at < len(self._numbers) and self._numbers[at][0] <= number + margin:
            if self.elsewhere(self._numbers[at][1], call):
                return True
            at += 1
        return False

    def has_run(self, names: Sequence[str], call: int) -> bool:
        """Whether one variable was these values one after the other, in other calls and not in this one."""
        try:
            run = "".join(self._letters[name] for name in names)
        except KeyError:
            return False
        if len(run) < _RUN_MIN:
            return False
        found, at = False, self._text.find(run)
        for _ in range(_PLACES_MAX):
            if at < 0:
                return found
            if set(self._callers[at : at + len(run)]) == {call}:
                return False
            found, at = True, self._text.find(run, at + 1)
        return True

    def _join(self, names: Sequence[str], items: Iterable[tuple[int, int, int]]) -> tuple[str, list[int]]:
        """All rows as one text, a letter for each outline, and the call of each letter."""
        rows: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, number, call in items:
            rows[row].append((number, call))
        text: list[str] = []
        callers: list[int] = []
        for row_items in rows.values():
            if len(row_items) < _RUN_MIN:
                continue
            for number, call in row_items:
                # Above the separator, and beyond what is no character by itself.
                text.append(self._letters.setdefault(names[number], chr(0xE000 + len(self._letters))))
                callers.append(call)
            text.append(_BREAK)
            callers.append(UNKNOWN_CALL)
        return "".join(text), callers


NOTHING_MADE: Final = MadeIndex()


def _is_anywhere(value: Any) -> bool:
    """Whether it is too small for having been there to mean anything."""
    number = plain_number(value)
    return (
        value is None
        or len(text_of(value)) == 1
        or (number is not None and number.is_integer() and abs(number) <= _SMALL_MAX)
    )
