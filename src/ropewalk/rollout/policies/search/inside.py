"""Runs visible tests for a search, and says which lines each of them executed. Stand-alone: it runs in sandboxes.

    python inside.py REQUEST_FILE

The request is JSON: `arguments` for pytest, node ids `first` and `rest`, `failing_max` (run `rest` only if at most
that many of `first` fail, and stop there at the first failure; null: run all), `trace` (absolute paths of files whose
executed lines matter). `first` has a pytest session of its own: most edits fail there, and the other test files are
then not even collected. The answer is the last line of standard output that begins with MARK. A policy believes it at
its own risk; no verdict depends on it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

MARK = "\x1eropewalk-search "


class Watch:
    """A pytest plugin: outcomes, early stop, lines."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.first = list(request["first"])
        self.rest = set(request["rest"])
        self.failing_max = request["failing_max"]
        self.traced = set(request["trace"])
        self.outcomes: dict[str, str] = {}
        self.durations: dict[str, float] = {}
        self.lines: dict[str, dict[str, list[int]]] = {}
        self.problems: list[str] = []
        self.stop: str | None = None
        self._session: Any = None
        self._seen: dict[str, set[int]] = {}

    def pytest_sessionstart(self, session: Any) -> None:
        self._session = session

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
        unexpected = self.outcomes.get(nodeid) != "passed"
        if unexpected and self.failing_max is not None and nodeid not in self.first:
            self.stop = f"{nodeid} fails too"
            self._session.shouldstop = self.stop

    def may_go_on(self) -> bool:
        """Whether the first tests came out well enough for the others to matter."""
        failing = sum(self.outcomes.get(name) != "passed" for name in self.first)
        if self.failing_max is not None and failing > self.failing_max:
            self.stop = "no better"
        return self.stop is None

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
    sys.path.insert(0, str(Path(__file__).parent))
    quick = importlib.import_module("quick")
    del sys.path[0]
    # As `python -m pytest` has it: the working directory, not this script's own folder.
    sys.path[0:1] = [] if sys.flags.isolated else [str(Path.cwd())]
    pytest = quick.import_pytest()
    watch = Watch(request)
    request["arguments"] += quick.without_needless()
    sys.argv = ["pytest", *request["arguments"]]
    code = 0
    if watch.first:
        code = pytest.main([*request["arguments"], *watch.first], plugins=[watch])
    if watch.may_go_on() and request["rest"]:
        code = pytest.main([*request["arguments"], *request["rest"]], plugins=[watch])
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
