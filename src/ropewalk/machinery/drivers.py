"""Tables of drivers, and how one is loaded: by name, on first use, with an error that says what to install."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import Record


class DriverEntry(Record):
    """One line of a family's table."""

    target: str
    """`module:attribute`: a class or function that makes the driver."""
    extra: str
    """The extra of the package that brings what it needs; "" where the base install does."""
    summary: str
    """One line for people."""


Table = Mapping[str, DriverEntry]
"""Drivers by scheme."""


def scheme_of(uri: str) -> str:
    """What names the driver in a URI (`file:///x` → `file`) or in a plain name (`process`)."""
    return uri.partition(":")[0]


def load(family: str, table: Table, name: str) -> Any:
    """The class or function behind a scheme.

    Args:
        family: for messages, e.g. `sandbox`.
        name: a scheme, or a URI that begins with one.

    Raises:
        CallerError: no driver has that name; the message lists those that exist.
        UnavailableError: what it needs is not installed; the message says how to get it.
    """
    entry = table.get(scheme_of(name))
    if entry is None:
        raise CallerError(
            f"There is no {family} driver {scheme_of(name)!r}.", next_step=f"use one of: {', '.join(sorted(table))}."
        )
    module, _, attribute = entry.target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == module or missing.partition(".")[0] == module.partition(".")[0]:
            raise  # our own file is missing: a fault of the program, not of the installation
        package = f"ropewalk[{entry.extra}]" if entry.extra else missing
        raise UnavailableError(
            f"The {family} driver {scheme_of(name)!r} needs the package {missing!r}, which is not installed.",
            next_step=f"pip install '{package}'",
        ) from error
