"""Notes which of some lines of the source a run executes. Stand-alone; runs inside sandboxes.

As a pytest plugin (`-p line_probe`, beside the probe of suites) it reads `line_probe.json`, `{path: {line: forks}}`
with absolute paths, and hands out for each test, as a value of the point `lines`, what it executed: JSON text,
`{path: [place, …]}`. A place is a line, `12`, or a part of one with forks, `12:4` with its column. Only functions that
have such lines are traced, and none for longer than it takes to see all of its lines.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

POINT = "lines"
EVENTS_MAX = 100_000
"""Followed of one function in one run of a test: loops go on for long, and show no more."""


class _Code:
    """What is wanted of one function, and what is still to be seen in this run."""

    def __init__(self, code: CodeType, lines: dict[int, bool]) -> None:
        self.code = code  # kept, so that its id stays its own
        self.lines = lines
        self.forks = any(lines.values())
        self._positions: list[tuple[int | None, int | None]] = []
        if self.forks:
            self._positions = [(line, column) for line, _, column, _ in code.co_positions()]
        self.begin()

    def begin(self) -> None:
        self.left = set(self.lines)
        self.events = 0

    def place(self, offset: int) -> tuple[int, int] | None:
        """Line and column of an instruction on a line with forks."""
        line, column = self._positions[offset // 2]
        return (line, column) if line is not None and column is not None and self.lines.get(line) else None


class Lines:
    """Follows functions that have some of the wanted lines.

    Args:
        wanted: absolute path → line → whether parts of it count on their own.
    """

    def __init__(self, wanted: dict[str, dict[int, bool]]) -> None:
        self._wanted = wanted
        self._codes: dict[int, _Code] = {}
        self.seen: dict[str, set[str]] = {}
        """Path → places."""

    def _enter(self, frame: Any, event: str, argument: Any) -> Any:
        code = frame.f_code
        wanted = self._wanted.get(code.co_filename)
        if wanted is None:
            return None
        known = self._codes.get(id(code))
        if known is None:
            inside = code.co_name != "<module>"  # of a module, only definitions, which run at its import
            lines = {line: wanted[line] for _, _, line in code.co_lines() if line in wanted} if inside else {}
            known = self._codes[id(code)] = _Code(code, lines)
        if known.events > EVENTS_MAX or not (known.left or known.forks):
            return None
        frame.f_trace_opcodes = known.forks
        seen = self.seen.setdefault(code.co_filename, set())

        def follow(frame: Any, event: str, argument: Any) -> Any:
            known.events += 1
            if event == "line" and frame.f_lineno in known.left:
                known.left.discard(frame.f_lineno)
                seen.add(str(frame.f_lineno))
            elif event == "opcode" and (place := known.place(frame.f_lasti)):
                seen.add(f"{place[0]}:{place[1]}")
            if known.events > EVENTS_MAX or not (known.left or known.forks):
                frame.f_trace_lines = frame.f_trace_opcodes = False
            return follow

        return follow

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follows what is run in the block; afterwards `seen` holds what was executed."""
        self.seen = {}
        for code in self._codes.values():
            code.begin()
        before = sys.gettrace()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)


def wanted_lines(plain: dict[str, dict[str, bool]]) -> dict[str, dict[int, bool]]:
    """What is wanted, as it comes out of JSON."""
    return {path: {int(line): bool(forks) for line, forks in lines.items()} for path, lines in plain.items()}


def pytest_configure(config: Any) -> None:
    """Called by pytest where this module is a plugin."""
    plan = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    config.pluginmanager.register(_plugin(Lines(wanted_lines(plan))), "ropewalk lines")


def _plugin(lines: Lines) -> Any:
    import pytest

    class Plugin:
        """Hands out what each test executes, from its set-up to the end of its tear-down."""

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Any:
            """One test."""
            with lines.following():
                result = yield
            told = json.dumps({path: sorted(places) for path, places in lines.seen.items() if places})
            sys.modules["_ropewalk"].value(POINT, told)
            return result

    return Plugin()
