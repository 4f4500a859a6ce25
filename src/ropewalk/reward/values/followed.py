"""Follows calls in a process whose tests run on the source. Stand-alone; runs inside sandboxes, in trusted runs only.

What one call of a test computes on its way to a result is what a task is about. What an *earlier* call computed is
within reach of a later one, for the source can keep it: a decoder need not decode what the encoder before it was given.
So what functions of the source are given, hold at their end, yield and return is noted, and told when the next call
comes in from outside. What other functions do for a test is told at once.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
import sysconfig
import threading
import types
from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import encode  # type: ignore[import-not-found]
import opened  # type: ignore[import-not-found]

_ATOMS = (int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_PLAIN = frozenset({type(None), bool, *_ATOMS, *_CONTAINERS})
_SMALL = 1_000
"""A number up to this, or a text of one letter, is anywhere."""
_NOTES_MAX = 400_000
_CHARACTERS_MAX = 20_000_000
_BATCH = 500
_ROWS_MAX = 20_000
_GENERATORS = 0x20 | 0x80 | 0x200
"""Flags of code: generators, coroutines, and what is both."""
_YIELDS = frozenset(number for name, number in dis.opmap.items() if name.endswith("YIELD_VALUE"))
_RUNNERS = ("_pytest", "pytest", "pluggy", "unittest")
_MAKERS = frozenset(
    {
        *("collections", "dataclasses", "enum", "typing", "typing_extensions", "functools", "inspect"),
        *("attr", "attrs", "hypothesis", "decorator"),
    }
)
"""Modules that make code at run time for what is written elsewhere."""


class Whose(IntEnum):
    """Whose a function is."""

    RUNNER = 0
    INSTALLED = 1
    TEST = 2
    SOURCE = 3
    MADE = 4
    """Nobody's that lies in a known file: made at run time."""


class Places(dict[str, Whose]):
    """Path of code → whose it is."""

    def __init__(self, workdir: str, shipped: frozenset[str]) -> None:
        super().__init__()
        self._workdir, self._shipped = workdir, shipped
        known = {sys.prefix, sys.base_prefix, str(Path(os.__file__).parent), *sysconfig.get_paths().values(), *sys.path}
        self._known = tuple(f"{path.rstrip('/')}/" for path in known if path and not self._is_work(f"{path}/"))
        self._own = f"{Path(__file__).parent}/"

    def __missing__(self, path: str) -> Whose:
        found = self[path] = self._find(path)
        return found

    def _find(self, path: str) -> Whose:
        if path in self._shipped:
            return Whose.TEST
        if self._is_work(path):
            return Whose.SOURCE
        if path.startswith(self._own):
            return Whose.RUNNER
        if path.startswith("<frozen "):
            return Whose.INSTALLED
        if not path.startswith(self._known):
            return Whose.MADE
        is_runner = any(f"/{name}/" in path for name in _RUNNERS) and not path.endswith("/mock.py")
        return Whose.RUNNER if is_runner else Whose.INSTALLED

    def _is_work(self, path: str) -> bool:
        return path.startswith(self._workdir)


class _Thread:
    """Where a thread stands: whose calls it is in but for libraries', and how many of the source."""

    __slots__ = ("callers", "source")

    def __init__(self) -> None:
        self.callers: list[Whose] = []
        self.source = 0

    def is_in_test(self) -> bool:
        """Whether what a library does is done for a test."""
        return not self.source and bool(self.callers) and self.callers[-1] in (Whose.TEST, Whose.MADE)


