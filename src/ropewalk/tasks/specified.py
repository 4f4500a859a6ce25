"""Whether what a held-out test asks for can be known: from visible tests, or from the notes that the prompt quotes.

A release may change one function twice, and tests of one change say nothing about the other. So a killer counts as
specified only where the visible killers execute, on the right source, every changed statement that it executes, or
where the notes speak of what they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.tasks.changelog import mentions
from ropewalk.tasks.changes import ChangedLines, for_probe
from ropewalk.tasks.units import Changed, Unit, short_name
from ropewalk.tasks.worlds import WORKDIR


@dataclass(frozen=True)
class Reached:
    """What tests execute on the later source.

    Attributes:
        functions: test id → `path::dotted name` of each function that it calls.
        places: test id → changed places that it executes: `path:line`, or `path:line:column` for a part of a line.
    """

    functions: Mapping[str, tuple[str, ...]]
    places: Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class FairCases:
    """What cases may execute on the right source: no changed place that visible tests do not show.

    Attributes:
        lines: changed ones that nobody is told of.
        shown: places of these that visible tests execute.
    """

    lines: ChangedLines
    shown: frozenset[str]

    @property
    def job(self) -> dict[str, Any]:
        """For the probe."""
        shown: dict[str, list[str]] = {}
        for place in sorted(self.shown):
            path, _, inner = place.partition(":")
            shown.setdefault(f"{WORKDIR}/{path}", []).append(inner)
        return {"lines": for_probe(self.lines), "shown": shown}


@dataclass(frozen=True)
class Specification:
    """What is known of the killers of one unit, and what is told of the change.

    Attributes:
        unit: whose killers they are.
        reached: by tests.
        changed: functions that the release changed.
        lines: of these, what is new.
        notes: that the prompt quotes.
    """

    unit: Unit
    reached: Reached
    changed: Changed
    lines: ChangedLines
    notes: str

    def allows(self, visible: Iterable[str], held_out: Iterable[str]) -> bool:
        """Whether nothing that these held-out killers ask for is unknown to who sees these visible ones."""
        visible = tuple(visible)
        return all(not self.unknown(visible, test) for test in held_out)

    def unknown(self, visible: Iterable[str], test: str) -> str:
        """What a held-out killer asks for that neither visible killers nor the notes show; empty where all is shown."""
        visible = tuple(visible)
        if mentions(self.notes, (), words=words_of([test])):
            return ""
        unseen = self.reached.places.get(test, frozenset()) - self.shown(visible)
        unknown = [place for place in unseen if not self._is_mentioned(self._function(place))]
        if unknown:
            path, line, _ = min(map(_in_order, unknown))
            return f"{test} needs {path}:{line} ({self.lines[path][line].function}), which no visible killer reaches"
        return "" if self.unit.level in ("class", "symbol") else self._unknown_functions(visible, test)

    def shown(self, visible: Iterable[str]) -> frozenset[str]:
        """Changed places that these tests execute."""
        return frozenset().union(*(self.reached.places.get(test, ()) for test in visible))

    def cases(self, visible: Iterable[str]) -> FairCases:
        """Which further cases may judge where these tests are visible: notes on a function allow all that it does."""
        found = {
            path: {line: what for line, what in lines.items() if not self._is_mentioned(f"{path}::{what.function}")}
            for path, lines in self.lines.items()
        }
        return FairCases({path: lines for path, lines in found.items() if lines}, self.shown(visible))

    def _function(self, place: str) -> str:
        path, line, _ = _in_order(place)
        return f"{path}::{self.lines[path][line].function}"

    def _is_mentioned(self, symbol: str) -> bool:
        return bool(mentions(self.notes, [short_name(symbol)]))

    def _unknown_functions(self, visible: Sequence[str], test: str) -> str:
        """Killers that have no more in common than their module must reach a changed function that is known."""
        seen = {symbol for each in visible for symbol in self.reached.functions.get(each, ())} & self.changed.after
        touched = self.changed.after.intersection(self.reached.functions.get(test, ()))
        if touched & seen or any(map(self._is_mentioned, touched)):
            return ""
        return f"{test} reaches no changed function that a visible killer reaches"


def words_of(tests: Iterable[str]) -> set[str]:
    """Words out of the names of tests, which often say what changed."""
    names = (test.partition("[")[0].rpartition("::")[2] for test in tests)
    return {word for name in names for word in name.removeprefix("test").split("_") if word}


def _in_order(place: str) -> tuple[str, int, int]:
    """Path, line and column (0 for a whole line) of a place."""
    path, line, column = f"{place}:0".split(":")[:3]
    return path, int(line), int(column)
