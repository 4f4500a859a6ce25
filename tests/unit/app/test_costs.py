"""The report's cost figures follow from what was measured, and every price can be replaced."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ropewalk.app.costs import OURS, cost_bars, cost_lines, cost_of_run, usd
from ropewalk.cli.run_view import beside
from ropewalk.core.errors import CallerError
from ropewalk.rollout.plan import PricePlan
from tests.unit.app.samples import summary


def test_gradings_count_and_anchors_standbeside() -> None:
    made = summary()
    cost = cost_of_run(made, PricePlan())
    assert cost.sandbox_h == pytest.approx((made.usage["sandbox_s"] + made.time_s["grading"]) / 3600)
    bars = cost_bars(cost)
    assert bars[OURS] == cost.usd_sandbox_h and {0.039, 0.025} <= set(bars.values())
    labels = [line.label for line in cost_lines(cost)]
    assert labels[:2] == ["per sandbox-hour", "per rollout"] and any(label.startswith("beside ") for label in labels)


def test_an_interrupted_runs_cost_is_shared_by_what_was_played() -> None:
    whole = summary()
    waiting = [msgspec.structs.replace(line, termination=None) for line in whole.episodes[2:]]
    cut_short = msgspec.structs.replace(whole, episodes=(*whole.episodes[:2], *waiting))
    assert len(whole.episodes) == 72
    cost = cost_of_run(cut_short, PricePlan())
    assert cost.usd_rollout == pytest.approx(cost.usd_total / 2)


def test_cpu_per_sandbox_is_that_of_sandboxes_where_it_was_measured() -> None:
    used = {"sandbox_s": 1000.0, "cpu_s": 50.0, "cpu_sandbox_s": 100.0, "prepare_sandbox_s": 300.0,
            "grading_sandbox_s": 200.0, "grading_cpu_s": 50.0, "grading_cpu_sandbox_s": 100.0}  # fmt: skip
    cost = cost_of_run(msgspec.structs.replace(summary(), usage=used), PricePlan())
    assert cost.sandbox_h == pytest.approx(1500 / 3600)
    assert (cost.cpus_per_sandbox, cost.cpus_basis) == (pytest.approx(0.5), "measured")
    cpus = next(line for line in cost.lines if line.name == "CPUs a sandbox")
    assert cpus.formula == "100 CPU-s / 200 sandbox-s, where measured"


def test_the_command_line_beats_the_file_and_the_file_the_plan(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("utilisation = 0.5\n")
    base = cost_of_run(summary(), PricePlan(set={"utilisation": 0.7})).usd_sandbox_h
    filed = cost_of_run(summary(), PricePlan(), file=prices).usd_sandbox_h
    given = cost_of_run(summary(), PricePlan(), file=prices, over=["utilisation=0.35"]).usd_sandbox_h
    assert filed == pytest.approx(base * 0.7 / 0.5) and given == pytest.approx(base * 2)
    with pytest.raises(CallerError, match="no price"):
        cost_of_run(summary(), PricePlan(), over=["utilization=1"])


def test_a_goal_is_no_list_price_and_counts_are_written_out() -> None:
    used = {**summary().usage, "cpu_s": 0.0, "memory_bytes_mean": 1000.0}
    cost = cost_of_run(msgspec.structs.replace(summary(), usage=used), PricePlan())
    lines = {line.label: line for line in cost_lines(cost)}
    assert "beside the goal" in lines and "beside northflank's list price" in lines
    assert not any("e+" in line.value or "e-" in line.value for line in lines.values())
    said = beside(cost)
    assert said == "; northflank lists $0.025; goal $0.039"


def test_memory_is_what_a_host_must_have_room_for() -> None:
    used = {**summary().usage, "memory_bytes_mean": 24e6}
    cost = cost_of_run(msgspec.structs.replace(summary(), usage=used), PricePlan())
    line = next(line for line in cost_lines(cost) if line.label == "memory a sandbox")
    assert line.derivation.startswith("mean of measured peaks") and line.value == "0.02235 GiB"


def test_dollars() -> None:
    assert [usd(value) for value in (0, 0.0000123, 0.00171, 1.793)] == ["$0", "$0.000012", "$0.00171", "$1.79"]
    assert usd(2e-7) == "under $0.000001"
