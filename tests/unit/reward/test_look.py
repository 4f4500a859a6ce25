"""What lies within reach of tested code is found; tests that go on after exceptions ask for everything."""

from __future__ import annotations

import importlib
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from ropewalk.reward.values import encode
from ropewalk.reward.values.instrument import instrument
from ropewalk.reward.values.lenient import lenient

HEAD = """
import array, collections, dataclasses, functools, itertools
def tested(*arguments, **options): return 0
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
    return importlib.import_module("ropewalk.reward.values.look")


def seen_from(look: Any, folder: Path, source: str) -> list[Any]:
    said: list[Any] = []
    watcher = look.Look(lambda _, values: said.extend(values), str(folder))
    module = types.ModuleType("test_places")
    module.__dict__.update(
        point=lambda: watcher.around(sys._getframe(1)), MAKE=lambda: [int("4711"), "".join(["fou", "nd"])]
    )
    module.__file__ = str(folder / "test_places.py")
    sys.modules["test_places"] = module
    try:
        exec(compile(HEAD + source, module.__file__, "exec"), module.__dict__)
        watcher.start()
        module.test()
    finally:
        watcher.stop()
        del sys.modules["test_places"]
    return said


@pytest.mark.parametrize("place", PLACES)
def test_a_value_is_found_wherever_it_lies(look: Any, tmp_path: Path, place: str) -> None:
    said = seen_from(look, tmp_path, PLACES[place])
    assert any("4711" in repr(value) and "found" in repr(value) for value in said), said


@pytest.mark.parametrize("held", ["array.array('q', MAKE()[:1])", "memoryview(array.array('q', MAKE()[:1]))"])
def test_numbers_of_a_buffer_are_found(look: Any, tmp_path: Path, held: str) -> None:
    assert ["l", [4711]] in seen_from(look, tmp_path, f"def test():\n held = {held}\n point()")
    assert ["l", [4711]] in seen_from(look, tmp_path, f"def test():\n tested({held})")


def test_iterators_are_left_as_they_are(look: Any, tmp_path: Path) -> None:
    source = "def test():\n held = iter([1, 2])\n point()\n tested(held)\n assert list(held) == [1, 2]"
    assert seen_from(look, tmp_path, source)


def test_looking_has_an_end(look: Any, tmp_path: Path) -> None:
    source = (
        "def test():\n a = []\n a.append(a)\n big = [[n, str(n)] for n in range(9999)]\n for _ in range(9): point()"
    )
    assert len(repr(seen_from(look, tmp_path, source))) < 10_000_000


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
