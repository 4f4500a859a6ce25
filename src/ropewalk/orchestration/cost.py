"""What a sandbox-hour and a rollout cost on hosts of one's own: every factor in sight, every one to be overwritten.

host an hour  =  depreciation + power + colocation + operations
density       =  the smaller of what its CPUs and what its memory hold, by what was measured
sandbox-hour  =  host an hour / (density x utilisation)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from ropewalk.core.errors import CallerError
from ropewalk.core.limits import GIB
from ropewalk.core.records import Record
from ropewalk.orchestration.prices import Prices

_HOURS_A_YEAR: Final = 8760


class Usage(Record):
    """What a run was measured to use. None: not measurable here, so what was asked for stands in."""

    sandbox_s: float
    """All sandboxes' lifetimes together."""
    cpu_s: float | None
    """CPU time of those sandboxes where it was measured, all together."""
    memory_bytes: float | None
    """Of one sandbox, the mean of peaks: what a host must have room for."""
    rollouts: int
    cpus_requested: float
    """Of one sandbox."""
    memory_bytes_requested: float
    cpu_sandbox_s: float | None = None
    """Lifetimes of the sandboxes that `cpu_s` is of; None: it is of all."""

    @property
    def measured_s(self) -> float:
        """Lifetimes behind `cpu_s`."""
        return self.sandbox_s if self.cpu_sandbox_s is None else self.cpu_sandbox_s


class Line(Record):
    """One step of the derivation, for people."""

    name: str
    formula: str
    """With the numbers in it."""
    value: float
    unit: str


class AnchorComparison(Record):
    """Beside one price of others."""

    name: str
    usd_sandbox_h: float
    ratio: float
    """Ours over theirs."""
    break_even_sandboxes: float
    """Sold at their price at all times, so many pay for one host."""
    source: str


class Cost(Record):
    """The result with every intermediate value, in the order of the derivation."""

    depreciation_usd_h: float
    power_usd_h: float
    colocation_usd_h: float
    operations_usd_h: float
    host_usd_h: float
    cpus_per_sandbox: float
    cpus_basis: str
    """`measured`, `requested`, or `overcommit_max` where less was measured than is ever promised."""
    memory_gib_per_sandbox: float
    memory_basis: str
    """`measured` or `requested`."""
    density_by_cpu: float
    density_by_memory: float
    density: int
    """Sandboxes on one host at once."""
    limited_by: str
    """`cpu` or `memory`."""
    usd_sandbox_h: float
    sandbox_h: float
    usd_total: float
    usd_rollout: float | None
    """None where there was no rollout."""
    anchors: tuple[AnchorComparison, ...]
    lines: tuple[Line, ...]


def cost_of(usage: Usage, prices: Prices) -> Cost:
    """See the module's text.

    Raises:
        CallerError: a negative or not finite measurement, or sandboxes too large for one host.
    """
    _check_usage(usage)
    p = {name: getattr(prices, name).value for name in Prices.__struct_fields__ if name != "anchors"}
    depreciation = p["capex_usd"] / (p["lifetime_years"] * _HOURS_A_YEAR)
    power = p["power_kw"] * p["pue"] * p["electricity_usd_kwh"]
    operations = p["operations_share"] * depreciation
    host = depreciation + power + p["colocation_usd_h"] + operations

    cpus, cpus_basis = _cpus(usage, p["cpu_overcommit_max"])
    memory_basis = "requested" if usage.memory_bytes is None else "measured"
    memory_bytes = usage.memory_bytes_requested if usage.memory_bytes is None else usage.memory_bytes
    memory = memory_bytes / GIB + p["memory_overhead_gib"]
    by_cpu = (p["threads"] - p["threads_reserve"]) / cpus
    room = (p["memory_gib"] - p["memory_reserve_gib"]) * p["memory_overcommit"]
    by_memory = room / memory if memory > 0 else math.inf
    density = math.floor(min(by_cpu, by_memory))
    if density < 1:
        raise CallerError("Not even one such sandbox fits on a host of these prices.")
    hourly = host / (density * p["utilisation"])
    hours = usage.sandbox_s / 3600
    total = hourly * hours
    each = total / usage.rollouts if usage.rollouts else None
    cost = Cost(
        depreciation_usd_h=depreciation, power_usd_h=power, colocation_usd_h=p["colocation_usd_h"],
        operations_usd_h=operations, host_usd_h=host, cpus_per_sandbox=cpus, cpus_basis=cpus_basis,
        memory_gib_per_sandbox=memory, memory_basis=memory_basis, density_by_cpu=by_cpu, density_by_memory=by_memory,
        density=density, limited_by="cpu" if by_cpu <= by_memory else "memory", usd_sandbox_h=hourly, sandbox_h=hours,
        usd_total=total, usd_rollout=each, anchors=_compare(prices, host, hourly), lines=(),
    )  # fmt: skip
    return msgspec.structs.replace(cost, lines=_lines(cost, usage, p))