class Followed:
    """A profile function that notes what functions are given and give back."""

    def __init__(
        self,
        places: Places,
        came_in: Callable[[Any], None],
        tell: Callable[[list[Any]], None],
        fail: Callable[[str], None],
    ) -> None:
        """`came_in`: a frame of the source that was called from outside; `tell`: encoded values, once they count."""
        self._places, self._came_in, self._tell, self._fail = places, came_in, tell, fail
        self._threads: defaultdict[int, _Thread] = defaultdict(_Thread)
        self._known: set[Any] = set()
        self._inner: list[Any] = []
        """Noted in the call that is being made, or was made last."""
        self._earlier: list[Any] = []
        """Noted before it."""
        self._characters = 0
        self._frames: dict[int, tuple[Any, dict[str, list[Any]]]] = {}
        """Of generators of the source: what they yielded, and what their variables were meanwhile."""
        self._code: dict[Any, bytes] = {}
        self._kinds: dict[type, bool] = {}
        self._touched: dict[int, Any] = {}

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """A call or a return."""
        if event == "call":
            self._on_call(frame)
        elif event == "return":
            self._on_return(frame, argument)

    def flush(self) -> None:
        """Tells what earlier calls computed."""
        told, self._earlier = self._earlier, []
        for at in range(0, len(told), _BATCH):
            self._tell(told[at : at + _BATCH])

    def is_within_source(self) -> bool:
        """Whether this thread is in a call of the source."""
        return self._threads[threading.get_ident()].source > 0

    def is_made(self, code: types.CodeType, caller: Any) -> bool:
        """Whether code that is about to be run was made for a test, out of values that nobody saw."""
        if self.is_within_source() or not opened.computes(code):
            return False
        by = self._places[caller.f_code.co_filename]
        if by is Whose.TEST or by is Whose.MADE:
            return self._places[code.co_filename] is not Whose.TEST
        if by is not Whose.INSTALLED or self._places[code.co_filename] is not Whose.MADE:
            return False
        return str(caller.f_globals.get("__name__")).partition(".")[0] not in _MAKERS

    def _on_call(self, frame: Any) -> None:
        place = self._places[frame.f_code.co_filename]
        thread = self._threads[threading.get_ident()]
        if place is Whose.INSTALLED:
            if thread.is_in_test():
                self._note(frame.f_locals.values(), self._earlier)
            return
        if place is Whose.SOURCE:
            if not thread.source and self._is_new(frame):
                self._begin()
                self._came_in(frame)
            thread.source += 1
        thread.callers.append(place)
        if place is Whose.SOURCE or place is Whose.MADE:
            self._note(frame.f_locals.values(), self._inner if thread.source else self._earlier)

    def _on_return(self, frame: Any, value: Any) -> None:
        code = frame.f_code
        place = self._places[code.co_filename]
        thread = self._threads[threading.get_ident()]
        if place is Whose.INSTALLED:
            if thread.is_in_test():
                self._note((value,), self._earlier)
                if code.co_flags & _GENERATORS:
                    self._goes_on(frame, value, self._earlier)
            return
        if thread.callers:
            thread.callers.pop()
        if place is not Whose.SOURCE and place is not Whose.MADE:
            return
        into = self._inner if thread.source and code.co_name != "<module>" else self._earlier
        if place is Whose.SOURCE:
            thread.source = max(thread.source - 1, 0)
        self._note((value,), into)
        if not (code.co_flags & _GENERATORS and self._goes_on(frame, value, into)):
            self._note(self._variables(frame), into)
        if not thread.source and self._touched:
            self._look_at_touched(into)

    def _variables(self, frame: Any) -> list[Any]:
        """What a frame holds; the source's objects in it are for the end of the call."""
        found = [value for name, value in frame.f_locals.items() if not name.startswith("__")]
        for value in found:
            if type(value) not in _PLAIN and self._is_of_source(type(value)):
                self._touched[id(value)] = value
        return found

    def _is_of_source(self, kind: type) -> bool:
        known = self._kinds.get(kind)
        if known is None:
            path = getattr(sys.modules.get(type.__dict__["__module__"].__get__(kind)), "__file__", None)
            known = self._kinds[kind] = isinstance(path, str) and self._places[path] is Whose.SOURCE
        return known

    def _look_at_touched(self, into: list[Any]) -> None:
        """What objects of the source are left holding."""
        touched, self._touched = self._touched, {}
        for value in touched.values():
            self._note(gc.get_referents(value), into)

    def _begin(self) -> None:
        """A new call: what was made until now is there for it."""
        for frame, rows in list(self._frames.values()):
            self._note([*rows.values(), *self._variables(frame)], self._inner)
        self._earlier += self._inner
        self._inner = []

    def _is_new(self, frame: Any) -> bool:
        """Whether this is a call, not a generator that goes on."""
        return not frame.f_code.co_flags & _GENERATORS or id(frame) not in self._frames

    def _goes_on(self, frame: Any, value: Any, into: list[Any]) -> bool:
        """Whether a generator only yielded. What comes out of it one by one belongs together, and so do the values that
        its variable had meanwhile."""
        _, rows = self._frames.setdefault(id(frame), (frame, {"": []}))
        if self._is_suspended(frame):
            rows[""].append(value)
            if len(rows[""]) > _ROWS_MAX:
                self._fail("a generator without end")
                del rows[""][1:]
            if frame.f_code.co_name == "<genexpr>":
                for name, held in frame.f_locals.items():
                    if not name.startswith("."):
                        rows.setdefault(name, []).append(held)
            return True
        del self._frames[id(frame)]
        self._note(rows.values(), into)
        return False

    def _is_suspended(self, frame: Any) -> bool:
        steps = self._code.get(frame.f_code)
        if steps is None:
            steps = self._code[frame.f_code] = frame.f_code.co_code
        return frame.f_lasti >= 0 and steps[frame.f_lasti] in _YIELDS

    def _note(self, values: Any, into: list[Any]) -> None:
        for value in values:
            kind = type(value)
            if kind in _ATOMS:
                if (
                    (kind is int and -_SMALL <= value <= _SMALL)
                    or (kind in (str, bytes) and len(value) < 2)
                    or (kind, value) in self._known
                ):
                    continue
                self._known.add((kind, value))
                self._add(value, into)
            elif kind in _CONTAINERS:
                if value:
                    self._note_container(value, into)
            elif kind is not bool and value is not None and opened.is_plain_type(kind):
                self._note_plain(value, into)

    def _note_container(self, value: Any, into: list[Any]) -> None:
        mark = opened.mark(value)
        if mark is None:
            if opened.is_all_plain(value):
                self._note_plain(value, into)
            else:
                held = [part for part in gc.get_referents(value) if type(part) in _ATOMS or type(part) in _CONTAINERS]
                self._note([part for part in held if type(part) in _ATOMS or opened.is_all_plain(part)], into)
        elif mark not in self._known:
            self._known.add(mark)
            self._add(value, into)

    def _note_plain(self, value: Any, into: list[Any]) -> None:
        encoded = encode.encode(value)
        name = repr(encoded)
        if name not in self._known:
            self._known.add(name)
            self._put(encoded, len(name), into)

    def _add(self, value: Any, into: list[Any]) -> None:
        encoded = encode.encode(value)
        self._put(encoded, len(repr(encoded)), into)

    def _put(self, encoded: Any, characters: int, into: list[Any]) -> None:
        self._characters += characters
        if len(self._known) > _NOTES_MAX or self._characters > _CHARACTERS_MAX:
            self._fail("more values of the source than can be noted")
            return
        into.append(encoded)
