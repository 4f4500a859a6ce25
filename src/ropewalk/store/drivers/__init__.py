"""Blob drivers by URI scheme: module and class, the extra that brings its dependencies, and one line."""

from __future__ import annotations

from typing import Final

DRIVERS: Final[dict[str, tuple[str, str, str]]] = {
    "file": ("ropewalk.store.drivers.directory:DirectoryBlobs", "", "files in a directory of this machine"),
}

__all__ = ["DRIVERS"]
