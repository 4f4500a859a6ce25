"""What is kept of suites that were run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.marks import MemoryMarks
from tests.unit.tasks.test_baselines import GOOD, WRONG, suite, tree

from ropewalk.core.records import canonical_bytes
from ropewalk.reward.suite import SuitePlan, SuiteRecord
from ropewalk.tasks.bench import Bench, BuildWorld, settled_limit_s, settled_s

MARKS = MemoryMarks()
PLAN = SuitePlan(workdir="/work", files=("tests/test_a.py",), tests=(), import_paths=(".",), timeout_s=1.0)


@given(st.floats(0, 60))
def test_limits_leave_room_and_are_few(seconds: float) -> None:
    limit = settled_limit_s(seconds)
    assert limit >= 4 * seconds and limit in (6.0, 24.0, 96.0, 384.0)
    assert limit == 6.0 or limit < 16 * (seconds + 0.5)
    assert settled_s(seconds) >= min(seconds, 0.05) and settled_s(seconds) < max(0.06, 4 * seconds + 0.01)


def test_one_measurement_more_or_less_changes_no_limit() -> None:
    assert {settled_limit_s(seconds) for seconds in (0.003, 0.1, 0.4, 0.9)} == {6.0}
    assert {settled_s(seconds) for seconds in (0.0001, 0.01, 0.04)} == {0.05}


class Counting(Bench):
    """Runs nothing, and counts how often it was asked to."""

    runs = 0
    record = suite(GOOD)

    async def run(self, *_: object, **__: object) -> SuiteRecord:
        self.runs += 1
        return self.record


def bench(folder: Path, image: str = "1" * 64) -> Counting:
    nothing: Any = None
    return Counting(nothing, nothing, nothing, BuildWorld("tests", image, ()), folder, MARKS)


async def baseline(bench: Counting) -> SuiteRecord:
    return await bench.baseline(tree(), "2" * 64, {"tests/test_a.py": b""}, PLAN, data_class="public")


async def test_a_suite_is_run_once_and_one_that_was_broken_off_again(tmp_path: Path) -> None:
    first = bench(tmp_path)
    assert [await baseline(first), await baseline(bench(tmp_path))] == [suite(GOOD)] * 2 and first.runs == 1
    other = bench(tmp_path, image="3" * 64)
    other.record = suite(GOOD, complete=False)
    await baseline(other)
    await baseline(other)
    assert other.runs == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"passed", b"failed"),
        lambda data: canonical_bytes(suite(WRONG)),
        lambda data: data[:-2],
        lambda data: b"",
    ],
)
async def test_a_baseline_that_is_not_ours_is_made_again(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    await baseline(bench(tmp_path))
    (kept,) = (tmp_path / "baselines").iterdir()
    whole = kept.read_bytes()
    assert change(whole) != whole
    kept.write_bytes(change(whole))
    again = bench(tmp_path)
    assert await baseline(again) == suite(GOOD) and again.runs == 1
    assert kept.read_bytes() == whole


async def test_a_baseline_of_another_suite_is_not_this_one_s(tmp_path: Path) -> None:
    await baseline(bench(tmp_path))
    (kept,) = (tmp_path / "baselines").iterdir()
    other = bench(tmp_path, image="3" * 64)
    other.record = suite(WRONG)
    await baseline(other)
    (theirs,) = (path for path in (tmp_path / "baselines").iterdir() if path != kept)
    kept.write_bytes(theirs.read_bytes())
    again = bench(tmp_path)
    assert await baseline(again) == suite(GOOD) and again.runs == 1
