"""Key drivers by scheme."""

from __future__ import annotations

from typing import Final

DRIVERS: Final[dict[str, tuple[str, str, str]]] = {
    # scheme: (module:class, extra, one line)
    "file": ("ropewalk.security.drivers.file:FileKeys", "", "PKCS #8 files in a private folder"),
}
