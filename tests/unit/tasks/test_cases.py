from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.tasks import cases
from ropewalk.tasks.tree import make_tree
from ropewalk.tasks.variations import vary_arguments

PROBE = Path(cases.__file__).with_name("case_probe.py")
PACKAGE = """
import itertools


def pieces(items, size, *rest, fill=None, **more):
    if size < 1:
        raise ValueError(size)
    for start in range(0, len(items), size):
        yield items[start:start + size]


def total(items, how=sum):
    return (lambda: how(items))() + sum(0 for _ in items if how)


def slow(x):
    while True:
        pass


def odd(x):
    return object()
"""
TESTS = """
import operator
from pkg import odd, pieces, total


def test_it():
    assert list(pieces([1, 2, 3], 2, "r", fill={"a": (1,)}, key=b"x")) == [[1, 2], [3]]
    assert total([1, 2]) == 3
    assert total([3, 4], how=operator.length_hint) == 2
    assert total([5], how=lambda items: 9) == 9
    odd(object())
"""
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)


def run(mode: str, job: dict[str, object], folder: Path) -> object:
    answer = subprocess.run(
        [sys.executable, "-P", "-s", "-B", str(PROBE), mode],
        input=json.dumps(job), capture_output=True, text=True, check=True, cwd=folder,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin"},
    )  # fmt: skip
    return json.loads(answer.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pkg.py").write_text(PACKAGE)
    (tmp_path / "test_pkg.py").write_text(TESTS)
    return tmp_path


def test_calls_with_plain_data_are_recorded(folder: Path) -> None:
    source = str(folder / "pkg.py")
    job = {"functions": {source: ["pieces", "total", "odd"]}, "import_paths": [str(folder)], "tests": ["test_pkg.py"],
           "arguments": []}  # fmt: skip
    found = run("record", job, folder)
    assert found == {
        f"{source}::pieces": ["(([1, 2, 3], 2, 'r'), {'fill': {'a': (1,)}, 'key': b'x'})"],
        f"{source}::total": ["(([1, 2], sum), {})", "(([3, 4], operator.length_hint), {})"],
        f"{source}::odd": [],
    }


def test_replayed_calls_say_what_came_of_them(folder: Path) -> None:
    calls = [
        ("pkg", "pieces", "(([1, 2, 3], 2), {})"),
        ("pkg", "total", "(([1, 2], sum), {})"),
        ("pkg", "total", "(([1, 2], operator.length_hint), {})"),
        ("pkg", "pieces", "(([1], 0), {})"),
        ("pkg", "slow", "((1,), {})"),
        ("pkg", "odd", "((1,), {})"),
        ("pkg", "gone", "((), {})"),
    ]
    job = {"calls": calls, "import_paths": [str(folder)], "call_timeout_s": 0.2, "hangs_max": 9, "budget_s": 20.0}
    assert run("replay", job, folder) == ["iterator [[1, 2], [3]]", "value 3", "value 2", None, None, None, None]


def test_nothing_is_said_of_what_executes_what_nobody_is_told_of(folder: Path) -> None:
    source = "def size(n):\n    if n > 9:\n        return 'many'\n    return 'few' if n else 'none'\n"
    (folder / "wide.py").write_text(source)
    place = str(folder / "wide.py")
    (folder / "test_fresh.py").write_text(
        "import wide\ndef case_0(): return wide.size(10)\ndef case_1(): return wide.size(5)\n"
    )
    bounds = {"call_timeout_s": 5.0, "hangs_max": 9, "budget_s": 20.0, "import_paths": [str(folder)]}
    job: dict[str, object] = {**bounds, "calls": [("wide", "size", f"(({n},), {{}})") for n in (10, 5, 0)]}
    assert run("replay", job, folder) == ["value 'many'", "value 'few'", "value 'none'"]

    lines = {place: {"2": False, "3": False, "4": True}}
    columns = [column for _, _, column, _ in _size_of(source).__code__.co_positions()]
    few = sorted({f"4:{column}" for column in columns} - {f"4:{source.splitlines()[3].index(repr('none'))}"})
    notes = {**bounds, "path": str(folder / "test_fresh.py"), "count": 2}
    for shown, replayed, noted in [
        ({}, [None, None, None], [None, None]),
        ({place: ["2", "3"]}, ["value 'many'", None, None], ["'many'", None]),
        ({place: ["2", "4", *few]}, [None, "value 'few'", None], [None, "'few'"]),
    ]:
        assert run("replay", {**job, "lines": lines, "shown": shown}, folder) == replayed
        assert run("notes", {**notes, "lines": lines, "shown": shown}, folder) == noted


def _size_of(source: str) -> Any:
    names: dict[str, Any] = {}
    exec(source, names)
    return names["size"]


def test_calls_that_hang_do_not_take_all_day(folder: Path) -> None:
    hanging = [("pkg", "slow", f"(({number},), {{}})") for number in range(40)]
    calls = [("pkg", "total", "(([2],), {})"), *hanging, ("pkg", "total", "(([1],), {})")]
    job = {"calls": calls, "import_paths": [str(folder)], "call_timeout_s": 0.2, "hangs_max": 3, "budget_s": 60.0}
    started_s = time.monotonic()
    assert run("replay", job, folder) == ["value 2", *[None] * 41]
    assert time.monotonic() - started_s < 6


def test_how_many_calls_are_answered_is_a_matter_of_their_number_and_not_of_time(folder: Path) -> None:
    calls = [("pkg", name, "(([1],), {})") for name in ("slow", "total", "slow", "total", "slow", "total")]
    for at_once in (1, 2):
        job = {"calls": calls, "import_paths": [str(folder)], "call_timeout_s": 0.1, "hangs_max": 3, "budget_s": 60.0}
        with ThreadPoolExecutor() as threads:  # beside others, a call has as much CPU time as alone
            said = list(threads.map(lambda job: run("replay", job, folder), [job] * at_once * 2))
        assert said == [[None, "value 1", None, "value 1", None, None]] * at_once * 2


@given(st.lists(PLAIN, max_size=3), st.integers(0, 10))
def test_variations_are_calls_of_the_same_shape(arguments: list[object], seed: int) -> None:
    text = repr((tuple(arguments), {"key": 1}))
    varied = vary_arguments(text, random.Random(seed))
    assert varied is not None
    positional, keywords = ast.literal_eval(varied)
    assert len(positional) == len(arguments)
    assert set(keywords) == {"key"} or len(keywords) == 1
    assert varied == vary_arguments(text, random.Random(seed))


def test_variations_leave_out_what_is_visible() -> None:
    tree = make_tree({"src/pkg/__init__.py": b"", "src/pkg/mod.py": b""}, distribution="pkg", version="1")
    calls = {"src/pkg/mod.py::go": ["((1, [2, 3]), {})"], "src/pkg/__init__.py::never": []}
    made = list(cases._variations(calls, tree, 1))
    assert len(made) > 10
    assert {(module, name) for module, name, _ in made} == {("pkg.mod", "go")}
    assert "((1, [2, 3]), {})" not in {text for _, _, text in made}
    assert len({text for _, _, text in made}) == len(made)
    assert made == list(cases._variations(calls, tree, 1))


def test_cases_become_a_module_of_plain_tests() -> None:
    text, tests = cases._module([
        (("pkg.mod", "go", "((1, [2]), {'key': 'x'})"), "value {'a': 1}"),
        (("pkg", "pieces", "(([1, 2], 1), {})"), "iterator [[1], [2]]"),
    ])  # fmt: skip
    assert tests == ["test_case_0", "test_case_1"]
    assert "    assert pkg.mod.go(1, [2], key='x') == {'a': 1}\n" in text
    assert "    assert list(itertools.islice(pkg.pieces([1, 2], 1), 200)) == [[1], [2]]\n" in text
    ast.parse(text)


def test_only_functions_that_a_right_solution_must_have_are_called() -> None:
    before = {
        "pkg/m.py": b"def public(): ...\ndef _private(): ...\ndef _tested(): ...\nclass C:\n    def go(self): ...\n"
    }
    tests = {"tests/test_m.py": b"from pkg.m import _tested, fresh\n", "tests/test_n.py": b"elsewhere()\n"}
    problem: Any = SimpleNamespace(before=before, tests=tests, visible_killers=("tests/test_m.py::test_x",))
    names = ["public", "_private", "_tested", "fresh", "added", "elsewhere", "C.go", "__getattr__", "public"]
    found = cases._callable(problem, [f"pkg/m.py::{name}" for name in names])
    assert found == ["pkg/m.py::_tested", "pkg/m.py::fresh", "pkg/m.py::public"]


async def ask_about_numbers(side: str, asked: Sequence[int], hash_seed: int) -> list[str | None]:
    """The right side says the number, the wrong one is wrong about odd ones; of multiples of five nobody is sure."""
    return [f"{number}{hash_seed if number % 5 == 0 else ''}{side if number % 2 else ''}" for number in asked]


async def test_some_cases_are_answered_alike_by_both_sources() -> None:
    """Otherwise one answer to everything could be the right one."""
    told = await cases._telling(range(100), cases._Sides(wrong="-", right=""), ask_about_numbers, 1)  # type: ignore[arg-type]
    assert [case % 2 for case, _ in told.telling] == [1] * cases.CASES_MAX
    assert [case % 2 for case, _ in told.equal] == [0] * cases.EQUAL_MAX
    assert all(case % 5 for case, _ in told.cases), "only steady ones"
    assert told.cases == [(case, str(case)) for case, _ in told.cases]


async def test_where_nothing_tells_no_case_is_made() -> None:
    told = await cases._telling(range(0, 100, 2), cases._Sides(wrong="-", right=""), ask_about_numbers, 1)  # type: ignore[arg-type]
    assert told.cases == []
