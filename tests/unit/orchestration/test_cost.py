"""The cost model against figures worked out by hand, and its refusals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.errors import CallerError
from ropewalk.core.limits import GIB
from ropewalk.orchestration import Cost, Usage, cost_of, load_prices


def usage(cpus: float | None, gib: float | None, *, hours: float = 1.0, rollouts: int = 1) -> Usage:
    return Usage(
        sandbox_s=hours * 3600, cpu_s=None if cpus is None else cpus * hours * 3600,
        memory_bytes=None if gib is None else gib * GIB, rollouts=rollouts,
        cpus_requested=1.0, memory_bytes_requested=GIB,
    )  # fmt: skip


def test_a_host_costs_what_its_parts_do() -> None:
    cost = cost_of(usage(1, 1), load_prices())
    assert cost.depreciation_usd_h == pytest.approx(1.218, abs=0.001)
    assert cost.power_usd_h == pytest.approx(0.143)
    assert cost.colocation_usd_h == 0.25
    assert cost.operations_usd_h == pytest.approx(0.183, abs=0.001)
    assert cost.host_usd_h == pytest.approx(1.79, abs=0.005)
    parts = cost.depreciation_usd_h + cost.power_usd_h + cost.colocation_usd_h + cost.operations_usd_h
    assert cost.host_usd_h == pytest.approx(parts)


@pytest.mark.parametrize(
    ("overrides", "cpus", "density", "usd"),
    [
        # One vCPU a sandbox in full: 376 = 384 - 8.
        ((), 1.0, 376, 0.0068),
        (("utilisation=0.3",), 1.0, 376, 0.0159),
        # A quarter of one each: memory limits first. (The figure rounds 1,472 to 1,470.)
        ((), 0.25, 1472, 0.0017),
        (("cpu_overcommit_max=8", "memory_overcommit=2", "utilisation=0.6"), 0.125, 2944, 0.0010),
    ],
)
def test_known_figures_come_out(overrides: tuple[str, ...], cpus: float, density: int, usd: float) -> None:
    cost = cost_of(usage(cpus, 1.0), load_prices(overrides=overrides))
    assert cost.density == density
    assert cost.usd_sandbox_h == pytest.approx(usd, abs=0.00005)


def test_the_anchors_break_even_where_they_should() -> None:
    goal, northflank = cost_of(usage(1, 1), load_prices()).anchors
    assert (goal.usd_sandbox_h, northflank.usd_sandbox_h) == (0.039, 0.025)
    assert goal.break_even_sandboxes == pytest.approx(46, abs=0.5)
    assert northflank.break_even_sandboxes == pytest.approx(72, abs=0.5)
    assert goal.ratio == pytest.approx(0.0068 / 0.039, rel=0.01)
    assert goal.source and northflank.source


def test_what_limits_is_said_and_so_is_what_was_not_measured() -> None:
    prices = load_prices()
    assert cost_of(usage(1, 1), prices).limited_by == "cpu"
    assert cost_of(usage(1, 8), prices).limited_by == "memory"
    assert cost_of(usage(0.9, 1), prices).cpus_basis == "measured"
    unmeasured = cost_of(usage(None, None), prices)
    assert (unmeasured.cpus_basis, unmeasured.memory_basis, unmeasured.density) == ("requested", "requested", 376)
    little = cost_of(usage(0.001, 0.01), prices)
    assert (little.cpus_basis, little.cpus_per_sandbox) == ("overcommit_max", 0.25)
    nothing = cost_of(usage(0, 0, hours=0, rollouts=0), prices)
    assert (nothing.usd_total, nothing.usd_rollout, nothing.limited_by) == (0, None, "cpu")


def test_the_derivation_can_be_followed_to_the_end() -> None:
    cost = cost_of(usage(0.5, 0.2, hours=10, rollouts=24), load_prices())
    by_name = {line.name: line for line in cost.lines}
    assert by_name["depreciation"].formula == "32000 USD / (3 years x 8760 h)"
    assert by_name["CPUs a sandbox"].formula == "18000 CPU-s / 36000 sandbox-s"
    assert by_name["density"].value == cost.density == math.floor(min(cost.density_by_cpu, cost.density_by_memory))
    assert by_name["sandbox-hour"].value == pytest.approx(cost.host_usd_h / (cost.density * 0.7))
    assert by_name["run"].value == pytest.approx(cost.usd_sandbox_h * 10)
    assert by_name["rollout"].value == pytest.approx(cost.usd_total / 24) == cost.usd_rollout
    assert all(line.unit and line.formula for line in cost.lines)


def test_every_price_has_a_unit_and_a_source() -> None:
    prices = load_prices()
    for name in prices.__struct_fields__:
        for price in prices.anchors.values() if name == "anchors" else [getattr(prices, name)]:
            assert price.unit and len(price.source) > 5, name


def test_a_file_and_then_pairs_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('capex_usd = 20000\n[pue]\nvalue = 1.1\nsource = "our meter"\n[anchors]\nmine = 0.05\n')
    prices = load_prices(path, overrides=["pue=1.2", "anchors.other=0.01"])
    assert (prices.capex_usd.value, prices.capex_usd.unit, prices.capex_usd.source) == (20000, "USD", str(path))
    assert (prices.pue.value, prices.pue.source) == (1.2, "given on the command line")
    assert load_prices(path).pue.source == "our meter"
    assert [*prices.anchors] == ["goal", "northflank", "mine", "other"]
    assert prices.anchors["other"].unit == "USD/sandbox-hour"


@pytest.mark.parametrize(
    "pair", ["capex_usd", "capex_usd=", "capex_usd=much", "nonsense=1", "=1", "capex_usd=-1", "utilisation=0",
             "utilisation=1.1", "utilisation=nan", "capex_usd=inf", "lifetime_years=0", "threads_reserve=384",
             "memory_reserve_gib=2000", "anchors.goal=0"],
)  # fmt: skip
def test_prices_that_make_no_sense_are_refused(pair: str) -> None:
    with pytest.raises(CallerError, match=pair.partition("=")[0].rpartition(".")[2] or "no price"):
        load_prices(overrides=[pair])


@pytest.mark.parametrize(
    "text", ["nonsense = 1", "capex_usd = 'a'", "capex_usd = true", "anchors = 1", "[pue]\nsource = 'x'", "= =",
             "[pue]\nvalue = 1\nwhat = 2", "[anchors.x]\nunit = 'y'"],
)  # fmt: skip
def test_price_files_that_make_no_sense_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(CallerError):
        load_prices(path)
    with pytest.raises(CallerError, match="absent"):
        load_prices(tmp_path / "absent.toml")


def test_measurements_that_make_no_sense_are_refused() -> None:
    for bad in (usage(-1, 1), usage(1, float("nan")), usage(1, 1, hours=float("inf"))):
        with pytest.raises(CallerError, match="usage"):
            cost_of(bad, load_prices())
    with pytest.raises(CallerError, match="Not even one"):
        cost_of(usage(1, 5000), load_prices())


@given(cpus=st.floats(0, 300), more=st.floats(0, 50), gib=st.floats(0.001, 1000), hours=st.floats(0.1, 1000))
def test_more_use_never_costs_less(cpus: float, more: float, gib: float, hours: float) -> None:
    prices = load_prices()

    def price(c: float, g: float) -> Cost:
        return cost_of(usage(c, g, hours=hours), prices)

    base = price(cpus, gib)
    assert price(cpus + more, gib).usd_total >= base.usd_total
    assert price(cpus, gib + more).usd_total >= base.usd_total
    assert base.usd_total == pytest.approx(base.usd_sandbox_h * hours)
