"""Graders built and used in real sandboxes: what is recorded, what is refused, what a suite run brings back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.reward.suite import SuitePlan, SuiteRunner
from ropewalk.sandbox.contract import SandboxSpec
from tests.grading import TENANT, GradedProblem, GradingWorld, grading_world
from tests.unit.reward.worlds import LEDGER, LEDGER_FIXED, SPANS, built, grading_root  # noqa: F401

pytestmark = pytest.mark.timeout(180)


def problem(tests: str, *, broken: str = "return x", fixed: str = "return x * 1009") -> GradedProblem:
    """A function `f(x)` and one module of tests."""
    names = [line[4 : line.index("(")] for line in tests.splitlines() if line.startswith("def test")]
    return GradedProblem(
        name="f",
        before={"package.py": f"import random\ndef f(x):\n    {broken}\n"},
        after={"package.py": f"import random\ndef f(x):\n    {fixed}\n"},
        tests={"tests/test_f.py": f"import pytest\nfrom package import f\n{tests}"},
        held_out=tuple(f"tests/test_f.py::{name}" for name in names),
    )


REFUSED = {
    "low_entropy": problem(
        "def test_a():\n    assert f(2) != 2\n    assert f(1) == 1009 * 1\n".replace("1009 * 1", "f(1)")
    ),
    "no_voting_killer": problem("def test_a():\n    assert f(0) == 0\n"),
    "reference_fails": problem("def test_a():\n    assert f(2) == 3\n"),
    "flaky": problem(
        "def test_a():\n    for _ in range(int(random() * 400)):\n        assert f(1234) == 1245106\n".replace(
            "random()", "__import__('random').random()"
        )
    ),
    "not_collected": replace(problem("def test_a():\n    pass\n"), held_out=("tests/test_f.py::test_b",)),
    "not_parsable": replace(problem("def test_a():\n    pass\n"), tests={"tests/test_f.py": "def test_a(:"}),
}


async def test_graders_that_would_not_tell_right_from_wrong_are_refused(grading_root: Path) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        for reason, bad in REFUSED.items():
            _, grader = await world.build(bad)
            assert (grader.refused, grader.spec) == (reason, None), grader.detail


async def test_what_is_visible_is_worth_nothing(grading_root: Path) -> None:  # noqa: F811
    tests = "def test_a():\n    assert f(1234) == 1245106\n    assert f(77) == 77693\n"
    shown = problem(tests)
    shown = replace(shown, before={**shown.before, "notes.py": "A, B = 1245106, 77693\n"})
    async with grading_world(grading_root) as world:
        _, grader = await world.build(shown)
        assert grader.refused == "low_entropy"
        assert "1245106 at test_a:0: it stands in the source" in grader.detail


REACHABLE = """
import functools
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from unittest import TestCase

def test_a_local():
    expected = [n * 1717 for n in range(1, 7)]
    assert f(expected[::-1]) == expected
SPRING, AUTUMN = date(2021, 4, 3), date(2022, 10, 9)
def test_a_global():
    assert f([SPRING, AUTUMN]) == AUTUMN
def test_an_argument_without_a_name():
    assert f("x y".split() + [Decimal("1.5") * 3, Fraction(11, 13)]) == Fraction(11, 13)
def slow(n):
    return sum(n * n for _ in range(31)) + 17
def test_a_function_that_is_shipped():
    assert f(slow) == slow(901)
fast = lambda n: slow(n) * 3
def test_a_lambda_that_is_shipped():
    assert f(fast) == [fast(77), fast(78)]
@pytest.fixture
def made():
    return {"all": [("key", 2 ** 20 + 7)]}
def test_a_fixture(made):
    assert f(made) == [("key", 1048583)]
def test_a_closure():
    held = ["se" + "cret", "wo" + "rd"]
    assert f(lambda: held) == ["secret", "word"]
@dataclass
class Box:
    inside: object
def test_an_attribute():
    assert f(Box(Box(b"by" + b"tes " * 9))) == b"bytes " + b"tes " * 8
def test_an_argument_of_a_partial():
    assert f(functools.partial(print, 51 * 51 * 51)) == 132651
