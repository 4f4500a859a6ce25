"""The sandbox drivers that exist, by scheme."""

from __future__ import annotations

from ropewalk.sandbox.drivers.table import DRIVERS, load

__all__ = ["DRIVERS", "load"]
