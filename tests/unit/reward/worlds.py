"""Two small problems, one in each style of tests, and where their sandboxes live."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import anyio.to_thread
import pytest
from tests.grading import GradedProblem, GradingWorld

from ropewalk.core.records import canonical_bytes, decode_own
from ropewalk.interface.task import Task
from ropewalk.reward.build import GraderBuild

LEDGER_BROKEN = '''"""Sums of entries by account."""


def tally(entries):
    totals = {}
    for account, amount in entries:
        totals[account] = amount
    return totals


def label(number):
    return f"{number:04d}"
'''
LEDGER_FIXED = LEDGER_BROKEN.replace("totals[account] = amount", "totals[account] = totals.get(account, 0) + amount")
LEDGER_TESTS = """import pytest

from ledger import label, tally


def test_two_entries():
    assert tally([("rent", 700), ("rent", 35), ("food", 12)]) == {"rent": 735, "food": 12}


@pytest.mark.parametrize("entries, expected", [
    ([("a", 5301), ("a", 4402)], {"a": 9703}),
    ([("b", -11), ("b", 8213), ("b", 7)], {"b": 8209}),
])
def test_sums(entries, expected):
    assert tally(entries) == expected


def test_empty():
    assert tally([]) == {}
    assert label(7) == "0007"
"""
LEDGER = GradedProblem(
    name="ledger",
    before={"ledger.py": LEDGER_BROKEN},
    after={"ledger.py": LEDGER_FIXED},
    tests={"tests/test_ledger.py": LEDGER_TESTS},
    held_out=(
        "tests/test_ledger.py::test_two_entries",
        "tests/test_ledger.py::test_sums[entries0-expected0]",
        "tests/test_ledger.py::test_sums[entries1-expected1]",
        "tests/test_ledger.py::test_empty",
    ),
)

SPANS_BROKEN = '''"""Runs of consecutive numbers."""


def spans(numbers):
    result = []
    for number in sorted(numbers):
        if result and result[-1][1] == number:
            result[-1] = (result[-1][0], number)
        else:
            result.append((number, number))
    return result
'''
SPANS_FIXED = SPANS_BROKEN.replace("result[-1][1] == number:", "result[-1][1] + 1 >= number:")
SPANS_TESTS = """from unittest import TestCase

from series import spans


class SpansTests(TestCase):
    def test_basic(self):
        expected = [(101, 103), (207, 208), (4099, 4099)]
        self.assertEqual(spans([207, 101, 102, 103, 208, 4099]), expected)

    def test_table(self):
        for numbers, expected in (
            ([5, 6, 7, 8], [(5, 8)]),
            ([331, 17, 332, 18], [(17, 18), (331, 332)]),
            ([], []),
        ):
            with self.subTest(numbers=numbers, expected=expected):
                self.assertEqual(spans(numbers), expected)

    def test_rejects(self):
        with self.assertRaises(TypeError):
            spans([1, "a"])
"""
SPANS = GradedProblem(
    name="spans",
    before={"series/__init__.py": "from series.core import spans\n", "series/core.py": SPANS_BROKEN},
    after={"series/core.py": SPANS_FIXED},
    tests={"tests/test_spans.py": SPANS_TESTS, "tests/__init__.py": ""},
    held_out=(
        "tests/test_spans.py::SpansTests::test_basic",
        "tests/test_spans.py::SpansTests::test_table",
        "tests/test_spans.py::SpansTests::test_rejects",
    ),
)


async def built(world: GradingWorld, problem: GradedProblem) -> tuple[Task, GraderBuild]:
    """A task of a problem; built once for all workers, since what it is made of stays in the state directory."""
    kept = world.root / f"built-{problem.name}.json"
    with (world.root / f"built-{problem.name}.lock").open("w") as lock:
        await anyio.to_thread.run_sync(fcntl.flock, lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(canonical_bytes(list(await world.build(problem))))
        return decode_own(kept.read_bytes(), tuple[Task, GraderBuild])


@pytest.fixture(scope="session")
def grading_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One state directory for all workers of a run, so that the image is built once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ropewalk-shared"
