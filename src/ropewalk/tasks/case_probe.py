"""Records calls of functions and makes calls again. Stand-alone; runs inside sandboxes.

    python -P -s -B case_probe.py record < job.json > calls
    python -P -s -B case_probe.py replay < job.json > outcomes
    python -P -s -B case_probe.py notes < job.json > notes

A job of the latter two may hold `lines` (as `line_probe` wants them) and `shown` (absolute path → places): then nothing
is said of what executes another place of these lines.

Only plain data can be recorded and made again: None, booleans, numbers, text, bytes, and lists, tuples, sets and
dictionaries of them; besides these, functions of `builtins`, `operator` and `math`, by name.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import json
import math
import operator
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

ITEMS_MAX = 200
"""Taken of an iterator."""
TEXT_MAX = 2_000
"""Characters of one value."""
CALLS_MAX = 40
"""Recorded per function."""
_NAMED = {
    f"{module.__name__}.{name}": value
    for module in (builtins, operator, math)
    for name, value in vars(module).items()
    if callable(value) and not name.startswith("_") and name not in ("open", "input", "exec", "eval", "compile", "exit")
}
SLOWER = 20
"""How much more wall time than CPU time a call may take: it may wait, and so may this machine."""
_started = time.monotonic()
_hung = [0]
"""Calls whose time was up."""
_NAMES = {id(value): name for name, value in _NAMED.items()}


class NotPlain(Exception):
    """A value that cannot be written down."""


class Named:
    """A function by name, as it stands in a recorded call: its `repr` is the name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name.removeprefix("builtins.")


def plain(value: Any, depth: int = 0) -> Any:
    """The value with named functions replaced by their names.

    Raises:
        NotPlain: it holds anything else.
    """
    kind = type(value)
    if depth > 6:
        raise NotPlain
    if value is None or kind in (bool, int, str, bytes):
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        raise NotPlain
    if kind in (list, tuple, set, frozenset):
        if kind is frozenset:
            raise NotPlain
        return kind(plain(item, depth + 1) for item in value)
    if kind is dict:
        return {plain(key, depth + 1): plain(item, depth + 1) for key, item in value.items()}
    if id(value) in _NAMES:
        return Named(_NAMES[id(value)])
    raise NotPlain


