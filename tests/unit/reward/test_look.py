"""What lies within reach of tested code is found; tests that go on after exceptions ask for everything."""

from __future__ import annotations

import importlib
import sys
import textwrap
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from ropewalk.reward.values import encode
from ropewalk.reward.values.instrument import instrument
from ropewalk.reward.values.lenient import lenient
from ropewalk.reward.values.watched import watched

HEAD = """
import array, builtins, collections, concurrent.futures, ctypes, dataclasses, functools, io, itertools, json, mmap
import operator, os, queue, sys, sqlite3, struct, tempfile, threading, unittest.mock, zlib
"""
SOURCE = """
def tested(*arguments, **options): return 0
def asks_once(iterator): return next(iter(iterator))
"""
PLACES = {
    "a local": "def test():\n held = MAKE()\n point()",
    "a global": "held = MAKE()\ndef test():\n point()",
    "a local of the caller": "def inner():\n point()\ndef test():\n held = MAKE()\n inner()",
    "an argument": "def test():\n tested(MAKE())",
    "a keyword": "def test():\n tested(option=MAKE())",
    "an item": "def test():\n held = {'a': [(MAKE(),)]}\n point()",
    "an attribute": "class Box: pass\ndef test():\n held = Box()\n held.a = Box()\n held.a.it = MAKE()\n point()",
    "a slot": "class Box:\n __slots__ = ('it',)\ndef test():\n held = Box()\n held.it = MAKE()\n point()",
    "a dataclass": "@dataclasses.dataclass\nclass Box:\n it: object\ndef test():\n tested(Box(MAKE()))",
    "a class": "class Box:\n it = MAKE()\ndef test():\n point()",
    "self": "class Case:\n def run(self):\n  point()\ndef test():\n [setattr(x := Case(), 'it', MAKE()), x.run()]",
    "a closure": "def test():\n held = MAKE()\n tested(lambda: held)",
    "a default": "def test():\n tested(lambda it=MAKE(): it)",
    "a keyword default": "def test():\n tested(lambda *, it=MAKE(): it)",
    "a partial": "def test():\n tested(functools.partial(print, MAKE()))",
    "a bound method": "def test():\n tested(MAKE().append)",
    "an iterator": "def test():\n tested(iter([MAKE()]))",
    "a chain of iterators": "def test():\n tested(zip(itertools.chain([1], iter([MAKE()])), [2, 3]))",
    "a generator": "def some():\n held = MAKE()\n yield held\n yield\ndef test():\n it=some()\n next(it)\n tested(it)",
    "a deque": "def test():\n tested(collections.deque([[MAKE()]]))",
    "a constant of a function": "def helper():\n return (4711, 'found')\ndef test():\n point()",
    "beside what is opaque": "def test():\n held = [object(), object, MAKE()]\n point()",
    "an exception": "def test():\n tested(ValueError([MAKE()]))",
}


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "encode", encode)
    for name in ("opened", "followed"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(f"ropewalk.reward.values.{name}"))
    return importlib.import_module("ropewalk.reward.values.look")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, look: Any) -> Any:
    return lambda source, *, watch=False: seen_from(monkeypatch, look, tmp_path, source, watch=watch)


def attempt(test: Any) -> list[Exception]:
    try:
        test()
    except Exception as error:
        return [error]
    return []


def seen_from(monkeypatch: pytest.MonkeyPatch, look: Any, folder: Path, source: str, *, watch: bool) -> list[Any]:
    said: list[Any] = []
    unopened: list[str] = []
    failures: list[Exception] = []
    watcher = look.Look(
        lambda kind, told: said.extend(told) if kind == "s" else unopened.append(told) if kind == "u" else None,
        str(folder),
        frozenset({str(folder / "test_places.py")}),
    )
    module = types.ModuleType("test_places")
    module.__dict__.update(
        point=lambda: watcher.around(sys._getframe(1)), MAKE=lambda: [int("4711"), "".join(["fou", "nd"])]
    )
    module.__file__ = str(folder / "test_places.py")
    sys.modules["test_places"] = module
    monkeypatch.setitem(sys.modules, "_ropewalk", types.SimpleNamespace(saw=watcher.saw, yields=watcher.yields))
    try:
        exec(compile(SOURCE, str(folder / "source.py"), "exec"), module.__dict__)
        exec(compile(watched(HEAD + source) if watch else HEAD + source, module.__file__, "exec"), module.__dict__)
        watcher.start()
        thread = threading.Thread(target=lambda: failures.extend(attempt(module.test)))
        thread.start()  # nothing of this test is among its callers
        thread.join()
        assert not failures
    finally:
        watcher.stop()
        del sys.modules["test_places"]
    return said if not unopened else [*said, "not opened", *unopened]


