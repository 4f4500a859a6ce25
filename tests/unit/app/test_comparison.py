"""A replay's outputs: what no two runs have in common does not count, everything else does and is shown."""

from __future__ import annotations

import pytest

from ropewalk.app.comparison import DIFF_LINES_MAX, output_diff, same_output

PYTEST = "F.\n=================== 1 failed, 1 passed in 0.06s ===================\n<A object at 0x7f3a10>\n"


@pytest.mark.parametrize(
    "now",
    [
        PYTEST,
        PYTEST.replace("0.06s =", "0.07s ="),
        PYTEST.replace("0.06s =", "61.20s (0:01:01) ").replace("===\n", "=\n"),
        PYTEST.replace("0x7f3a10", "0x55d2c4e8"),
    ],
)
def test_times_and_addresses_do_not_count(now: str) -> None:
    assert same_output(PYTEST, now)
    assert output_diff(PYTEST, now) == ()


@pytest.mark.parametrize(
    "now",
    [
        PYTEST.replace("1 failed", "2 failed"),
        PYTEST.replace("F.", "FF"),
        PYTEST.replace("in 0.06s", ""),
        PYTEST + "5 s\n",
    ],
)
def test_everything_else_counts_and_is_shown(now: str) -> None:
    assert not same_output(PYTEST, now)
    shown = output_diff(PYTEST, now.replace("0x7f3a10", "0x55d2c4e8"))
    assert shown[:2] == ("--- recorded", "+++ now") and len(shown) > 3
    assert not any(line.startswith("+") and "0x55" in line for line in shown), "only what counts"


def test_numbers_without_a_unit_are_results() -> None:
    assert not same_output("value 0.25", "value 0.26")
    assert not same_output("5s", "6s"), "a whole number of seconds may be what the code under test says"


def test_long_differences_are_cut_and_say_so() -> None:
    shown = output_diff("", "\n".join(str(n) for n in range(500)))
    assert len(shown) == DIFF_LINES_MAX + 1 and shown[-1].endswith("lines more")
