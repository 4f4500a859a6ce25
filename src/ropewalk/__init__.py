"""Ropewalk: an RL environment stack.

Names are loaded on first use, so that `import ropewalk` and the command line start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.app.facade import RopewalkSync
    from ropewalk.app.ropewalk import Ropewalk
    from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, RopewalkError, UnavailableError

__version__ = "0.1.0"
__all__ = [
    "CallerError",
    "DeniedError",
    "IntegrityError",
    "Ropewalk",
    "RopewalkError",
    "RopewalkSync",
    "UnavailableError",
    "__version__",
]

_HOMES = {"Ropewalk": "ropewalk.app.ropewalk", "RopewalkSync": "ropewalk.app.facade"}
_ERRORS = "ropewalk.core.errors"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, _ERRORS)), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