@pytest.mark.parametrize("place", PLACES)
def test_a_value_is_found_wherever_it_lies(seen: Any, place: str) -> None:
    said = seen(PLACES[place])
    assert any("4711" in repr(value) and "found" in repr(value) for value in said), said


@pytest.mark.parametrize("held", ["array.array('q', MAKE()[:1])", "memoryview(array.array('q', MAKE()[:1]))"])
def test_numbers_of_a_buffer_are_found(seen: Any, held: str) -> None:
    assert ["l", [4711]] in seen(f"def test():\n held = {held}\n point()")
    assert ["l", [4711]] in seen(f"def test():\n tested({held})")


def test_iterators_are_left_as_they_are(seen: Any) -> None:
    source = "def test():\n held = iter([1, 2])\n point()\n tested(held)\n assert list(held) == [1, 2]"
    assert seen(source)


WATCHED = {
    "given to a C function": "def test():\n zlib.crc32(bytes(MAKE()[1], 'ascii')); struct.pack('<q', MAKE()[0])",
    "given to a builtin": "def test():\n len(MAKE())",
    "given to a builtin found at run time": "def test():\n getattr(builtins, 'le' + 'n')(MAKE())",
    "between two C functions": "def test():\n zlib.crc32(json.dumps(MAKE()).encode())",
    "an operand": "def test():\n (MAKE() + [1])[2] - 1",
    "formatted": "def test():\n f'{MAKE()!r:>40}'",
    "yielded to nobody": "def test():\n tested(item for item in MAKE())",
    "yielded later": "def test():\n asks_once(MAKE()[n] for n in (0, 1))",
    "yielded by a generator": "def some():\n yield 1\n yield from MAKE()\ndef test():\n asks_once(some())",
    "mapped": "def test():\n asks_once(map(operator.add, [4000, 'fou'], [711, 'nd']))",
    "accumulated": "def test():\n asks_once(itertools.accumulate([[1], MAKE()]))",
    "mapped and taken whole": "def test():\n list(map(operator.add, [4000, 'fou'], [711, 'nd']))",
    "in a stream": "def test():\n s = io.StringIO()\n [s.write(str(part)) for part in MAKE()]\n tested(s)",
    "in a stream of bytes": "def test():\n s = io.BytesIO()\n s.write(b'4711'); s.write(b'found')\n tested(s)",
    "in a wrapped stream": "def test():\n s = io.TextIOWrapper(io.BytesIO())\n s.write('4711found')\n tested(s)",
    "in an open file": "def test():\n s = tempfile.NamedTemporaryFile('w+')\n s.write('4711found')\n tested(s)",
    "in a file without a name": "def test():\n with tempfile.TemporaryFile('w+') as s: s.write('4711found'); tested(s)",
    "in a module of a test": (
        "def test():\n s = tempfile.NamedTemporaryFile('w', suffix='.py')\n s.write('x=4711#found')\n tested(s.file)"
    ),
    "in a map of memory": "def test():\n m = mmap.mmap(-1, 16)\n m[:4] = b'4711'; m[4:9] = b'found'\n tested(m)",
    "in a buffer of C": "def test():\n tested(ctypes.create_string_buffer(b'4711' + b'found'))",
    "in a queue": "def test():\n q = queue.Queue()\n q.put(MAKE())\n tested(q)",
    "in a queue of C": "def test():\n q = queue.SimpleQueue()\n [q.put(part) for part in MAKE()]\n tested(q)",
    "in a mock": "def test():\n tested(unittest.mock.Mock(return_value=MAKE()))",
    "called back": "def test():\n functools.reduce(tested, MAKE())",
    "called back by the library": "class Odd: it = 4711\ndef test():\n json.dumps([MAKE(), Odd()], default=tested)",
    "in another thread": "def test():\n t = threading.Thread(target=tested, args=(MAKE(),))\n t.start(); t.join()",
    "in a pool": "def test():\n with concurrent.futures.ThreadPoolExecutor(1) as p: p.submit(tested, MAKE()).result()",
    "an attribute of a function": "def helper(): pass\nhelper.it = MAKE()\ndef test():\n tested(helper)",
    "changed in place": "def test():\n x = ['nd', 'fou', 4711]\n x.reverse()\n x[1:] = [x[1] + x[2]]\n len(x)",
    "a local of a helper": "def helper(*_):\n held = MAKE()\n return tested()\ndef test():\n helper()",
}


