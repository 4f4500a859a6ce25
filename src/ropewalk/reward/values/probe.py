"""Runs tests under pytest and reports, line by line, what they did. Stand-alone; runs inside sandboxes.

    python -P -s -B probe.py < plan.json > record

Standard output carries the record: one JSON array a line. Whatever the tests print goes nowhere. Nothing said here
is believed: the code under test lives in this very process. See docs/design/formats/values.md.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import encode  # type: ignore[import-not-found]
import quick  # type: ignore[import-not-found]

pytest: Any = quick.import_pytest()

_MESSAGE_MAX = 300
_USAGE_ERROR = 4
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_UNPARSED = re.compile(r"\b(Syntax|Indentation|Tab)Error\b")


class Stream:
    """The record. One write per line, so that lines of threads do not mix."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.set_inheritable(self._fd, False)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(sink)
        self.lines = 0

    def say(self, *parts: Any) -> None:
        data = (json.dumps(parts, separators=(",", ":")) + "\n").encode()
        while data:
            data = data[os.write(self._fd, data) :]
        self.lines += 1


class Emitter:
    """What instrumented tests call, as `_ropewalk`."""

    def __init__(self, stream: Stream, look: Any = None) -> None:
        self._stream = stream
        self._look = look
        self._seen: dict[str, int] = {}
        self.saw: Callable[[Any], Any] = look.saw if look else _as_it_is
        self.yields: Callable[[Any], Any] = look.yields if look else _as_it_is
        """Trusted runs that look around: a test computed this."""

    def begin(self) -> None:
        self._seen = {}

    def _next(self, point: str, *handed_out: Any) -> int:
        if self._look is not None:
            self._look.around(sys._getframe(2), *handed_out)
        occurrence = self._seen.get(point, 0)
        self._seen[point] = occurrence + 1
        return occurrence

    def value(self, point: str, actual: Any) -> None:
        """Hands out the candidate's side of an assertion."""
        self._stream.say("v", point, self._next(point, actual), encode.encode(actual))

    def missed(self, point: str) -> None:
        """Trusted runs that go on after exceptions: there is no value here."""
        self._stream.say("v", point, self._next(point), ["o", "raised", ""])

    def truth(self, point: str, actual: Any) -> None:
        """Hands out whether something holds."""
        self._stream.say("v", point, self._next(point), bool(actual))

    def pair(self, point: str, actual: Any, expected: Any, *tolerance: Any) -> None:
        """Recording: hands out both sides."""
        self._stream.say(
            "p",
            point,
            self._next(point),
            encode.encode(actual),
            encode.encode(expected),
            *(encode.encode(part) for part in tolerance),
        )

    def raises(self, point: str, *expected: Any) -> _Raises:
        """A context that hands out what was raised in it; with `expected`, recording, the type or types too."""
        return _Raises(self, point, expected)

    def raised(self, point: str, expected: tuple[Any, ...], function: Any, *arguments: Any, **keywords: Any) -> None:
        """The same for a call; `expected` is a tuple, empty when shipped."""
        with self.raises(point, *expected):
            function(*arguments, **keywords)

    def tell_raised(self, point: str, error: BaseException | None, expected: tuple[Any, ...]) -> None:
        if not expected:
            self._stream.say("v", point, self._next(point), encode.encode(error))
            return
        kinds = expected[0] if isinstance(expected[0], tuple) else (expected[0],)
        self._stream.say("p", point, self._next(point), encode.encode(error), encode.encode(list(kinds)))


def _as_it_is(value: Any) -> Any:
    return value


class _Raises:
    def __init__(self, emitter: Emitter, point: str, expected: tuple[Any, ...]) -> None:
        self._emitter, self._point, self._expected = emitter, point, expected

    def __enter__(self) -> _Raises:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        self._emitter.tell_raised(self._point, error, self._expected)
        return True


class Reach:
    """Which functions of the source a test calls."""

    def __init__(self, folders: list[str]) -> None:
        self._folders = tuple(folder.rstrip("/") + "/" for folder in folders)
        self._known: dict[Any, str] = {}
        self.calls: set[str] = set()

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = self._known.get(code)
        if name is None:
            path = code.co_filename
            name = self._known[code] = (
                f"{path}:{code.co_firstlineno}:{code.co_qualname}" if path.startswith(self._folders) else ""
            )
        if name:
            self.calls.add(name)

    def start(self) -> None:
        self.calls = set()
        threading.setprofile(self)
        sys.setprofile(self)

    def stop(self) -> list[str]:
        sys.setprofile(None)
        threading.setprofile(None)
        return sorted(self.calls)


