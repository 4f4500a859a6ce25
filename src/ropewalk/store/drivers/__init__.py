"""Blob drivers by URI scheme."""

from __future__ import annotations

from typing import Final

from ropewalk.machinery.drivers import DriverEntry

DRIVERS: Final = {
    "file": DriverEntry(
        target="ropewalk.store.drivers.directory:DirectoryBlobs",
        extra="",
        summary="files in a directory of this machine",
    ),
}

__all__ = ["DRIVERS"]
