"""Follows calls in a process whose tests run on the source. Stand-alone; runs inside sandboxes, in trusted runs only.

What one call of a test computes on its way to a result is what a task is about. What *another* call computes is
within reach, for the source can keep it: a decoder need not decode what the encoder before it was given, and who holds
back the record can use what comes after. So what functions of the source are given, hold at their end, yield and return
is noted together with the call from outside that it served; what libraries do for a test serves none.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
import sysconfig
import threading
import types
from collections import Counter, defaultdict
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import encode  # type: ignore[import-not-found]
import opened  # type: ignore[import-not-found]

_ATOMS = (int, float, complex, str, bytes)
_PLAIN = frozenset({type(None), bool, *_ATOMS, *opened.CONTAINERS})
_SMALL = 1_000
"""A number up to this, or a text of one letter, is anywhere."""
_NOTES_MAX = 400_000
_CHARACTERS_MAX = 20_000_000
_BATCH = 500
_ITEMS_MAX = 1_000_000
_MADE_MAX = 1_500_000
_GENERATORS_MAX = 200
_RETURNED_MAX = 1_000
_RESUME = dis.opmap["RESUME"]
_STEP = 2
"""Bytes of an instruction."""
_ROW_ITEMS_MAX = 8
_NOBODYS = 0
"""The call of what is made outside of calls of the source."""
_TEXTS = (str, bytes)
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
        self._kinds: dict[type, bool] = {}
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
        root = max((known for known in self._known if path.startswith(known)), key=len)
        is_runner = path[len(root) :].split("/")[0] in _RUNNERS and not path.endswith("/mock.py")
        return Whose.RUNNER if is_runner else Whose.INSTALLED

    def _is_work(self, path: str) -> bool:
        return path.startswith(self._workdir)

    def is_tested(self, kind: type) -> bool:
        """Whether a class is the source's: what its objects are made of was handed to it, and is looked at there."""
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = self[file_of(kind)] is Whose.SOURCE
        return known


def module_of(kind: type) -> str:
    """Its module's name, of its own and not what a metaclass says; empty where that is none."""
    module = type.__dict__["__module__"].__get__(kind)
    return module if isinstance(module, str) else ""


def file_of(kind: type) -> str:
    """Where its module lies; empty where that is not known."""
    path = getattr(sys.modules.get(module_of(kind)), "__file__", None)
    return path if isinstance(path, str) else ""


class _Thread:
    """Where a thread stands: whose calls it is in but for libraries', and how many of the source."""

    __slots__ = ("call", "callers", "made", "source", "touched")

    def __init__(self) -> None:
        self.callers: list[Whose] = []
        self.source = 0
        self.call = _NOBODYS
        """The call from outside that is served, or was last."""
        self.made: set[int] = set()
        """What that one is known to have made."""
        self.touched: dict[int, Any] = {}

    def is_in_test(self) -> bool:
        """Whether what a library does is done for a test."""
        return not self.source and bool(self.callers) and self.callers[-1] in (Whose.TEST, Whose.MADE)


