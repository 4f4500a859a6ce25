"""Runs visible tests for a search, and says which lines each of them executed. Stand-alone: it runs in sandboxes.

    python inside.py REQUEST_FILE

The request is JSON: `arguments` for pytest, node ids `first` (run before all others) and `rest`, `failing_max` (stop
after `first` unless at most that many of them fail; null: never), `known_failing` (in `rest`, no reason to stop),
`trace` (absolute paths of files whose executed lines matter). The answer is the last line of standard output that
begins with MARK. A policy believes it at its own risk; no verdict depends on it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

MARK = "\x1eropewalk-search "


class Watch:
    """A pytest plugin: order, outcomes, early stop, lines."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.first = list(request["first"])
        self.rest = set(request["rest"])
        self.known_failing = set(request["known_failing"])
        self.failing_max = request["failing_max"]
        self.traced = set(request["trace"])
        self.outcomes: dict[str, str] = {}
        self.durations: dict[str, float] = {}
        self.lines: dict[str, dict[str, list[int]]] = {}
        self.problems: list[str] = []
        self.stop: str | None = None
        self._session: Any = None
        self._left = set(self.first)
        self._seen: dict[str, set[int]] = {}

    def pytest_sessionstart(self, session: Any) -> None:
        self._session = session

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        order = {name: index for index, name in enumerate(self.first)}
        items.sort(key=lambda item: order.get(item.nodeid, len(order)))
        self._left &= {item.nodeid for item in items}

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid}: {str(report.longrepr)[-400:]}")

    def pytest_runtest_protocol(self) -> None:
        self._seen = {}

    def pytest_runtest_call(self) -> None:
        if self.traced:
            sys.settrace(self._enter)

    def pytest_runtest_teardown(self) -> None:
        sys.settrace(None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid
        self.durations[name] = self.durations.get(name, 0.0) + report.duration
        if report.failed:
            self.outcomes[name] = "failed"
        elif report.when == "call" or report.skipped:
            self.outcomes.setdefault(name, report.outcome)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self._seen:
            self.lines[nodeid] = {path: sorted(lines) for path, lines in self._seen.items()}
        failed = self.outcomes.get(nodeid) != "passed"
        if nodeid in self._left:
            self._left.discard(nodeid)
        elif failed and self.failing_max is not None and nodeid not in self.known_failing:
            self.stop = f"{nodeid} fails too"
        if not self._left and self.failing_max is not None and self.stop is None:
            failing = sum(self.outcomes.get(name) != "passed" for name in self.first)
            if failing > self.failing_max:
                self.stop = "no better"
        if self.stop is not None:
            self._session.shouldstop = self.stop

    def pytest_runtest_makereport(self) -> None:
        sys.settrace(None)

    def _enter(self, frame: Any, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in self.traced:
            return None
        seen = self._seen.setdefault(path, set())
        seen.add(frame.f_lineno)

        def line(frame: Any, event: str, argument: Any) -> Any:
            if event == "line":
                seen.add(frame.f_lineno)
            return line

        return line


def main() -> None:
    """Runs what the request names and prints the answer."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # As `python -m pytest` has it: the working directory, not this script's own folder.
    sys.path[0:1] = [] if sys.flags.isolated else [str(Path.cwd())]
    import pytest

    watch = Watch(request)
    arguments = [*request["arguments"], *request["first"], *request["rest"]]
    sys.argv = ["pytest", *arguments]
    code = pytest.main(arguments, plugins=[watch])
    answer = {
        "exit_code": int(code),
        "outcomes": watch.outcomes,
        "durations": {name: round(seconds, 4) for name, seconds in watch.durations.items()},
        "lines": watch.lines,
        "stopped": watch.stop,
        "problems": watch.problems[:5],
    }
    sys.stdout.flush()
    os.write(1, ("\n" + MARK + json.dumps(answer) + "\n").encode())
    os._exit(0)


if __name__ == "__main__":
    main()
