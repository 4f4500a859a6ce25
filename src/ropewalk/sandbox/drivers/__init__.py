"""The sandbox drivers that exist, by scheme."""

from __future__ import annotations

from typing import Any

from ropewalk.machinery import drivers
from ropewalk.machinery.drivers import DriverEntry
from ropewalk.sandbox.contract import SandboxDriver
from ropewalk.store.layout import Layout

DRIVERS: dict[str, DriverEntry] = {
    "process": DriverEntry(
        target="ropewalk.sandbox.drivers.process.driver:ProcessDriver",
        extra="",
        summary="processes in namespaces of their own, by bubblewrap; forks disks",
    ),
}


def load(name: str, layout: Layout, **options: Any) -> SandboxDriver:
    """A driver by its scheme, over one state directory.

    Args:
        options: those of the driver's constructor; `layers` and `images` share stores with others.

    Raises:
        CallerError: no driver has that name.
        UnavailableError: what it needs is not installed.
    """
    driver: SandboxDriver = drivers.load("sandbox", DRIVERS, name)(layout, **options)
    return driver


__all__ = ["DRIVERS", "load"]
