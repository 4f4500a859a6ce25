"""Ropewalk: an RL environment stack.

Names are loaded on first use, so that `import ropewalk` and the command line start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.app.facade import RopewalkSync
    from ropewalk.app.ropewalk import Ropewalk

__version__ = "0.1.0"
__all__ = ["Ropewalk", "RopewalkSync", "__version__"]

_HOMES = {"Ropewalk": "ropewalk.app.ropewalk", "RopewalkSync": "ropewalk.app.facade"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
