"""Imports pytest without what no test of ours needs, a fifth of its start. Stand-alone; runs inside sandboxes.

Pytest imports pygments to colour terminals, and `importlib.metadata`, with `email` and more behind it, to find plugins
that load by themselves. No terminal is there, and no plugin loads by itself. Tests that want these modules get the
real ones.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

_LAZY = frozenset({"importlib.metadata", "uuid"})
"""Imported when something of theirs is first asked for."""
_STOOD_IN_FOR = (
    "pygments", "pygments.formatter", "pygments.formatters", "pygments.formatters.terminal", "pygments.lexer",
    "pygments.lexers", "pygments.lexers.diff", "pygments.lexers.python", "pygments.util",
)  # fmt: skip


NEEDLESS = (
    "cacheprovider", "faulthandler", "junitxml", "pastebin", "stepwise", "setuponly", "setupplan", "doctest",
    "threadexception", "unraisableexception",
)  # fmt: skip
"""Plugins of pytest's own that change no outcome; each costs time at every start."""


def without_needless() -> list[str]:
    """Arguments for pytest that leave these out."""
    return [argument for name in NEEDLESS for argument in ("-p", f"no:{name}")]


class _StandIn(types.ModuleType):
    """Has whatever is asked of it, of no use."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _LazyFinder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _LAZY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def import_pytest() -> Any:
    """The module. Nothing that it imports ever becomes garbage, so none is looked for meanwhile."""
    stand_ins = {name: _StandIn(name) for name in _STOOD_IN_FOR if name not in sys.modules}
    gc.disable()
    sys.modules.update(stand_ins)
    sys.meta_path.insert(0, _LazyFinder)
    try:
        return importlib.import_module("pytest")
    finally:
        sys.meta_path.remove(_LazyFinder)
        for name in stand_ins:
            sys.modules.pop(name, None)
        gc.freeze()
        gc.enable()
