"""Fleet drivers by URI scheme."""

from __future__ import annotations

from typing import Final

from ropewalk.machinery.drivers import DriverEntry

DRIVERS: Final = {
    "local": DriverEntry(
        target="ropewalk.orchestration.drivers.local:LocalFleet",
        extra="",
        summary="this machine alone, queued in this process",
    ),
}

__all__ = ["DRIVERS"]
