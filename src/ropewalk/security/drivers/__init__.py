"""Key drivers by scheme."""

from __future__ import annotations

from typing import Final

from ropewalk.machinery.drivers import DriverEntry

DRIVERS: Final[dict[str, DriverEntry]] = {
    "file": DriverEntry(
        target="ropewalk.security.drivers.file:FileKeys", extra="", summary="PKCS #8 files in a private folder"
    ),
}

__all__ = ["DRIVERS"]
