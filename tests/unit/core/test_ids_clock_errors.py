"""Ids sort by time, clocks move forward, errors carry their next step."""

from __future__ import annotations

import pytest

from ropewalk.core import errors
from ropewalk.core.clock import utc
from ropewalk.core.ids import check_id, new_id
from ropewalk.core.outcomes import Termination
from ropewalk.testing.clock import ManualClock


def test_ids_sort_by_the_time_they_were_made() -> None:
    clock = ManualClock()
    made = []
    for _ in range(5):
        made.append(new_id("run", clock=clock))
        clock.advance(0.002)
    assert made == sorted(made)
    assert all(check_id(text, "run") == text for text in made)


@pytest.mark.parametrize(
    "text", ["run:", "run:../../etc/passwd", "episode:" + "0" * 26, "run:" + "U" * 26, "", "x" * 99]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(errors.CallerError, match="run"):
        check_id(text, "run")


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="back"):
        ManualClock().advance(-1)


def test_utc_has_milliseconds_and_a_z() -> None:
    assert utc(0.0625) == "1970-01-01T00:00:00.062Z"


def test_every_branch_has_an_exit_code_of_its_own() -> None:
    branches = [errors.CallerError, errors.DeniedError, errors.UnavailableError, errors.IntegrityError]
    assert [branch.exit_code for branch in branches] == [2, 6, 7, 5]
    assert str(errors.CallerError("It is wrong.", next_step="do it right.")) == "It is wrong. Next: do it right."
    assert errors.DeniedError("No.", rule="r").rule == "r"
    assert errors.UnavailableError("Busy.", retry_after_s=2.0).retry_after_s == 2.0


def test_only_our_own_failures_excuse_the_policy() -> None:
    assert {t for t in Termination if t.ours} == {Termination.INFRASTRUCTURE, Termination.EVICTED}
