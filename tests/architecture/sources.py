"""The project's own source files, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "src" / "ropewalk"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)

_PROBES = ("spawner.py", "probe.py", "case_probe.py", "line_probe.py", "inside.py")
_PARTS_OF_PROBES = ("look.py", "followed.py", "opened.py", "quick.py")
INSIDE = tuple(m for m in MODULES if m.name in (*_PROBES, *_PARTS_OF_PROBES))
"""Programs of their own that start inside a sandbox or beside one: they import late, since each start counts."""


@cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), str(module))


def imports_of(module: Path) -> Iterator[tuple[str, int]]:
    """Absolute names that a module imports, with their lines."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno


def functions_of(module: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
