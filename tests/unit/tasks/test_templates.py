from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.tasks import cases
from ropewalk.tasks.templates import (
    expectation,
    find_templates,
    judging_module,
    noting_module,
    vary_templates,
    without_any_test,
)
from ropewalk.tasks.variations import change_value, vary_arguments

TESTS = textwrap.dedent('''
    import unittest
    from pkg import Bag, count

    DATA = [1, 2]


    def helper(x):
        return x


    def test_plain():
        """Says what."""
        bag = Bag("abc")
        bag.add("d")
        expected = "abcd"
        assert bag.text == "abcd"
        assert expected == bag.text
        for size in [1, 2]:
            assert bag.first(size) == "abcd"[:size]
        assert bag


    class TestBag(unittest.TestCase):
        def test_method(self):
            with self.subTest("deeper"):
                self.assertEqual(count([5, 6]), 2)
            with self.assertRaises(ValueError):
                count(None)
            self.assertTrue(count([1]))

        def test_uses_its_class(self):
            self.assertEqual(self.made, 1)

        def test_any_order(self):
            self.assertCountEqual(count([1]), [1])


    def test_fixture(tmp_path):
        assert count([1]) == 1


    def test_returns():
        assert count([1]) == 1
        return 1


    async def test_later():
        assert count([1]) == 1
''')
NAMES = [
    "test_plain", "TestBag::test_method", "TestBag::test_uses_its_class", "TestBag::test_any_order", "test_fixture",
    "test_returns", "test_later",
]  # fmt: skip
PACKAGE = """
class Bag:
    def __init__(self, text):
        self.text = text

    def add(self, letter):
        self.text += letter

    def first(self, size):
        return self.text[:size]


def count(items):
    return len(items)
"""


def templates() -> list[list[ast.stmt]]:
    path, found = find_templates(
        {"tests/test_bag.py": TESTS.encode(), "tests/other.py": b""}, [f"tests/test_bag.py::{name}" for name in NAMES]
    )
    assert path == "tests/test_bag.py"
    return found


def test_only_functions_that_stand_alone_become_templates() -> None:
    texts = [ast.unparse(ast.Module(body=body, type_ignores=[])) for body in templates()]
    assert len(texts) == 2
    assert texts[0].count("found.append(_noted(bag.text))") == 2
    assert "found.append(_noted(bag.first(size)))" in texts[0]
    assert "assert" not in texts[0]
    assert texts[1].splitlines()[0] == "found.append(_noted(count([5, 6])))"
    assert "self" not in texts[1]


def test_variations_are_different_and_repeatable() -> None:
    made = list(vary_templates(templates(), 3, count=30))
    assert len(set(made)) == len(made) > 15
    assert made == list(vary_templates(templates(), 3, count=30))
    assert made != list(vary_templates(templates(), 4, count=30))


def bodies_of(test: str) -> list[list[ast.stmt]]:
    return find_templates({"t.py": test.encode()}, ["t.py::test_it"])[1]


@pytest.mark.parametrize(
    "expected", ["by_definition(data)", "[by_definition(x) for x in data]", "pytest.approx(0.3)", "list(other(data))"]
)
def test_what_is_compared_with_a_call_is_no_template(expected: str) -> None:
    """Its value could be had from the helper that the module ships, or is right within a tolerance only."""
    compared = f"    assert double(data) == {expected}\n"
    assert bodies_of(f"def test_it():\n    data = [1]\n{compared}") == []
    mixed = bodies_of(f"def test_it():\n    data = [1]\n{compared}    assert double(data) == [1, 1]\n")
    assert "\n".join(map(ast.unparse, mixed[0])).count("_noted") == 1


def test_plain_constructors_are_no_calls() -> None:
    assert len(bodies_of("def test_it():\n    assert double([1]) == list(range(3))\n")) == 1


def test_bodies_that_cannot_be_written_down_are_left_out() -> None:
    odd = "def test_it():\n    n = 0x" + "f" * 4000 + "\n    assert double(n) == n\n"
    fine = bodies_of("def test_it():\n    assert double(2) == 4\n")
    assert list(vary_templates(bodies_of(odd), 1, count=5)) == []
    assert len(list(vary_templates([*bodies_of(odd), *fine], 1, count=5))) == 5


@pytest.mark.parametrize("text", ["((0x" + "f" * 4000 + ",), {})", "((" + "-" * 5000 + "1,), {})", "((", "\0"])
def test_recorded_calls_that_cannot_be_read_are_left_out(text: str) -> None:
    assert vary_arguments(text, random.Random(1)) is None


def test_each_note_is_compared_by_itself() -> None:
    text, names = judging_module("", [("    found.append(1)\n    found.append([2])", "[1, [2]]")])
    assert names == ["test_case_0"]
    assert "    assert len(found) == 2\n    assert found[0] == 1\n    assert found[1] == [2]\n" in text


def test_no_usable_killer_no_template() -> None:
    assert find_templates({"t.py": TESTS.encode()}, ["t.py::test_fixture", "gone.py::test_x"]) == ("", [])


def test_notes_and_the_tests_made_of_them_agree(tmp_path: Path) -> None:
    (tmp_path / "pkg.py").write_text(PACKAGE)
    folder = tmp_path / "suite" / "inner"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    preamble = without_any_test(TESTS)
    assert "def helper" in preamble
    assert "def test_" not in preamble
    bodies = list(vary_templates(templates(), 1, count=20))
    place = folder / "test_fresh.py"
    place.write_text(noting_module(preamble, [*bodies, "    found.append(object())", "    while True: pass"]))
    job = {
        "path": str(place),
        "count": len(bodies) + 2,
        "import_paths": [str(tmp_path)],
        "call_timeout_s": 0.2,
        "hangs_max": 9,
        "budget_s": 20.0,
    }
    probe = Path(cases.__file__).with_name("case_probe.py")
    answer = subprocess.run(
        [sys.executable, "-P", "-s", "-B", str(probe), "notes"], input=json.dumps(job), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    notes = json.loads(answer.stdout)
    assert notes[-2:] == [None, None]
    pairs = [(body, truth) for body, truth in zip(bodies, notes, strict=False) if truth is not None]
    assert len(pairs) > 10
    text, names = judging_module(preamble, pairs)
    place.write_text(text)
    assert len(names) == len(pairs)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(place)], cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert f"{len(names)} passed" in outcome.stdout, outcome.stdout


@given(st.integers(0, 500))
def test_any_number_of_changes_leaves_something_that_parses(seed: int) -> None:
    tree = ast.parse("f([1], ['ab', b'c', 1.5, True, None], {'k': [2]}, '')")
    chance = random.Random(seed)
    for _ in range(8):
        change_value(chance.choice([n for n in ast.walk(tree) if isinstance(n, (ast.Constant, ast.List))]), chance)
    ast.parse(ast.unparse(tree))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0.1", "pytest.approx(0.1)"),
        ("-2.5", "pytest.approx(-2.5)"),
        ("[1, 0.5]", "pytest.approx([1, 0.5])"),
        ("3", "3"),
        ("'0.1'", "'0.1'"),
        ("[[0.5]]", "[[0.5]]"),
        ("['a', 0.5]", "['a', 0.5]"),
    ],
)
def test_floats_are_right_within_a_tolerance(value: str, text: str) -> None:
    assert expectation(ast.parse(value, mode="eval").body) == text
