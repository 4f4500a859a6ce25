"""Fleet drivers by URI scheme: module and class, the extra that brings its dependencies, and one line."""

from __future__ import annotations

from typing import Final

DRIVERS: Final[dict[str, tuple[str, str, str]]] = {
    "local": ("ropewalk.orchestration.drivers.local:LocalFleet", "", "this machine alone, queued in this process"),
}

__all__ = ["DRIVERS"]
