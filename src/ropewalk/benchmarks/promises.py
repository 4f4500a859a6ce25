"""Promises as numbers, and what a measurement of one looks like."""

from __future__ import annotations

import importlib
import operator
import statistics
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Literal

import msgspec

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record


class Recorded(Record):
    """What a promise's benchmark gave last, where and when."""

    value: float
    peers: dict[str, float] = {}
    """The same work by others in the same run, same unit."""
    note: str = ""
    on: str = ""
    """Date, ISO 8601."""
    machine: str = ""


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


class Promise(Record):
    """One `[[promise]]` of `specification.toml`."""

    id: str
    text: str
    goal: float
    unit: str
    comparison: Literal["<=", ">=", "=="]
    benchmark: str
    """Module in this package that measures it."""
    peers: tuple[str, ...] = ()
    gated: bool = False
    """Whether continuous integration fails when it is not kept."""
    measured: Recorded | None = None
    """None: never measured whole."""

    def is_kept(self, value: float) -> bool:
        """Whether a measured value stands to the goal as promised."""
        return _COMPARISONS[self.comparison](value, self.goal)


class Measurement(Record):
    """What was measured of one promise."""

    promise: str
    value: float | None
    """None: could not be measured here; `note` says why."""
    kept: bool | None
    unit: str
    goal: float
    peers: dict[str, float | None] = {}
    """The same work by others in the same run, same unit; None where the peer is not installed."""
    samples: int = 1
    spread: tuple[float, float] | None = None
    """10th and 90th percentile."""
    note: str = ""


def promises(text: str | None = None) -> tuple[Promise, ...]:
    """All promises, in the specification's order; of the installed specification, or of one's text."""
    if text is None:
        text = files("ropewalk.benchmarks").joinpath("specification.toml").read_text(encoding="utf-8")
    return tuple(msgspec.convert(tomllib.loads(text)["promise"], list[Promise]))


def measured(
    id: str,
    value: float | None,
    *,
    samples: Sequence[float] = (),
    peers: dict[str, float | None] | None = None,
    note: str = "",
) -> Measurement:
    """A measurement of the promise `id`, held against its goal."""
    promise = next(p for p in promises() if p.id == id)
    spread = None
    if len(samples) >= 10:
        tenths = statistics.quantiles(samples, n=10)
        spread = (round(tenths[0], 3), round(tenths[-1], 3))
    return Measurement(
        promise=id,
        value=None if value is None else round(value, 3),
        kept=None if value is None else promise.is_kept(value),
        unit=promise.unit,
        goal=promise.goal,
        peers={name: None if v is None else round(v, 3) for name, v in (peers or {}).items()},
        samples=max(1, len(samples)),
        spread=spread,
        note=note,
    )


Benchmark = Callable[[Callable[[str], None]], Awaitable[list[Measurement]]]
"""Takes a function that is told of progress; returns the measurements of its promises."""


def benchmark(name: str) -> Benchmark:
    """The function `measure` of the benchmark module `name`.

    Raises:
        CallerError: no such benchmark.
    """
    known = sorted({p.benchmark for p in promises()})
    if name not in known:
        raise CallerError(f"No benchmark is called {name!r}.", next_step=f"choose from {', '.join(known)}.")
    module: Any = importlib.import_module(f"ropewalk.benchmarks.{name}")
    measure: Benchmark = module.measure
    return measure