class Plugin:
    """Selects the tests and reports them."""

    def __init__(self, plan: dict[str, Any], stream: Stream, emitter: Emitter, look: Any = None) -> None:
        self._plan, self._stream, self._emitter = plan, stream, emitter
        self._keys: dict[Any, str] = {}
        self._reports: list[Any] = []
        self._reach = Reach(plan["reach"]) if plan["reach"] else None
        self._look = look

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Numbers the tests and drops those that were not asked for."""
        seen: dict[str, int] = {}
        for item in items:
            base = item.nodeid
            if getattr(item, "callspec", None) is not None:
                base = base[: -len(item.callspec.id) - 2]
                number = seen[base] = seen.get(base, -1) + 1
                self._keys[item] = f"{base}#{number}"
            else:
                self._keys[item] = base
        wanted = set(self._plan["tests"])
        if wanted:
            items[:] = [item for item in items if item.nodeid in wanted or self._keys[item] in wanted]
        for item in items if self._plan["collect_only"] else ():
            self._stream.say("c", self._keys[item], item.nodeid if self._plan["node_ids"] else "")

    def pytest_collectreport(self, report: Any) -> None:
        """A module that does not import."""
        if report.failed:
            told = (report.nodeid, _line(report.longrepr)) if self._plan["node_ids"] else ("", "")
            self._stream.say("x", *told)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # type: ignore[untyped-decorator]
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """One test, from its set-up to the end of its tear-down."""
        key = self._keys[item]
        self._emitter.begin()
        self._reports = []
        self._stream.say("b", key, item.nodeid if self._plan["node_ids"] else "")
        began = time.perf_counter()
        if self._reach:
            self._reach.start()
        if self._look:
            self._look.start()
        try:
            result = yield
        finally:
            reached = self._reach.stop() if self._reach else []
            if self._look:
                self._look.stop()
        seconds = time.perf_counter() - began
        if reached:
            self._stream.say("r", key, reached)
        outcome, message = _outcome(self._reports)
        self._stream.say("e", key, outcome, seconds, message if self._plan["node_ids"] else "")
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Set-up, call, tear-down, and one for every sub-test."""
        self._reports.append(report)


def _outcome(reports: list[Any]) -> tuple[str, str]:
    for report in reports:
        if report.failed:
            return ("failed" if report.when == "call" else "error"), _line(report.longrepr)
    for report in reports:
        if report.skipped:
            return ("xfailed" if hasattr(report, "wasxfail") else "skipped"), ""
    if any(hasattr(report, "wasxfail") for report in reports):
        return "xpassed", ""
    return ("passed" if {"setup", "call", "teardown"} <= {report.when for report in reports} else "error"), ""


def _line(longrepr: Any) -> str:
    lookup = getattr(longrepr, "errorstring", None)  # a fixture that is not there; then come all that are
    if lookup:
        return str(lookup).strip().splitlines()[0][:_MESSAGE_MAX]
    crash = getattr(longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else longrepr).strip()
    line = (text.splitlines() or [""])[0 if crash is not None else -1]
    places = _PLACE.findall(text) if _UNPARSED.search(line) else []
    told = f"{line} ({os.path.relpath(places[-1][0])}:{places[-1][1]})" if places else line
    return told[:_MESSAGE_MAX]


def _usage_error(plan: dict[str, Any]) -> str:
    """What pytest has against its options, a plugin that is not there above all: asked once more, and listened to."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        pytest.main(_arguments(plan))
    lines = [line.strip() for line in said.getvalue().splitlines() if "rror" in line]
    return lines[-1].removeprefix("ERROR: ")[:_MESSAGE_MAX] if lines else ""


def _set_paths(plan: dict[str, Any]) -> None:
    """Behind the standard library, so that a module of the project cannot take the place of one of its own."""
    packages = Path(pytest.__file__).resolve().parent.parent
    at = next((index for index, path in enumerate(sys.path) if Path(path).resolve() == packages), len(sys.path))
    sys.path[at:at] = plan["import_paths"]


def _limit(cpu_s: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or hard > cpu_s:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _arguments(plan: dict[str, Any]) -> list[str]:
    arguments = [
        "-q", "-s", "-c", plan["ini_file"], f"--rootdir={plan['workdir']}", "--assert=plain", "--tb=line",
        "--disable-warnings", "--continue-on-collection-errors", *quick.without_needless(),
    ]  # fmt: skip
    if plan["collect_only"]:
        arguments.append("--collect-only")
    for name in plan["plugins"]:
        arguments += ["-p", name]
    for name, value in plan["ini"].items():
        arguments += ["-o", f"{name}={value}"]
    return [*arguments, *plan["files"]]


def main() -> int:
    """Reads the plan, runs, reports; exits as pytest does."""
    plan = json.loads(sys.stdin.buffer.read())
    stream = Stream()
    look = None
    if plan.get("look"):
        shipped = frozenset(str(Path(plan["workdir"], path)) for path in plan["shipped"])
        look = importlib.import_module("ropewalk_look").Look(stream.say, plan["workdir"], shipped)
        sys.addaudithook(look.on_event)
    emitter = Emitter(stream, look)
    sys.modules["_ropewalk"] = emitter  # type: ignore[assignment]
    _limit(int(plan["cpu_s"]) + 1)
    os.chdir(plan["workdir"])
    _set_paths(plan)
    if look:
        look.start()
    exit_code = int(pytest.main(_arguments(plan), plugins=[Plugin(plan, stream, emitter, look)]))
    if exit_code == _USAGE_ERROR and plan["node_ids"]:
        stream.say("x", "pytest", _usage_error(plan))
    stream.say("z", exit_code, stream.lines)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
