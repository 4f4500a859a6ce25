"""What the code under test could see while it is tested. Stand-alone; runs inside sandboxes, in trusted runs only.

Every value that a test hands out may be read by the tested code before, if it lies within its reach: computed by an
expression of a test, in locals and globals, closures, attributes, arguments, streams, files. This finds such values and
tells them, encoded, so that a grader can know what is no secret. What it cannot look into, it tells as well: there
may be anything in it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import stat
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import encode  # type: ignore[import-not-found]
import followed  # type: ignore[import-not-found]
import opened  # type: ignore[import-not-found]

_NODES_MAX = 50_000
"""At one moment."""
_NODES_ALL_MAX = 2_000_000
_SAWS_MAX = 1_000_000
_CHARACTERS_MAX = 5_000_000
_LINE_CHARACTERS = 200_000
_TEXT_MAX = 100_000
_OVERLAP = 300
_YIELDED_MAX = 2_000
_FRAMES_MAX = 400
_FILES_MAX = 200
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_RUNNERS = frozenset(
    {"_pytest", "pytest", "pluggy", "unittest", "_ropewalk", "ropewalk_look", "encode", "followed", "opened"}
)
_TEED = (
    *(map, filter, zip, enumerate, type(iter(int, 1)), itertools.accumulate, itertools.chain, itertools.combinations),
    *(itertools.combinations_with_replacement, itertools.compress, itertools.dropwhile, itertools.filterfalse),
    *(itertools.islice, itertools.pairwise, itertools.permutations, itertools.product, itertools.starmap),
    *(itertools.takewhile, itertools.zip_longest),
)
"""Iterators made in tests: what they yield is kept, whoever takes it."""
_WRITES = frozenset({"open", "os.rename", "os.link", "os.symlink", "shutil.copyfile", "shutil.move"})
_BOTTOM = ("pytest_pyfunc_call", "call_fixture_func", "pytest_runtest_protocol")
_SYSTEM = ("/proc", "/dev", "/sys", "/usr", "/etc")
_SOURCES = (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType)


class Look:
    """Looks at what tests compute, and around at every value that is handed out and at every call into the source."""

    def __init__(self, say: Callable[..., None], workdir: str, shipped: frozenset[str]) -> None:
        """`shipped`: the tests and what belongs to them; all else below `workdir` is the source, which is tested."""
        self._say = say
        self._workdir = workdir.rstrip("/") + "/"
        self._shipped = shipped
        self._told: set[str] = set()
        self._atoms: set[Any] = set()
        self._prints: set[int] = set()
        self._unopened: set[str] = set()
        self._nodes = self._saws = self._characters = 0
        self._globals: set[int] = set()
        self._pending: list[Any] = []
        self._waiting = 0
        self._iterators: dict[int, Any] = {}
        self._files: dict[str, Any] = {}
        self._yielded: dict[int, tuple[Any, list[Any]]] = {}
        self._lock = threading.RLock()
        self._looking = 0
        """The thread that does."""
        self._places = followed.Places(self._workdir, shipped)
        self._calls = followed.Followed(self._places, self._on_call, say, self._cannot_open, self._lock)
        self._trace = self._calls.trace
        self._follows = False

    def start(self) -> None:
        """Before tests are collected, and when one begins."""
        self._check_followed()
        self._globals = set()
        self._follows = True
        threading.setprofile(self._calls)
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        sys.setprofile(self._calls)

    def _check_followed(self) -> None:
        if self._follows and not (sys.getprofile() is self._calls and sys.gettrace() is self._trace):
            self._cannot_open("calls, for a test watches them itself")

    def stop(self) -> None:
        """It ended: what iterators were not asked for, and what files hold, is looked at now."""
        self._check_followed()
        self._follows = False
        sys.setprofile(None)
        sys.settrace(None)
        threading.setprofile(None)
        threading.settrace(None)
        self._guarded(self._read_files)
        waiting, self._iterators = list(self._iterators.values()), {}
        for iterator in waiting:
            self._drain(iterator)
        yielded, self._yielded = [items for _, items in self._yielded.values()], {}
        self._guarded(lambda: self._walk(yielded))
        self._calls.flush()
        self._flush()

    def saw(self, value: Any) -> Any:
        """A test computed this. Gives it back; in the place of some iterators one that leaves a copy."""
        kind = type(value)
        if kind in _ATOMS and (kind, value) in self._atoms:
            return value
        self._saws += 1
        if self._saws > _SAWS_MAX:
            self._cannot_open("more values than can be looked at")
            return value
        if kind in _TEED:
            value, kept = itertools.tee(value)
            self._iterators[id(kept)] = kept
            return value
        if isinstance(value, (types.FunctionType, types.ModuleType, type)) or self._places.is_tested(kind):
            return value
        if kind in opened.CONTAINERS and opened.mark(value) in self._prints:
            return value
        self._guarded(lambda: self._walk([value]))
        return value

    def yields(self, value: Any) -> Any:
        """The same for what a generator of a test yields: all of it is seen together when the test ends."""
        frame = sys._getframe(1)
        _, items = self._yielded.setdefault(id(frame), (frame, []))
        if len(items) > _YIELDED_MAX:
            self._cannot_open("a generator without end")
        else:
            items.append(value)
        return value

    def around(self, frame: Any, *handed_out: Any) -> None:
        """From a frame outwards, over all frames but the source's own and the runner's."""

        def look() -> None:
            self._calls.flush(*handed_out)
            self._walk(self._in_frames(frame))

        self._guarded(look)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Looking is not looked at, and whatever goes wrong in it is told."""
        if self._looking == threading.get_ident():
            return
        profile, trace = sys.getprofile(), sys.gettrace()
        sys.setprofile(None)
        sys.settrace(None)
        try:
            with self._lock:
                self._looking = threading.get_ident()
                try:
                    work()
                finally:
                    self._looking = 0
        except Exception as error:
            self._cannot_open(f"{type(error).__name__} on looking")
        finally:
            sys.settrace(trace)
            sys.setprofile(profile)

    def _in_frames(self, frame: Any) -> list[Any]:
        roots: list[Any] = []
        for _ in range(_FRAMES_MAX):
            if frame is None or _is_bottom(frame):
                return roots
            if self._places[frame.f_code.co_filename] not in (followed.Whose.SOURCE, followed.Whose.RUNNER):
                roots += _without_names(frame.f_locals)
                if frame.f_code.co_filename in self._shipped:
                    if id(frame.f_globals) not in self._globals:
                        self._globals.add(id(frame.f_globals))
                        roots += _without_names(frame.f_globals)
                    roots += [part for part in frame.f_code.co_consts if not isinstance(part, types.CodeType)]
            frame = frame.f_back
        self._cannot_open("a deep stack")
        return roots

    def _on_call(self, frame: Any) -> None:
        """A call from outside into the source: its arguments need have no name anywhere else."""
        self._guarded(lambda: self._walk([*_without_names(frame.f_locals), *self._in_frames(frame.f_back)]))

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: files that are opened are looked into; code that is made at run time cannot be watched."""
        if self._looking == threading.get_ident():
            return
        if event in _WRITES:
            for path in arguments[:2]:
                if isinstance(path, (str, bytes)) or hasattr(path, "__fspath__"):
                    self._note_file(os.fsdecode(path))
        elif event in ("sys.setprofile", "sys.settrace", "sys.monitoring.register_callback"):
            if not self._is_ours_or_a_new_thread_s(sys._getframe(1)):
                self._cannot_open("calls, for a test watches them itself")
        elif event == "exec" and arguments:
            code = arguments[0]
            if self._calls.is_made(code, sys._getframe(1)):
                self._cannot_open("code that is made at run time")

    def _is_ours_or_a_new_thread_s(self, caller: Any) -> bool:
        names = caller.f_globals
        return names is globals() or (
            names.get("__name__") == "threading"
            and threading.getprofile() is self._calls
            and threading.gettrace() is self._trace
        )

    def _note_file(self, path: str) -> None:
        absolute = str(Path(path).absolute())
        if absolute.endswith(".pyc") or absolute.startswith((sys.prefix, *_SYSTEM)):
            return
        if absolute.endswith(".py") and absolute.startswith(self._workdir):
            return  # read as it lies there
        self._files.setdefault(absolute, None)
        if len(self._files) > _FILES_MAX:
            self._cannot_open("more files than can be looked at")

    def _read_files(self) -> None:
        for path, known in list(self._files.items()):
            try:
                now = Path(path).stat()
                stamp = (now.st_mtime_ns, now.st_size)
                if stamp == known or not stat.S_ISREG(now.st_mode):
                    continue
                if now.st_size > opened.BYTES_MAX:
                    self._cannot_open("a large file")
                    continue
                data = Path(path).read_bytes()
            except OSError:
                continue
            self._files[path] = stamp
            self._walk([data, data.decode("utf-8", "replace")])

    def _drain(self, iterator: Any) -> None:
        """What it would still have yielded; what it computes for that is looked at, too."""
        if isinstance(iterator, (types.AsyncGeneratorType, types.CoroutineType)):
            if getattr(iterator, "ag_frame", None) or getattr(iterator, "cr_frame", None):
                self._cannot_open("an asynchronous generator that was not asked for all")
            return
        if isinstance(iterator, types.GeneratorType) and iterator.gi_running:
            return
        yielded: list[Any] = []
        with contextlib.suppress(Exception):  # it has an end that nobody gets past
            yielded.extend(itertools.islice(iterator, _YIELDED_MAX + 1))
        if len(yielded) > _YIELDED_MAX:
            self._cannot_open("an iterator without end")
        self._guarded(lambda: self._walk([yielded]))

    def _walk(self, roots: list[Any]) -> None:
        seen: set[int] = set()
        held: list[Any] = []  # ids stay taken while their objects are held
        pending = [(root, True) for root in roots]
        while pending:
            value, is_whole = pending.pop()
            kind = type(value)
            if kind in _ATOMS:
                if is_whole and (kind, value) not in self._atoms:
                    self._atoms.add((kind, value))
                    self._tell_atom(value)
                continue
            if id(value) in seen:
                continue
            seen.add(id(value))
            held.append(value)
            self._nodes += 1
            if len(seen) > _NODES_MAX or self._nodes > _NODES_ALL_MAX:
                self._cannot_open("more objects than can be looked at")
                return
            if kind in opened.CONTAINERS:
                if self._is_known(value):
                    continue
                if not opened.is_all_plain(value):
                    pending += [(part, True) for part in gc.get_referents(value)]
                    continue
            encoded = encode.encode(value)
            is_plain = not (isinstance(encoded, list) and encoded and encoded[0] in ("o", "T"))
            if is_plain and is_whole:
                self._tell(encoded)
            # Parts of what was told are told with it; but what is hidden in them is not.
            pending += [(part, not is_plain) for part in self._inside(value)]

    def _is_known(self, value: Any) -> bool:
        """Whether plain data, with all that is in it, was looked at before, or can be at once."""
        mark = opened.mark(value)
        if mark is None or mark in self._prints:
            return mark is not None
        encoded = encode.encode(value)
        if '["o", ' in json.dumps(encoded):  # buffers pass for bytes; what is in a string has its quotes escaped
            return False
        self._prints.add(mark)
        self._tell(encoded)
        return True

    def _inside(self, value: Any) -> list[Any]:
        kind = type(value)
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, _SOURCES):
            return self._of_generator(value)
        if isinstance(value, types.CodeType):
            return list(value.co_consts)
        if isinstance(value, types.BuiltinFunctionType):
            return [value.__self__]
        if isinstance(value, (types.ModuleType, types.FrameType, Look, followed.Followed, followed.Places)):
            return []
        if isinstance(value, type):
            return _without_names(vars(value)) if self._is_ours(value) else []
        if _is_runners(followed.module_of(kind)):
            return []
        try:
            found = opened.parts(value, opened.native_type(kind))
        except opened.Unopened as unopened:
            self._cannot_open(str(unopened))
            found = gc.get_referents(value)
        if opened.native_type(kind) == "_io.FileIO":
            self._read_opened(value)
            return []
        return [part for part in found if part is not kind]

    def _read_opened(self, raw: Any) -> None:
        """What an open file holds, wherever it stands, and also where it has no name any more."""
        if raw.closed:
            return
        number = raw.fileno()
        found = os.fstat(number)
        if stat.S_ISREG(found.st_mode):
            if found.st_size > opened.BYTES_MAX:
                self._cannot_open("a large file")
                return
            data = Path(f"/proc/self/fd/{number}").read_bytes()
            self._walk([data, data.decode("utf-8", "replace")])
        elif not stat.S_ISCHR(found.st_mode):
            self._cannot_open("a pipe or a socket")

    def _of_generator(self, value: Any) -> list[Any]:
        frame = getattr(value, "gi_frame", None) or getattr(value, "cr_frame", None) or getattr(value, "ag_frame", None)
        if frame is None:
            return []
        if self._places[frame.f_code.co_filename] is followed.Whose.SOURCE:
            return []  # what a call of the source is at is followed
        self._iterators.setdefault(id(value), value)
        return _without_names(frame.f_locals)

    def _of_function(self, function: Any) -> list[Any]:
        if not function.__code__.co_filename.startswith(self._workdir):
            return []
        found = [
            *function.__code__.co_consts,
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
            *vars(function).values(),
        ]
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        return found

    def _is_ours(self, kind: type) -> bool:
        return bool(followed.file_of(kind).startswith(self._workdir))

    def _tell_atom(self, value: Any) -> None:
        if isinstance(value, (str, bytes)) and len(value) > _TEXT_MAX:
            if len(value) > 10 * opened.BYTES_MAX:
                self._cannot_open("a long text")
                return
            for at in range(0, len(value), _TEXT_MAX):
                self._tell(encode.encode(value[at : at + _TEXT_MAX + _OVERLAP]))
            return
        self._tell(encode.encode(value))

    def _tell(self, encoded: Any) -> None:
        text = json.dumps(encoded)
        if text in self._told:
            return
        if self._characters > _CHARACTERS_MAX:
            self._cannot_open("more data than can be told")
            return
        self._told.add(text)
        self._characters += len(text)
        self._pending.append(encoded)
        self._waiting += len(text)
        if self._waiting > _LINE_CHARACTERS:
            self._flush()

    def _cannot_open(self, what: str) -> None:
        if what not in self._unopened:
            self._unopened.add(what)
            self._say("u", what[:200])

    def _flush(self) -> None:
        if self._pending:
            self._say("s", self._pending)
            self._pending, self._waiting = [], 0


def _is_bottom(frame: Any) -> bool:
    """Below are the runner's frames alone."""
    return frame.f_code.co_name in _BOTTOM and frame.f_globals.get("__name__", "").startswith("_pytest.")


def _is_runners(module: str) -> bool:
    """Mocks are the tests' own, though their module belongs to a runner."""
    return module.partition(".")[0] in _RUNNERS and not module.startswith("unittest.mock")


def _without_names(variables: Any) -> list[Any]:
    return [value for name, value in dict(variables).items() if not (name.startswith("__") and name.endswith("__"))]