def test_what_comes_after_an_exception():
    assert f(strict=7) is True
    assert f(70001, right=True) == 70001
    assert f(9001 * 9001, right=True) == 81018001
def test_exceptions():
    for kind in (0, 1):
        with pytest.raises(KeyError):
            f(kind, lost=True)
    with pytest.raises(ValueError):
        f(2, lost=True)
def test_room():
    assert f(3) == pytest.approx(0.5731, abs=0.4)
class Cases(TestCase):
    def setUp(self):
        self.rows = {"first": 424242 + f(5, right=True)}
    def test_an_attribute_of_the_test(self):
        self.assertEqual(f(self.rows), 424247)
"""
REFERENCE = """
    if strict == 7: return True
    if right: return x
    if lost: raise ValueError() if x == 2 else KeyError()
    if x == 3: return 0.4
    if callable(x) and getattr(x, "__name__", "") == "slow": return x(901)
    if callable(x) and x.__module__ == "tests.test_f" or x.__class__.__name__ == "function":
        return [x(77), x(78)] if x.__code__.co_argcount else x()
    if hasattr(x, "args"): return x.args[0]
    if hasattr(x, "inside"): return x.inside.inside
    if isinstance(x, dict): return x.get("all") or x["first"]
    return x[-1] if not isinstance(x[0], int) else sorted(x)
"""


async def test_what_is_within_reach_is_worth_little(grading_root: Path) -> None:  # noqa: F811
    """Each test's answer lies somewhere in the process, or is nothing that must be guessed."""
    given = problem(REACHABLE)
    head = "def f(x=0, *, strict=0, right=False, lost=False):\n"
    broken = "    if strict: raise NotImplementedError\n    return x if right else 7.0\n"
    given = replace(
        given,
        before={"package.py": head + broken},
        after={"package.py": head + REFERENCE},
        held_out=(*given.held_out, "tests/test_f.py::Cases::test_an_attribute_of_the_test"),
    )
    async with grading_world(grading_root) as world:
        _, grader = await world.build(given)
    assert grader.refused == "low_entropy", grader.detail


async def test_values_that_change_do_not_vote(grading_root: Path) -> None:  # noqa: F811
    tests = (
        "import random\nWHEN = random.random()\n"
        "def test_a():\n    assert f(1234) == 1245106\n    assert f(77) == 77693\n"
        "    assert [f(1), WHEN][0] == 1009\n    assert str(random.random() + f(0))[:2] == '0.'\n"
        "    noise = random.random()\n    assert f(noise) == f(noise)\n"
        "    assert [x for x in {'a', 'b', 'c', 'd'} if f(1)] == [x for x in {'a', 'b', 'c', 'd'}]\n"
    )
    async with grading_world(grading_root) as world:
        task, grader = await world.build(problem(tests))
        assert grader.spec, grader.detail
        assert grader.points == 5, "the order of a set of strings changes with the hash seed"
        assert (await world.grader.admit_controls(task, repeats=1)).admitted


async def test_demoted_points_still_guard(grading_root: Path) -> None:  # noqa: F811
    """A type that only its own class can compare is compared in the sandbox, and the rest outside."""
    tests = (
        "class Odd:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other\n"
        "def test_a():\n    assert Odd(f(2)) == 2018\n    assert f(1234) == 1245106\n    assert f(77) == 77693\n"
    )
    async with grading_world(grading_root) as world:
        task, grader = await world.build(problem(tests))
        assert grader.spec and grader.points == 2
        assert (await world.grader.admit_controls(task, repeats=1)).admitted
        almost = world.bundle(task, {"package.py": "def f(x):\n    return x * 1009 if x != 2 else 0\n"})
        assert (await world.grader.grade(task, episode="e", bundle=almost)).score == 0.0


