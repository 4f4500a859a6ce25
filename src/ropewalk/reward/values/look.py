"""What the code under test could see while it is tested. Stand-alone; runs inside sandboxes, in trusted runs only.

Every value that a test hands out may be read by the tested code before, if it lies within its reach: in the locals
and globals of the test, in closures, in attributes of the test's object, in arguments. This finds such values and
tells them, encoded, so that a grader can know what is no secret.
"""

from __future__ import annotations

import array
import gc
import itertools
import json
import sys
import types
from collections.abc import Callable
from typing import Any

import encode  # type: ignore[import-not-found]

_NODES_MAX = 20_000
"""At one moment."""
_NODES_ALL_MAX = 400_000
_CHARACTERS_MAX = 4_000_000
_ITEMS_MAX = 2_000
_BUFFER_ITEMS_MAX = 100_000
_LINE_CHARACTERS = 200_000
_ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray)
_RUNNERS = ("_pytest", "pytest", "pluggy", "unittest", "_ropewalk", "__main__", "ropewalk_look", "encode")


class Look:
    """Looks around at every value that is handed out and at every call from a test."""

    def __init__(self, say: Callable[..., None], workdir: str) -> None:
        self._say = say
        self._workdir = workdir.rstrip("/") + "/"
        self._told: set[str] = set()
        self._nodes = 0
        self._characters = 0
        self._globals: set[int] = set()
        self._pending: list[Any] = []
        self._waiting = 0
        self._tests: set[Any] = set()

    def start(self) -> None:
        """A test begins."""
        self._globals = set()
        sys.setprofile(self._on_call)

    def stop(self) -> None:
        """It ended."""
        sys.setprofile(None)
        self._flush()

    def around(self, frame: Any) -> None:
        """From a frame of a test outwards, as far as frames are the project's."""
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            roots: list[Any] = []
            while frame is not None and frame.f_code.co_filename.startswith(self._workdir):
                self._tests.add(frame.f_code.co_filename)
                roots += _without_names(frame.f_locals)
                if id(frame.f_globals) not in self._globals:
                    self._globals.add(id(frame.f_globals))
                    roots += _without_names(frame.f_globals)
                roots += [constant for constant in frame.f_code.co_consts if not isinstance(constant, types.CodeType)]
                frame = frame.f_back
            self._walk(roots)
        finally:
            sys.setprofile(profile)

    def _on_call(self, frame: Any, event: str, _argument: Any) -> None:
        """Arguments of what a test calls: they need have no name of their own in the test."""
        if event != "call" or frame.f_back is None:
            return
        if frame.f_back.f_code.co_filename in self._tests or _is_test(frame.f_back.f_code.co_filename, self._workdir):
            self._walk(_without_names(frame.f_locals))

    def _walk(self, roots: list[Any]) -> None:
        seen: set[int] = set()
        held: list[Any] = []  # ids stay taken while their objects are held
        pending = [(root, True) for root in roots]
        while pending and len(seen) < _NODES_MAX and self._nodes < _NODES_ALL_MAX:
            value, is_whole = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            held.append(value)
            self._nodes += 1
            encoded = encode.encode(value)
            is_plain = not (isinstance(encoded, list) and encoded and encoded[0] in ("o", "T"))
            if is_plain and is_whole:
                self._tell(encoded)
            if not isinstance(value, _ATOMS):
                # Parts of what was told are told with it; but what is hidden in them is not.
                pending += [(part, not is_plain) for part in self._inside(value)]

    def _inside(self, value: Any) -> list[Any]:
        kind = type(value)
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, types.GeneratorType):
            return _without_names(value.gi_frame.f_locals) if value.gi_frame else []
        if isinstance(value, itertools.zip_longest):
            return []  # its tuple of iterators has holes once one is exhausted: reading it crashes the interpreter
        if isinstance(value, types.CodeType):
            return list(value.co_consts)
        if isinstance(value, (memoryview, array.array)):
            items = [value.tolist()] if len(value) <= _BUFFER_ITEMS_MAX else []
            return [*items, value.obj] if isinstance(value, memoryview) else items
        if isinstance(value, types.BuiltinFunctionType):
            return [value.__self__]
        if isinstance(value, (types.ModuleType, types.FrameType)):
            return []
        if isinstance(value, type):
            return _without_names(vars(value)) if self._is_ours(value) else []
        if _module_of(kind).split(".")[0] in _RUNNERS:
            return []
        return [part for part in gc.get_referents(value) if part is not kind][:_ITEMS_MAX]

    def _of_function(self, function: Any) -> list[Any]:
        if not function.__code__.co_filename.startswith(self._workdir):
            return []
        found = [
            *function.__code__.co_consts,
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        ]
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        return found

    def _is_ours(self, kind: type) -> bool:
        path = getattr(sys.modules.get(_module_of(kind)), "__file__", None)
        return isinstance(path, str) and path.startswith(self._workdir)

    def _tell(self, encoded: Any) -> None:
        text = json.dumps(encoded)
        if text in self._told or self._characters > _CHARACTERS_MAX:
            return
        self._told.add(text)
        self._characters += len(text)
        self._pending.append(encoded)
        self._waiting += len(text)
        if self._waiting > _LINE_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._say("s", self._pending)
            self._pending, self._waiting = [], 0


def _is_test(path: str, workdir: str) -> bool:
    name = path.rpartition("/")[2]
    return path.startswith(workdir) and (name.startswith("test") or name.endswith("_test.py") or name == "conftest.py")


def _module_of(kind: type) -> str:
    module = type.__dict__["__module__"].__get__(kind)
    return module if isinstance(module, str) else ""


def _without_names(variables: Any) -> list[Any]:
    return [value for name, value in dict(variables).items() if not (name.startswith("__") and name.endswith("__"))]
