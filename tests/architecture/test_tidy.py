"""Sizes, names and texts that keep the house readable (docs/design/architecture.md, "Size and shape")."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import INSIDE, MODULES, PACKAGE, PROJECT, functions_of, tree_of

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
POSITIONAL_MAX = 5
PUBLIC_METHODS_MAX = 20
BANNED_MODULE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "handler", "misc"}
BANNED_TEXT = re.compile(r"\b(TODO|FIXME|XXX)\b")
FOREIGN_WORDS = re.compile(r"/work/(main|shared)|/tmp/rw\b|\.library\b", re.IGNORECASE)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_sizes(module: Path) -> None:
    lines = module.read_text(encoding="utf-8").count("\n")
    assert lines <= MODULE_LINES_MAX, f"{module} has {lines} lines: split it by concept"
    for function in functions_of(module):
        length = (function.end_lineno or 0) - function.lineno + 1 - (ast.get_docstring(function) or "").count("\n")
        assert length <= FUNCTION_LINES_MAX, f"{module}:{function.lineno} {function.name} has {length} lines"
        positional = len([a for a in function.args.posonlyargs + function.args.args if a.arg not in ("self", "cls")])
        assert positional <= POSITIONAL_MAX, f"{module}:{function.lineno} {function.name}: name arguments by keyword"
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ClassDef) and not node.name.endswith("Conformance"):
            methods = [
                f for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) and f.name[0] != "_"
            ]
            assert len(methods) <= PUBLIC_METHODS_MAX, f"{module}:{node.lineno} {node.name}: {len(methods)} methods"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_names_and_docstrings(module: Path) -> None:
    assert module.stem not in BANNED_MODULE_NAMES, f"{module}: name it after what it holds"
    assert ast.get_docstring(tree_of(module)) or not module.read_text().strip(), f"{module} has no docstring"
    for node in tree_of(module).body:
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named and module not in INSIDE and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module}:{node.lineno} {node.name} is public and has no docstring"


@pytest.mark.parametrize("module", [m for m in MODULES if m.name == "__init__.py" and m.parent != PACKAGE], ids=str)
def test_packages_only_re_export(module: Path) -> None:
    """`__init__` holds the docstring, re-exports and `__all__`; a driver table may stand in a `drivers` package."""
    if module.parent.name == "drivers":
        return
    allowed = (ast.ImportFrom, ast.Import, ast.Assign, ast.Expr, ast.If, ast.AnnAssign)
    others = [node.lineno for node in tree_of(module).body if not isinstance(node, allowed)]
    others += [n.lineno for n in tree_of(module).body if isinstance(n, ast.FunctionDef) and n.name != "__getattr__"]
    functions = {
        n.lineno for n in tree_of(module).body if isinstance(n, ast.FunctionDef) and n.name in ("__getattr__", "main")
    }
    assert not set(others) - functions, f"{module}: lines {others} belong into a module of their own"


def _texts() -> list[Path]:
    folders = ["src", "tests", "docs", "examples", "deploy"]
    kinds = {".py", ".md", ".toml", ".html", ".c", ".h", ".txt"}
    return [p for f in folders for p in sorted((PROJECT / f).rglob("*")) if p.suffix in kinds] + [
        p for p in sorted(PROJECT.glob("*")) if p.suffix in kinds or p.name == "Makefile"
    ]


def test_nothing_left_over_and_nothing_foreign() -> None:
    for path in _texts():
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        assert not (found := BANNED_TEXT.search(text)), f"{path}: {found.group()} without an issue"
        assert not (found := FOREIGN_WORDS.search(text)), f"{path} speaks of {found.group()}"
