from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.tasks.bodies import functions
from ropewalk.tasks.surgery import guard_imports, remove_tests, without_bodies
from ropewalk.tasks.symbols import Symbols

SOURCE = textwrap.dedent('''
    """Tests."""
    from pkg import (
        a,
        b,
    )


    class TestA:
        # about one
        @staticmethod
        def test_one():
            assert a() == 1

        def test_two(self):  # keep
            assert a() == 2


    class TestB:
        def test_three(self):
            assert b() == 3


    def helper():
        return 1


    def test_four():
        assert b() == 4
''')


@pytest.mark.parametrize("odd", ["\f", "# \x1c\n", "# \u2028\n", "# \x85 \v\n"])
def test_what_looks_like_the_end_of_a_line_moves_nothing(odd: str) -> None:
    source = SOURCE.replace("\n\nclass", f"\n{odd}\nclass").replace("\n\ndef", f"\n{odd}\ndef")
    left = remove_tests(source, ["TestB.test_three", "test_four"])
    assert set(functions(left)) == {"TestA.test_one", "TestA.test_two", "helper"}
    assert "== 3" not in left and "== 4" not in left and left.count(odd) == source.count(odd)
    guarded, missing = guard_imports(source, Symbols({"pkg.py": b"a = 1\n"}), path="test_x.py")
    assert missing == ("b",) and guarded.endswith(source.partition(")\n")[2])


def test_removes_a_test_with_its_decorators_and_comments() -> None:
    left = remove_tests(SOURCE, ["TestA::test_one"])
    assert "about one" not in left
    assert "staticmethod" not in left
    assert "def test_two(self):  # keep" in left
    assert left.count("class ") == 2


def test_empty_class_keeps_a_pass() -> None:
    left = remove_tests(SOURCE, ["TestB.test_three", "test_four"])
    assert "class TestB:\n    pass\n" in left
    assert "test_four" not in left
    ast.parse(left)


def test_everything_else_keeps_its_bytes() -> None:
    assert remove_tests(SOURCE, []) == SOURCE
    assert remove_tests(SOURCE, ["test_unknown"]) == SOURCE
    assert remove_tests("def broken(:\n", ["broken"]) == "def broken(:\n"


@given(st.sets(st.sampled_from(["TestA.test_one", "TestA.test_two", "TestB.test_three", "test_four"])))
def test_what_is_left_parses_and_holds_exactly_the_rest(names: set[str]) -> None:
    left = remove_tests(SOURCE, names)
    assert set(functions(left)) == set(functions(SOURCE)) - names


def test_bodies_are_removed_wherever_they_stand() -> None:
    copy = b"def test_renamed():\n    assert b() == 4\n\n\ndef not_a_test():\n    assert b() == 4\n"
    digest = functions(SOURCE)["test_four"].digest
    left = without_bodies({"test_a.py": SOURCE.encode(), "test_b.py": copy, "data.txt": b"\xff"}, {digest})
    assert b"test_four" not in left["test_a.py"]
    assert b"test_renamed" not in left["test_b.py"]
    assert b"not_a_test" in left["test_b.py"]
    assert left["data.txt"] == b"\xff"


PACKAGE = {
    "pkg/__init__.py": b"from .core import *\nfrom . import extra as more\n",
    "pkg/core.py": b"import os\n\n\ndef a(): ...\n\n\nb: int = 1\n",
    "pkg/extra.py": b"",
    "pkg/sub/__init__.py": b"",
    "pkg/dynamic.py": b"globals()['x'] = 1\n",
    "pkg/lazy.py": b"def __getattr__(name): ...\n",
}


def test_symbols_know_what_a_release_lacks() -> None:
    symbols = Symbols(PACKAGE)
    assert not symbols.lacks("pkg", "a")
    assert not symbols.lacks("pkg", "more")
    assert not symbols.lacks("pkg", "extra")
    assert symbols.lacks("pkg", "new")
    assert symbols.lacks("pkg.core", "new")
    assert symbols.lacks("pkg.gone", "x")
    assert symbols.lacks_module("pkg.gone")
    assert not symbols.lacks_module("pkg.sub")
    assert not symbols.lacks("json", "anything")
    assert not symbols.lacks_module("json.anything")


def test_what_cannot_be_read_is_taken_to_be_there() -> None:
    symbols = Symbols(PACKAGE)
    assert not symbols.lacks("pkg.dynamic", "x")
    assert not symbols.lacks("pkg.lazy", "x")
    star = Symbols({"pkg/__init__.py": b"from outside import *\n"})
    assert not star.lacks("pkg", "x")


def run(source: str, missing: set[str]) -> dict[str, object]:
    """Executes a module whose imports of `missing` names fail."""
    space: dict[str, object] = {}

    def fake(name: str, *arguments: object, **_: object) -> object:
        wanted = arguments[2] if len(arguments) > 2 else ()
        if name in missing or missing.intersection(wanted or ()):  # type: ignore[call-overload]
            raise ImportError(name)
        return type(name, (), dict.fromkeys(wanted or (), 1) | {"new": 1})  # type: ignore[call-overload]

    space["__builtins__"] = {**vars(__import__("builtins")), "__import__": fake}
    exec(compile(source, "test", "exec"), space)
    return space


def test_missing_names_are_guarded_one_by_one() -> None:
    source = "from pkg import a, new, other as alias\nimport pkg.gone\nimport json\n\nx = a\n"
    guarded, missing = guard_imports(source, Symbols(PACKAGE), path="tests/test_a.py")
    assert set(missing) == {"new", "alias", "pkg.gone"}
    assert guarded.startswith("from pkg import a\n")
    assert guarded.endswith("import json\n\nx = a\n")
    space = run(guarded, {"new", "other", "pkg.gone"})
    assert space["x"] == 1
    assert "pkg" in space
    stand_in = space["new"]
    assert isinstance(stand_in, type)
    assert issubclass(stand_in, Exception)
    try:
        stand_in(1, key=2)
    except NotImplementedError as error:
        assert "new is not in this release" in str(error)
    else:
        raise AssertionError("a name that is not there could be called")


def test_guards_vanish_where_the_name_exists() -> None:
    guarded, _ = guard_imports("from pkg import new\n", Symbols(PACKAGE), path="tests/test_a.py")
    assert run(guarded, set())["new"] == 1


def test_relative_imports_of_tests_inside_the_package() -> None:
    guarded, missing = guard_imports("from ..core import new, a\n", Symbols(PACKAGE), path="pkg/tests/test_core.py")
    assert missing == ("new",)
    assert "from ..core import a\n" in guarded


def test_nothing_missing_nothing_changed() -> None:
    source = "from pkg import a\nfrom pkg import *\n"
    assert guard_imports(source, Symbols(PACKAGE), path="tests/test_a.py") == (source, ())
    assert guard_imports("def broken(:", Symbols(PACKAGE), path="t.py") == ("def broken(:", ())
