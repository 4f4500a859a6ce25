"""Prices and other assumptions about hosts: shipped with their sources in `prices.toml`, to be overwritten at will."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record
from ropewalk.core.toml import parse_toml

_MAY_BE_ZERO: Final = frozenset({
    "capex_usd", "threads_reserve", "memory_reserve_gib", "power_kw", "electricity_usd_kwh", "colocation_usd_h",
    "operations_share", "memory_overhead_gib",
})  # fmt: skip


class Price(Record):
    """One assumption."""

    value: float
    unit: str = ""
    source: str = ""


class Prices(Record):
    """All of them; what each means stands beside it in `prices.toml`."""

    capex_usd: Price
    lifetime_years: Price
    threads: Price
    threads_reserve: Price
    memory_gib: Price
    memory_reserve_gib: Price
    power_kw: Price
    pue: Price
    electricity_usd_kwh: Price
    colocation_usd_h: Price
    operations_share: Price
    utilisation: Price
    cpu_overcommit_max: Price
    memory_overcommit: Price
    memory_overhead_gib: Price
    anchors: dict[str, Price]
    """List prices of others, USD per sandbox-hour; the one named `goal` is a goal."""


def load_prices(file: Path | None = None, *, overrides: Iterable[str] = ()) -> Prices:
    """The shipped prices, then the user's file over them, then `key=value` pairs (`anchors.NAME=0.05`) over both.

    Raises:
        CallerError: a file that cannot be read, an unknown key, a value that is no number or makes no sense.
    """
    merged = _tables(parse_toml((files(__package__) / "prices.toml").read_bytes(), what="prices.toml"), "prices.toml")
    if file is not None:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise CallerError(f"The price file {file} cannot be read: {error}.") from error
        given = parse_toml(data, what=f"The price file {file}")
        _merge(merged, _tables(given, str(file)), str(file))
    for pair in overrides:
        key, separator, text = pair.partition("=")
        try:
            value = float(text)
        except ValueError:
            separator = ""
        if not separator:
            raise CallerError(f"{pair[:80]!r} is not of the form key=number.")
        _merge(merged, {key.strip(): {"value": value, "source": "given on the command line"}}, f"{pair[:80]!r}")
    anchors = {key.removeprefix("anchors."): table for key, table in merged.items() if key.startswith("anchors.")}
    plain = {key: table for key, table in merged.items() if not key.startswith("anchors.")}
    try:
        prices = msgspec.convert({**plain, "anchors": anchors}, Prices)
    except msgspec.ValidationError as error:
        raise CallerError(f"The prices make no sense: {error}.") from error
    _check(prices)
    return prices


def _tables(plain: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """`{"capex_usd": {"value": …}, "anchors.goal": {…}}`; a bare number stands for its table."""
    anchors = plain.get("anchors", {})
    if not isinstance(anchors, dict):
        raise CallerError(f"{where}: 'anchors' is not a table.")
    flat = {key: value for key, value in plain.items() if key != "anchors"}
    flat |= {f"anchors.{name}": value for name, value in anchors.items()}
    tables = {}
    for key, value in flat.items():
        table = value if isinstance(value, dict) else {"value": value, "source": where}
        number = table.get("value")
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise CallerError(f"{where}: the value of {key!r} is not a number.")
        try:
            tables[key] = {**table, "value": float(number)}
        except OverflowError:
            raise CallerError(f"{where}: the value of {key!r} is too large.") from None
    return tables


def _merge(merged: dict[str, dict[str, Any]], over: Mapping[str, dict[str, Any]], where: str) -> None:
    for key, table in over.items():
        if key not in merged and not key.startswith("anchors."):
            raise CallerError(f"{where}: no price is called {key!r}.", next_step=f"one of: {', '.join(merged)}.")
        # A new value's source is not the old one's; its unit is.
        kept = {"unit": merged[key]["unit"]} if key in merged else {"unit": "USD/sandbox-hour"}
        merged[key] = kept | {"source": where} | table


def _check(prices: Prices) -> None:
    for name in Prices.__struct_fields__:
        if name == "anchors":
            continue
        value = getattr(prices, name).value
        if not math.isfinite(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
            raise CallerError(f"The price {name!r} cannot be {value:g}.")
    if prices.utilisation.value > 1:
        raise CallerError(f"The price 'utilisation' is a share of 1, not {prices.utilisation.value:g}.")
    for total, reserve in (("threads", "threads_reserve"), ("memory_gib", "memory_reserve_gib")):
        if getattr(prices, reserve).value >= getattr(prices, total).value:
            raise CallerError(f"The price {reserve!r} leaves nothing of {total!r}.")
    for name, anchor in prices.anchors.items():
        if not 0 < anchor.value < math.inf:
            raise CallerError(f"The anchor {name!r} cannot be {anchor.value:g}.")