class Followed:
    """A profile function: notes what functions are given and give back, by the calls from outside that they serve."""

    def __init__(
        self,
        places: Places,
        came_in: Callable[[Any], None],
        tell: Callable[..., None],
        fail: Callable[[str], None],
        lock: Any = None,
    ) -> None:
        """`came_in`: a frame of the source that was called from outside; `tell`: lines of the record; `lock`: one that
        may be taken twice, where others look as well."""
        self._places, self._came_in, self._tell, self._fail = places, came_in, tell, fail
        self._threads: defaultdict[int, _Thread] = defaultdict(_Thread)
        self._lock = lock or threading.RLock()
        self._calls = 0
        self._is_off = False
        self._numbers: dict[Any, int] = {}
        """Values that were noted, by what tells them apart."""
        self._new: list[Any] = []
        self._nobodys: set[int] = set()
        self._returned: dict[int, tuple[Any, int]] = {}
        """What calls from outside gave back, by its identity, with the call."""
        self._untold: list[tuple[int, int]] = []
        self._rows: dict[Any, int] = {}
        self._items: list[tuple[int, int, int]] = []
        self._characters = self._items_told = self._made_told = 0
        self._generators: dict[int, Any] = {}
        """Frames of generators of the source that were begun and are not at their end."""
        self._code: dict[Any, bytes] = {}
        self._bound_again: dict[Any, tuple[str, ...]] = {}

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """A call or a return."""
        if self._is_off or event not in ("call", "return"):
            return
        with self._lock:
            if event == "call":
                self._on_call(frame)
            else:
                self._on_return(frame, argument)

    def trace(self, frame: Any, _event: str, _argument: Any) -> Any:
        """A trace function: follows variables of tests and source that are bound time after time, and nothing else."""
        code = frame.f_code
        place = self._places[code.co_filename]
        if self._is_off or place is Whose.RUNNER or place is Whose.INSTALLED:
            return None
        names = self._bound_again.get(code)
        if names is None:
            names = self._bound_again[code] = _bound_again(code)
        if not names:
            return None
        # A generator that goes on has one already, which knows what its variables were.
        return frame.f_trace or self._follow(names, is_source=place is Whose.SOURCE)

    def _follow(self, names: tuple[str, ...], *, is_source: bool) -> Any:
        last: dict[str, Any] = {}

        def line(frame: Any, _event: str, _argument: Any) -> Any:
            if self._is_off:
                return None
            held = frame.f_locals
            for name in names:
                if name in held and (name not in last or last[name] is not held[name]):
                    value = last[name] = held[name]
                    with self._lock:
                        thread = self._threads[threading.get_ident()]
                        within = thread if is_source or thread.source else None
                        self._note((value,), within)
                        self._note_in_row(frame.f_code, name, value, within)
            return line

        return line

    def flush(self, *handed_out: Any) -> None:
        """Tells what was noted, and which call a value comes from that is handed out now: the one that gave it back, or
        else the last one."""
        with self._lock:
            new, self._new = self._new, []
            made, self._untold = self._untold, []
            items, self._items = self._items, []
            _, call = self._returned.get(id(handed_out[0]) if handed_out else 0, (None, self._calls))
        for line, parts, size in (("n", new, _BATCH), ("w", made, 10 * _BATCH), ("y", items, 10 * _BATCH)):
            for at in range(0, len(parts), size):
                self._tell(line, parts[at : at + size])
        self._tell("o", call or -1)

    def is_within_source(self) -> bool:
        """Whether this thread is in a call of the source."""
        return self._threads[threading.get_ident()].source > 0

    def is_made(self, code: types.CodeType, caller: Any) -> bool:
        """Whether code that is about to be run was made for a test, out of values that nobody saw."""
        by, of = self._places[caller.f_code.co_filename], self._places[code.co_filename]
        if by is Whose.TEST or by is Whose.MADE:
            is_new = of is not Whose.TEST
        else:
            is_new = by is Whose.INSTALLED and of is Whose.MADE and not self._is_written_elsewhere(caller)
        return is_new and not self.is_within_source() and opened.computes(code)

    def _is_written_elsewhere(self, caller: Any) -> bool:
        return str(caller.f_globals.get("__name__")).partition(".")[0] in _MAKERS or self._is_imported(caller)

    def _is_imported(self, frame: Any) -> bool:
        """Whether this is done for a library's module that is being imported, not for whoever calls the library."""
        while frame is not None and self._places[frame.f_code.co_filename] is Whose.INSTALLED:
            if frame.f_code.co_name == "<module>":
                return True
            frame = frame.f_back
        return False

    def _on_call(self, frame: Any) -> None:
        place = self._places[frame.f_code.co_filename]
        thread = self._threads[threading.get_ident()]
        if place is Whose.INSTALLED:
            if thread.is_in_test():
                self._note(frame.f_locals.values(), None)
            elif thread.source and self._is_from_outside(frame):
                self._note(frame.f_locals.values(), thread)
            return
        if place is Whose.SOURCE:
            if not thread.source and self._is_new(frame):
                self._begin(thread)
                self._came_in(frame)
            thread.source += 1
        thread.callers.append(place)
        if place is Whose.SOURCE or place is Whose.MADE:
            within = thread if thread.source else None
            self._note(frame.f_locals.values(), within)
            if place is Whose.SOURCE and self._is_new(frame):
                for name, value in frame.f_locals.items():
                    self._note_in_row(frame.f_code, name, value, within)

    def _on_return(self, frame: Any, value: Any) -> None:
        code = frame.f_code
        place = self._places[code.co_filename]
        thread = self._threads[threading.get_ident()]
        if place is Whose.INSTALLED:
            is_in_test = thread.is_in_test()
            if is_in_test or (thread.source and self._is_from_outside(frame)):
                within = None if is_in_test else thread
                self._note((value,), within)
                if code.co_flags & _GENERATORS:
                    self._note_in_row(code, "", value, within)
            return
        if thread.callers:
            thread.callers.pop()
        if place is Whose.TEST:
            self._note_in_row(code, "", value, thread if thread.source else None)
        if place is Whose.SOURCE or place is Whose.MADE:
            self._on_return_of_source(frame, value, thread, place)

    def _on_return_of_source(self, frame: Any, value: Any, thread: _Thread, place: Whose) -> None:
        code = frame.f_code
        within = thread if thread.source and code.co_name != "<module>" else None
        if place is Whose.SOURCE:
            thread.source = max(thread.source - 1, 0)
        self._note((value,), within)
        self._note_in_row(code, "", value, within)
        if code.co_flags & _GENERATORS and self._goes_on(frame):
            if code.co_name == "<genexpr>":
                for name, held in frame.f_locals.items():
                    self._note_in_row(code, name, held, within)
        else:
            self._note(self._variables(frame, thread), within)
        if not thread.source:
            touched, thread.touched = thread.touched, {}
            for each in touched.values():  # what objects of the source are left holding
                self._note(gc.get_referents(each), within)
            if within and value is not None and not isinstance(value, bool):
                self._returned[id(value)] = (value, thread.call)
                if len(self._returned) > _RETURNED_MAX:
                    del self._returned[next(iter(self._returned))]

    def _is_from_outside(self, frame: Any) -> bool:
        """Whether a library's function was not called by a library's: what it is given and gives is its caller's."""
        caller = frame.f_back
        return caller is None or self._places[caller.f_code.co_filename] is not Whose.INSTALLED

    def _variables(self, frame: Any, thread: _Thread) -> list[Any]:
        """What a frame holds; the source's objects in it are for the end of the call."""
        found = [value for name, value in frame.f_locals.items() if not name.startswith("__")]
        for value in found:
            if type(value) not in _PLAIN and self._places.is_tested(type(value)):
                thread.touched[id(value)] = value
        return found

    def _begin(self, thread: _Thread) -> None:
        """A new call."""
        for frame in list(self._generators.values()):
            self._note(self._variables(frame, thread), thread if thread.call else None)
        self._calls += 1
        thread.call, thread.made = self._calls, set()

    def _is_new(self, frame: Any) -> bool:
        """Whether this is a call, not a generator that goes on."""
        return not frame.f_code.co_flags & _GENERATORS or id(frame) not in self._generators

    def _goes_on(self, frame: Any) -> bool:
        """Whether a generator is not at its end."""
        if self._is_suspended(frame):
            self._generators[id(frame)] = frame
            if len(self._generators) > _GENERATORS_MAX:  # closed, or forgotten
                del self._generators[next(iter(self._generators))]
            return True
        self._generators.pop(id(frame), None)
        return False

    def _is_suspended(self, frame: Any) -> bool:
        steps, at = self._code.get(frame.f_code), frame.f_lasti
        if steps is None:
            steps = self._code[frame.f_code] = frame.f_code.co_code
        if at < 0:
            return False
        # Python 3.13 says where it will go on.
        return steps[at] in _YIELDS or (steps[at] == _RESUME and at >= _STEP and steps[at - _STEP] in _YIELDS)

    def _note(self, values: Any, within: _Thread | None) -> None:
        for value in values:
            kind = type(value)
            if kind in _ATOMS:
                if not (kind is int and -_SMALL <= value <= _SMALL) and not (kind in _TEXTS and len(value) < 2):
                    self._note_made(self._number((kind, value), value), within)
            elif kind in opened.CONTAINERS:
                if value:
                    self._note_container(value, within)
            elif kind is not bool and value is not None and opened.is_plain_type(kind):
                self._note_plain(value, within)

    def _note_container(self, value: Any, within: _Thread | None) -> None:
        mark = opened.mark(value)
        if mark is not None:
            self._note_made(self._number(mark, value), within)
        elif opened.is_all_plain(value):
            self._note_plain(value, within)
        else:
            held = [part for part in gc.get_referents(value) if type(part) in _ATOMS or type(part) in opened.CONTAINERS]
            self._note([part for part in held if type(part) in _ATOMS or opened.is_all_plain(part)], within)

    def _note_plain(self, value: Any, within: _Thread | None) -> None:
        encoded = encode.encode(value)
        self._note_made(self._number(repr(encoded), encoded, is_encoded=True), within)

    def _note_made(self, number: int, within: _Thread | None) -> None:
        made, call = (within.made, within.call) if within else (self._nobodys, _NOBODYS)
        if number not in made:
            made.add(number)
            self._untold.append((call, number))
            self._made_told += 1
            if self._made_told > _MADE_MAX:
                self._give_up("more calls of the source than can be noted")

    def _note_in_row(self, code: types.CodeType, name: str, value: Any, within: _Thread | None) -> None:
        """What one variable, or what a function gives back, is time after time: whoever collects it has a row."""
        kind = type(value)
        if kind not in _ATOMS and not (kind is tuple and len(value) <= _ROW_ITEMS_MAX and opened.mark(value)):
            return
        row = self._rows.setdefault((code, name), len(self._rows))
        number = self._number((kind, value) if kind in _ATOMS else opened.mark(value), value)
        self._items.append((row, number, within.call if within else _NOBODYS))
        self._items_told += 1
        if self._items_told > _ITEMS_MAX:
            self._give_up("more values of the source than can be noted")

    def _number(self, mark: Any, value: Any, *, is_encoded: bool = False) -> int:
        number = self._numbers.get(mark)
        if number is None:
            encoded = value if is_encoded else encode.encode(value)
            number = self._numbers[mark] = len(self._numbers)
            self._characters += len(encoded) if isinstance(encoded, str) else len(repr(encoded))
            if number > _NOTES_MAX or self._characters > _CHARACTERS_MAX:
                self._give_up("more values of the source than can be noted")
            elif isinstance(encoded, list) and encoded[:1] == ["o"]:
                self._give_up(f"a value of the source, {' '.join(map(str, encoded[1:]))}")
            self._new.append(encoded)
        return number

    def _give_up(self, why: str) -> None:
        """Nothing counts as secret from here on, so that nothing more need be noted."""
        self._is_off = True
        self._new, self._untold, self._items = [], [], []
        self._fail(why)


def _bound_again(code: types.CodeType) -> tuple[str, ...]:
    """Variables that are bound in a loop, or in more than one place: at the end there is only their last value."""
    steps = list(dis.get_instructions(code))
    loops = [(step.argval, step.offset) for step in steps if "BACKWARD" in step.opname]
    bound = [(name, step.offset) for step in steps for name in _stored(step)]
    often = Counter(name for name, _ in bound)
    return tuple(
        name
        for name in often
        if often[name] > 1 or any(name == other and start <= at <= end for other, at in bound for start, end in loops)
    )


def _stored(step: dis.Instruction) -> tuple[str, ...]:
    if not step.opname.startswith(("STORE_FAST", "STORE_DEREF")):
        return ()
    if not isinstance(step.argval, tuple):
        return (step.argval,)
    # From Python 3.13 on two steps may be one.
    return step.argval[:1] if "LOAD" in step.opname else step.argval
