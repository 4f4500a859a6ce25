"""What a run cost on hosts of one's own, for the report: the cost model fed with what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ropewalk.app.report.sections import CostLine
from ropewalk.core import limits
from ropewalk.orchestration.cost import Cost, Usage, cost_of
from ropewalk.orchestration.prices import Prices, load_prices
from ropewalk.rollout.plan import PricePlan
from ropewalk.rollout.summary import RunSummary

OURS = "Ropewalk, own host"
GOAL = "goal"
"""The anchor that is nobody's list price."""


def cost_of_run(summary: RunSummary, price: PricePlan, *, file: Path | None = None, over: Iterable[str] = ()) -> Cost:
    """The cost of a run's sandboxes: of episodes, their forks, gradings and preparations, also those that came to
    nothing, shared by the episodes that were played.

    Args:
        summary: what was measured.
        price: the plan's price file and single prices.
        file: replaces the plan's price file.
        over: `key=value` pairs that replace single prices, also the plan's.

    Raises:
        CallerError: a price that is unknown or makes no sense.
    """
    prices = prices_of(price, file=file, over=over)
    usage = summary.usage
    grading_s = usage.get("grading_sandbox_s", summary.time_s.get("grading", 0.0))
    return cost_of(
        Usage(
            sandbox_s=usage.get("sandbox_s", 0.0) + grading_s + usage.get("prepare_sandbox_s", 0.0),
            cpu_s=_measured(usage, "cpu_s"),
            cpu_sandbox_s=_measured(usage, "cpu_sandbox_s"),
            memory_bytes=usage.get("memory_bytes_mean") or usage.get("memory_bytes_peak"),
            rollouts=sum(line.termination is not None for line in summary.episodes),
            cpus_requested=limits.SANDBOX_CPUS,
            memory_bytes_requested=limits.SANDBOX_MEMORY_BYTES,
        ),
        prices,
    )


def prices_of(price: PricePlan, *, file: Path | None = None, over: Iterable[str] = ()) -> Prices:
    """The prices that count: of what is shipped, the file, the plan and the command line the last that names one.

    Args:
        price, file, over: as of `cost_of_run`.

    Raises:
        CallerError: a file that cannot be read, a price that is unknown or makes no sense.
    """
    chosen = file or (Path(price.file) if price.file else None)
    return load_prices(chosen, overrides=[*(f"{key}={value}" for key, value in price.set.items()), *over])


def _measured(usage: Mapping[str, float], name: str) -> float | None:
    """Together with that of gradings and preparations; None where nothing was measured."""
    found = [usage[key] for key in (name, f"grading_{name}", f"prepare_{name}") if key in usage]
    return sum(found) if found else None


def cost_lines(cost: Cost) -> tuple[CostLine, ...]:
    """The result first, then how it follows, then what stands beside it."""
    made = [
        CostLine(label="per sandbox-hour", value=usd(cost.usd_sandbox_h), derivation="host / density / utilisation")
    ]
    if cost.usd_rollout is not None:
        derivation = f"{cost.sandbox_h:.4f} sandbox-hours, gradings and lost attempts included, shared by the rollouts"
        made.append(CostLine(label="per rollout", value=usd(cost.usd_rollout), derivation=derivation))
    made += [
        CostLine(label=line.name, value=f"{_figure(line.value)} {line.unit}", derivation=line.formula)
        for line in cost.lines
    ]
    made += [
        CostLine(
            label=f"beside {_named(anchor.name)}",
            value=f"{usd(anchor.usd_sandbox_h)} USD/h",
            derivation=f"ours is {anchor.ratio:.2g} of it; at that price {anchor.break_even_sandboxes:.0f} sandboxes "
            f"sold at all times pay for a host. {anchor.source}",
        )
        for anchor in cost.anchors
    ]
    return tuple(made)


def cost_bars(cost: Cost) -> dict[str, float]:
    """US dollars per sandbox-hour: ours, and each anchor."""
    return {
        OURS: cost.usd_sandbox_h,
        **{f"{_named(anchor.name)}, {usd(anchor.usd_sandbox_h)}": anchor.usd_sandbox_h for anchor in cost.anchors},
    }


def _named(anchor: str) -> str:
    return "the goal" if anchor == GOAL else f"{anchor}'s list price"


def _figure(value: float) -> str:
    """Four digits or all before the point, without powers of ten."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value >= 0.001 or value == 0 else f"{value:.8f}"


def usd(value: float) -> str:
    """Dollars with three significant digits, without powers of ten; what rounds to nothing is not called nothing."""
    if 0 < value < 0.000001:
        return "under $0.000001"
    return f"${value:.3g}" if value >= 0.001 or value == 0 else f"${value:.6f}"