@pytest.mark.parametrize("place", WATCHED)
def test_what_a_test_computes_is_found_wherever_it_goes(seen: Any, place: str) -> None:
    said = repr(seen(WATCHED[place], watch=True))
    assert ("4711" in said or "34373131" in said) and ("found" in said or "666f756e64" in said), said
    assert "on looking" not in said


@pytest.mark.parametrize("held", [
    "sqlite3.connect(':memory:')", "zlib.compressobj()", "zlib.decompressobj()",
    "open(os.pipe()[0], 'rb', closefd=False)",
    "io.BytesIO(bytes(2_000_000))", "(n for n in itertools.count())", "[[str(n)] for n in range(12_000)]",
])  # fmt: skip
def test_what_cannot_be_looked_into_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: Any, held: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.import_module("ropewalk.reward.values.look"), "_SAWS_MAX", 10_000)
    assert "not opened" in seen(f"def test():\n tested({held})", watch=True)
    assert "not opened" not in seen("def test():\n tested(1)", watch=True)


@pytest.mark.parametrize("made", ["(n * 7919 for n in (1, 2, 3))", "some()"])
def test_what_is_yielded_in_part_is_seen_whole(seen: Any, made: str) -> None:
    source = f"def some():\n for n in (1, 2, 3): yield n * 7919\ndef test():\n g = {made}\n asks_once(g); asks_once(g)"
    assert ["l", [7919, 15838, 23757]] in seen(source, watch=True)


def test_watching_changes_nothing(seen: Any) -> None:
    body = textwrap.dedent("""
        from __future__ import annotations
        import dataclasses
        class Base:
            limit: int = 3
            def name(self): return "base"
        class Derived(Base, metaclass=type):
            def name(self): return super().name() + f"{self.limit:>{self.limit + 1}}" + f"{'x'!r}"
        @dataclasses.dataclass(frozen=True)
        class Row:
            a: int
            b: list[int] = dataclasses.field(default_factory=list)
        async def some():
            yield 1
        def test():
            global total
            total = 0
            for total, (a, *b) in enumerate([(1, 2, 3)]): pass
            it = iter(range(5)); next(it)
            assert [*it] == [1, 2, 3, 4] and Derived().name() == "base   3'x'"
            assert list(map(str, (n for n in range(3) if n))) == ["1", "2"]
            match Row(1, [2]):
                case Row(a=1, b=[x]) if x: assert x == 2
                case _: raise AssertionError
            x = [1]; y = x; y += [2]; x[0] = 5; del x[1]
            assert x is y and x == [5]
            try: raise KeyError("a")
            except (KeyError, ValueError) as error: assert error.args == ("a",)
            with open("/dev/null") as sink: assert sink.read() == ""
            assert (lambda n, *, m=2: n * m)(4) == 8 and {**{"a": 1}} == {"a": 1}
            generator = (n for n in (1, 2)); assert generator.gi_frame and next(generator) == 1; generator.close()
            assert [y := 1, y ** 2] == [1, 1] and (yield_ := "a").upper() == "A"
    """)  # fmt: skip
    names: dict[str, Any] = {}
    exec(watched(body), names)
    names["test"]()


def test_looking_has_an_end(seen: Any) -> None:
    source = (
        "def test():\n a = []\n a.append(a)\n big = [[n, str(n)] for n in range(9999)]\n for _ in range(9): point()"
    )
    assert len(repr(seen(source, watch=True))) < 10_000_000