def _cpus(usage: Usage, overcommit_max: float) -> tuple[float, str]:
    if usage.cpu_s is None or usage.measured_s == 0:
        return usage.cpus_requested, "requested"
    measured, floor = usage.cpu_s / usage.measured_s, 1 / overcommit_max
    return (measured, "measured") if measured >= floor else (floor, "overcommit_max")


def _compare(prices: Prices, host: float, hourly: float) -> tuple[AnchorComparison, ...]:
    return tuple(
        AnchorComparison(
            name=name,
            usd_sandbox_h=anchor.value,
            ratio=hourly / anchor.value,
            break_even_sandboxes=host / anchor.value,
            source=anchor.source,
        )
        for name, anchor in prices.anchors.items()
    )


def _lines(cost: Cost, usage: Usage, p: Mapping[str, float]) -> tuple[Line, ...]:
    def line(name: str, formula: str, value: float, unit: str) -> Line:
        return Line(name=name, formula=formula, value=value, unit=unit)

    cpus = {
        "measured": f"{usage.cpu_s or 0:.6g} CPU-s / {usage.measured_s:.6g} sandbox-s"
        + ("" if usage.cpu_sandbox_s is None else ", where measured"),
        "requested": "as asked for, none measured",
        "overcommit_max": f"1 / {p['cpu_overcommit_max']:g}, the most that is promised; less was measured",
    }[cost.cpus_basis]
    memory_of = "mean of measured peaks" if cost.memory_basis == "measured" else "as asked for, none measured"
    threads = f"({p['threads']:g} - {p['threads_reserve']:g}) threads"
    memory = f"({p['memory_gib']:g} - {p['memory_reserve_gib']:g}) GiB x {p['memory_overcommit']:g}"
    lines = [
        line("depreciation", f"{p['capex_usd']:g} USD / ({p['lifetime_years']:g} years x {_HOURS_A_YEAR} h)",
             cost.depreciation_usd_h, "USD/h"),
        line("power", f"{p['power_kw']:g} kW x {p['pue']:g} x {p['electricity_usd_kwh']:g} USD/kWh",
             cost.power_usd_h, "USD/h"),
        line("colocation", "as given", cost.colocation_usd_h, "USD/h"),
        line("operations", f"{p['operations_share']:g} x depreciation", cost.operations_usd_h, "USD/h"),
        line("host", "the four together", cost.host_usd_h, "USD/h"),
        line("CPUs a sandbox", cpus, cost.cpus_per_sandbox, "CPU"),
        line("memory a sandbox", f"{memory_of}, and {p['memory_overhead_gib']:g} GiB of overhead",
             cost.memory_gib_per_sandbox, "GiB"),
        line("density by CPU", f"{threads} / {cost.cpus_per_sandbox:.4g}", cost.density_by_cpu, "sandboxes/host"),
        line("density by memory", f"{memory} / {cost.memory_gib_per_sandbox:.4g} GiB", cost.density_by_memory,
             "sandboxes/host"),
        line("density", f"the smaller, whole; limited by {cost.limited_by}", cost.density, "sandboxes/host"),
        line("sandbox-hour", f"host / ({cost.density} x {p['utilisation']:g} utilisation)", cost.usd_sandbox_h,
             "USD/h"),
        line("run", f"sandbox-hour x {usage.sandbox_s:.6g} sandbox-s / 3600", cost.usd_total, "USD"),
    ]  # fmt: skip
    if cost.usd_rollout is not None:
        lines.append(line("rollout", f"run / {usage.rollouts} rollouts", cost.usd_rollout, "USD"))
    return tuple(lines)


def _check_usage(usage: Usage) -> None:
    for name in usage.__struct_fields__:
        value = getattr(usage, name)
        if value is not None and not 0 <= value < math.inf:
            raise CallerError(f"The usage {name!r} cannot be {value:g}.")
    if usage.cpus_requested == 0 or usage.memory_bytes_requested == 0:
        raise CallerError("Sandboxes without CPU or memory cannot be priced.")