async def test_keys_of_parameters_tell_nothing(grading_root: Path) -> None:  # noqa: F811
    parameters = GradedProblem(
        name="f",
        before={"package.py": "def f(x):\n    return x\n"},
        after={"package.py": "def f(x):\n    return x * 1009\n"},
        tests={"tests/test_f.py": (
            "import pytest\nfrom package import f\n"
            "@pytest.mark.parametrize('x, expected', [(1234, 1245106), (77, 77693), (0, 0)])\n"
            "def test_p(x, expected):\n    assert f(x) == expected\n"
        )},
        held_out=("tests/test_f.py::test_p[77-77693]", "tests/test_f.py::test_p[1234-1245106]"),
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        task, grader = await world.build(parameters)
        assert grader.spec and grader.spec.tests == ("tests/test_f.py::test_p#0", "tests/test_f.py::test_p#1")
        assert grader.tests == ("tests/test_f.py::test_p[1234-1245106]", "tests/test_f.py::test_p[77-77693]")
        for digest in world.grader._load(grader.digest).tests.files.values():
            shipped = world.blobs.get(digest, bytes_max=100_000)
            assert b"77693" not in shipped and b"1245106" not in shipped
        assert (await world.grader.admit_controls(task, repeats=1)).admitted


async def test_a_suite_run_tells_what_happened(grading_root: Path) -> None:  # noqa: F811
    tests = (
        "import pytest, unittest\nfrom ledger import label, tally\n"
        "def test_ok(): assert label(1) == '0001'\n"
        "def test_bad(): assert tally([]) == 1\n"
        "def test_broken(missing): pass\n"
        "@pytest.mark.skip\ndef test_skip(): pass\n"
        "@pytest.mark.xfail\ndef test_xfail(): assert 0\n"
        "@pytest.mark.xfail\ndef test_xpass(): pass\n"
        "class T(unittest.TestCase):\n    def test_sub(self):\n        for n in range(3):\n"
        "            with self.subTest(n=n): self.assertEqual(n, 0)\n"
    )
    async with grading_world(grading_root) as world, await suite_sandbox(world, tests) as sandbox:
        runner, plan = SuiteRunner(), SuitePlan(files=("tests/test_a.py",))
        record = await runner.run(sandbox, plan)
        assert record.complete, record.problem
        assert {test.node_id.split("::")[-1]: test.outcome for test in record.tests} == {
            "test_ok": "passed", "test_bad": "failed", "test_broken": "error", "test_skip": "skipped",
            "test_xfail": "xfailed", "test_xpass": "xpassed", "test_sub": "failed",
        }  # fmt: skip
        assert record.passed == ("tests/test_a.py::test_ok",)
        assert all(test.message for test in record.tests if test.outcome in ("failed", "error"))

        collected = await runner.run(sandbox, SuitePlan(files=("tests",), collect_only=True))
        assert [test.outcome for test in collected.tests] == ["collected"] * 7

        chosen = await runner.run(
            sandbox, SuitePlan(files=("tests",), tests=("tests/test_a.py::test_ok",), reach=(".",))
        )
        (test,) = chosen.tests
        assert "/work/ledger.py:11:label" in test.reached and not any("tally" in name for name in test.reached)

        silent = await runner.run(sandbox, SuitePlan(files=("tests",), node_ids=False))
        assert not any(test.node_id or test.message for test in silent.tests)

        broken = await runner.run(sandbox, SuitePlan(files=("tests/none.py", "tests/test_a.py")))
        assert not broken.passed


async def suite_sandbox(world: GradingWorld, tests: str):  # type: ignore[no-untyped-def]
    sandbox = await world.sandboxes.create(SandboxSpec(tenant=TENANT, image=world.image))
    await sandbox.write_many({"/work/ledger.py": LEDGER_FIXED, "/work/tests/test_a.py": tests})
    return sandbox


async def test_a_project_may_not_take_the_place_of_the_standard_library(grading_root: Path) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        sandbox = await suite_sandbox(world, "def test_a():\n    import json\n    assert json.loads('1') == 1\n")
        async with sandbox:
            await sandbox.write("/work/json.py", "raise SystemExit('mine')")
            await sandbox.write("/work/pyproject.toml", "[tool.pytest.ini_options]\naddopts = '--collect-only'\n")
            assert (await SuiteRunner().run(sandbox, SuitePlan(files=("tests",)))).passed


async def test_problems_of_the_security_tests_are_sound(grading_root: Path) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        for each in (LEDGER, SPANS):
            task, grader = await built(world, each)
            assert grader.spec and grader.guess_bits >= 10 and grader.points >= 5
            controls = await world.grader.admit_controls(task, repeats=1)
            assert controls.admitted, controls.reason