class Told:
    """Notes what a lenient test says."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def value(self, point: str, actual: Any) -> None:
        self.said.append((point.rpartition(":")[2], actual))

    truth = value

    def missed(self, point: str) -> None:
        self.value(point, "missed")

    def raises(self, point: str) -> Any:
        return Caught(self, point)


class Caught:
    def __init__(self, told: Told, point: str) -> None:
        self.told, self.point = told, point

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, *_: Any) -> bool:
        self.told.value(self.point, kind and kind.__name__)
        return True


@pytest.mark.parametrize(("body", "said"), [
    ("assert f(0) == 1\nassert f(2) == 2", [("0", "missed"), ("1", 0.5)]),
    ("x = f(0)\nassert x == 1\nassert f(2) == 2", [("0", "missed"), ("1", 0.5)]),
    ("for n in (0, 1):\n    assert f(n) == 3", [("0", "missed"), ("0", 1.0)]),
    ("if f(1):\n    f(0)\n    assert f(1) == 4", [("0", 1.0)]),
    ("with pytest.raises(ValueError):\n    f(0)\n    f(1)\nassert f(1) == 2", [("0", "ZeroDivisionError"), ("1", 1.0)]),
    ("f(0)\nassert f(4) > 7", [("0", False)]),
    ("with open('/none') as sink:\n    assert f(1) == 4\nassert f(1) == 5", [("1", 1.0)]),
    ("def inner():\n    return f(0)\ntry:\n    inner()\nexcept ZeroDivisionError:\n    pass\nassert f(1) == 5",
     [("0", 1.0)]),
])  # fmt: skip
def test_a_lenient_test_asks_for_everything(
    monkeypatch: pytest.MonkeyPatch, body: str, said: list[tuple[str, Any]]
) -> None:
    source = "import pytest\nfrom package import f, missing\ndef test_a():\n" + textwrap.indent(body, "    ")
    told = Told()
    monkeypatch.setitem(sys.modules, "_ropewalk", told)
    package = types.ModuleType("package")
    package.f = lambda number: 1 / number  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "package", package)
    names: dict[str, Any] = {"f": package.f}
    exec(lenient(instrument(source).shipped), names)
    names["test_a"]()
    assert told.said == said


def test_lenient_set_ups_fixtures_and_classes_go_on() -> None:
    text = lenient(instrument(textwrap.dedent("""
        from __future__ import annotations
        import pytest
        class Cases:
            table = broken()
            def setUp(self):
                self.a = broken()
                self.b = 1
            def helper(self):
                raise KeyError
            def test_a(self):
                while broken():
                    pass
                assert self.b == 1
        @pytest.fixture
        def made():
            broken()
            yield 1
    """)).shipped)  # fmt: skip
    compile(text, "lenient", "exec")
    assert text.startswith("from __future__")
    assert text.count("except Exception") == 14
    assert "raise KeyError\n" in text and "_ropewalk.missed('Cases.test_a:0')" in text


OPENED = {
    "a row of a table": "csv.reader(io.StringIO(','.join(map(str, MAKE()))))",
    "an element": "xml.etree.ElementTree.fromstring('<a b=\"4711\">found</a>')",
    "a syntax tree": "ast.parse('x = [4711, \\'found\\']')",
    "a deque's iterator": "iter(collections.deque([MAKE()]))",
    "a deque's iterator, backwards": "reversed(collections.deque([MAKE()]))",
    "a structure in order": "types.SimpleNamespace(it=MAKE(), version=sys.version_info, now=time.gmtime(0))",
    "a token of a context": "[MAKE(), contextvars.ContextVar('it').set(1)]",
    "parts of a buffer": "[MAKE(), struct.Struct('>I').iter_unpack(bytes(8))]",
    "a decoder": "[MAKE(), json.JSONDecoder(), json.JSONEncoder()]",
    "an event loop": "types.SimpleNamespace(it=MAKE(), loop=LOOP)",
}


@pytest.mark.parametrize("held", OPENED)
def test_what_tests_often_hold_is_looked_into(seen: Any, held: str) -> None:
    head = (
        "import ast, asyncio, contextvars, csv, time, types, xml.etree.ElementTree\nLOOP = asyncio.new_event_loop()\n"
    )
    said = seen(f"{head}def test():\n held = {OPENED[held]}\n point()\n LOOP.close()")
    assert "not opened" not in said
    assert any("4711" in repr(value) for value in said) and any("found" in repr(value) for value in said), said