class Recorder:
    """Notes the arguments with which some functions are called."""

    def __init__(self, functions: dict[str, list[str]]) -> None:
        self._wanted = {(path, name) for path, names in functions.items() for name in names}
        self._known: dict[Any, str] = {}
        self.calls: dict[str, list[str]] = {}

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = self._known.get(code)
        if name is None:
            wanted = (code.co_filename, code.co_qualname) in self._wanted
            name = self._known[code] = f"{code.co_filename}::{code.co_qualname}" if wanted else ""
        if name and len(self.calls.setdefault(name, [])) < CALLS_MAX and not _is_resumed(frame, code):
            try:
                text = repr(self._arguments(frame, code))
            except (NotPlain, RecursionError, ValueError):
                return
            if len(text) <= TEXT_MAX and text not in self.calls[name]:
                self.calls[name].append(text)

    def _arguments(self, frame: Any, code: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = frame.f_locals
        count = code.co_argcount
        names = code.co_varnames
        positional = [plain(values[name]) for name in names[:count]]
        keywords = {name: plain(values[name]) for name in names[count : count + code.co_kwonlyargcount]}
        after = count + code.co_kwonlyargcount
        if code.co_flags & 4:
            positional.extend(plain(value) for value in values[names[after]])
            after += 1
        if code.co_flags & 8:
            keywords.update({name: plain(value) for name, value in values[names[after]].items()})
        return tuple(positional), keywords


def _is_resumed(frame: Any, code: Any) -> bool:
    """Whether a generator goes on, which looks like a call: by then its arguments may be others."""
    return bool(code.co_flags & 0x2A0) and frame.f_lasti > 8 + 2 * len(code.co_cellvars)


def record(job: dict[str, Any]) -> None:
    """Runs tests and prints the calls: one JSON object, function → texts."""
    import pytest

    out = _silence()
    recorder = Recorder(job["functions"])
    sys.path[:0] = job["import_paths"]
    sys.setprofile(recorder)
    try:
        pytest.main(["-q", "-p", "no:cacheprovider", *job["arguments"], *job["tests"]])
    finally:
        sys.setprofile(None)
    _print(out, recorder.calls)


def replay(job: dict[str, Any]) -> None:
    """Makes calls and prints what came of each: a JSON list of texts, `null` where nothing can be said."""
    out = _silence()
    sys.path[:0] = job["import_paths"]
    lines = _bounds(job)
    _print(out, [_within(job, lines, _outcome, *call) for call in job["calls"]])


def notes(job: dict[str, Any]) -> None:
    """Runs the cases of a module and prints their notes: a JSON list of texts, `null` where nothing can be said."""
    out = _silence()
    path = Path(job["path"])
    base, parts = path.parent, [path.stem]
    sys.path[:0] = [*job["import_paths"], str(base)]
    while (base / "__init__.py").exists():  # a package of tests, as pytest would import it
        parts.insert(0, base.name)
        base = base.parent
        sys.path.insert(0, str(base))
    try:
        module = importlib.import_module(".".join(parts))
    except BaseException:  # the code under test may raise anything
        _print(out, [None] * job["count"])
        return
    lines = _bounds(job)
    _print(out, [_within(job, lines, _noted, getattr(module, f"case_{number}")) for number in range(job["count"])])


def _silence() -> int:
    """Standard output for ourselves; what the code under test prints goes nowhere."""
    out = os.dup(1)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _time_is_up)
    return out


def _print(out: int, value: Any) -> None:
    data = json.dumps(value).encode()
    while data:
        data = data[os.write(out, data) :]


def _bounds(job: dict[str, Any]) -> Any:
    """What notes which lines are executed; nothing where any may be."""
    if not job.get("lines"):
        return None
    sys.path.insert(0, str(Path(__file__).parent))
    import line_probe  # type: ignore[import-not-found]

    return line_probe.Lines(line_probe.wanted_lines(job["lines"]))


def _within(job: dict[str, Any], lines: Any, function: Any, *arguments: Any) -> str | None:
    """What a function says within the CPU time for one call; nothing where it executes what it may not.

    Calls end by their number where many hang: how many are answered must not depend on how busy the machine is. Only
    where all of them are slow does the time for all say so.
    """
    if _hung[0] >= job["hangs_max"] or time.monotonic() > _started + job["budget_s"]:
        return None
    signal.setitimer(signal.ITIMER_PROF, job["call_timeout_s"])
    signal.setitimer(signal.ITIMER_REAL, SLOWER * job["call_timeout_s"])
    try:
        if lines is None:
            return str(function(*arguments))
        with lines.following():
            text = str(function(*arguments))
        shown = job["shown"]
        return text if all(places <= {*shown.get(path, ())} for path, places in lines.seen.items()) else None
    except BaseException:  # the code under test may raise anything
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _noted(case: Any) -> str:
    return _written(case())


def _outcome(module: str, name: str, text: str) -> str:
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    arguments, keywords = eval(text, {"__builtins__": builtins, "operator": operator, "math": math})  # our own text
    result = target(*arguments, **keywords)
    if hasattr(result, "__next__"):
        result = list(itertools.islice(result, ITEMS_MAX))
        return "iterator " + _written(result)
    return "value " + _written(result)


def _written(value: Any) -> str:
    text = repr(plain(value))
    if len(text) > TEXT_MAX or ast.literal_eval(text) != value:
        raise NotPlain
    return text


def _time_is_up(signum: int, frame: Any) -> None:
    _hung[0] += 1
    raise TimeoutError


if __name__ == "__main__":
    {"record": record, "replay": replay, "notes": notes}[sys.argv[1]](json.load(sys.stdin))
