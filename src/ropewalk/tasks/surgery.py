"""Edits of test files that leave every other byte as its authors wrote it.

Two are needed. Held-out tests are taken out of the files that a policy sees. And where a test module imports a name
that the older release lacks, the import is guarded, so that only the tests which use the name fail there, instead of
the whole module.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from ropewalk.core.syntax import lines_of
from ropewalk.tasks.bodies import Function, first_line, functions, parse
from ropewalk.tasks.symbols import Symbols


def remove_tests(source: str, names: Iterable[str]) -> str:
    """The module without some of its test functions.

    Args:
        source: the module's text.
        names: `test_a`, `TestClass.test_a` or `TestClass::test_a`. Unknown ones are ignored.

    A class that would be left empty keeps a `pass`. A source that cannot be parsed is returned as it is.
    """
    wanted = {name.replace("::", ".") for name in names}
    tree = parse(source)
    if tree is None or not wanted:
        return source
    lines = lines_of(source)
    cuts: dict[int, tuple[int, str]] = {}
    for dotted, node, block in _definitions(tree):
        if dotted not in wanted:
            continue
        start, end = first_line(node), node.end_lineno or node.lineno
        while start > 1 and _is_comment_of(lines[start - 2], node.col_offset):
            start -= 1
        goes_empty = all(_is_wanted(statement, wanted, dotted) for statement in block)
        is_last = node is block[-1]
        cuts[start] = (end, f"{' ' * node.col_offset}pass\n" if goes_empty and is_last else "")
    kept: list[str] = []
    number = 1
    while number <= len(lines):
        if number in cuts:
            end, filler = cuts[number]
            kept.append(filler)
            number = end + 1
        else:
            kept.append(lines[number - 1])
            number += 1
    return "".join(kept)


def without_bodies(files: Mapping[str, bytes], bodies: Collection[str]) -> dict[str, bytes]:
    """Test files without the test functions that have one of these bodies, wherever and however they are named.

    Args:
        files: path → content.
        bodies: digests (`tasks.bodies`).
    """
    left: dict[str, bytes] = {}
    for path, content in files.items():
        names = [
            body.name
            for body in (functions(content).values() if path.endswith(".py") else ())
            if body.digest in bodies and body.name.rpartition(".")[2].startswith("test")
        ]
        left[path] = remove_tests(content.decode(), names).encode() if names else content
    return left


def guard_imports(source: str, symbols: Symbols, *, path: str) -> tuple[str, tuple[str, ...]]:
    """The module with imports of names that `symbols` lacks guarded, and those names.

    A guarded name becomes a class whose use raises, so that a test which needs it fails and the others run.

    Args:
        source: the test module's text.
        symbols: what the older release defines.
        path: the module's path, for relative imports.
    """
    tree = parse(source)
    if tree is None:
        return source, ()
    lines = lines_of(source)
    missing: list[str] = []
    for node in sorted(tree.body, key=lambda statement: -statement.lineno):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        replaced, names = _guarded(node, symbols, _package_of(path))
        if names:
            missing.extend(names)
            lines[node.lineno - 1 : node.end_lineno] = [replaced]
    if not missing:
        return source, ()
    return "".join(lines), tuple(sorted(missing))


_STAND_IN = '''class {name}(Exception):
        """Not in this release."""

        def __init__(self, *arguments, **named):
            raise NotImplementedError("{name} is not in this release")
'''


def _guarded(node: ast.Import | ast.ImportFrom, symbols: Symbols, package: str) -> tuple[str, list[str]]:
    """New text for an import, and the names it cannot have."""
    if isinstance(node, ast.Import):
        gone = [alias for alias in node.names if symbols.lacks_module(alias.name)]
        kept = [alias for alias in node.names if alias not in gone]
        text = f"import {_aliases(kept)}\n" if kept else ""
        for alias in gone:
            bound = alias.asname or alias.name.split(".")[0]
            text += f"try:\n    import {_aliases([alias])}\nexcept ImportError:\n    "
            text += f"import {bound}\n" if not alias.asname and "." in alias.name else _STAND_IN.format(name=bound)
        return text, [alias.asname or alias.name for alias in gone]
    module = _absolute(node, package)
    gone = [alias for alias in node.names if alias.name != "*" and symbols.lacks(module, alias.name)]
    kept = [alias for alias in node.names if alias not in gone]
    origin = "." * node.level + (node.module or "")
    text = f"from {origin} import {_aliases(kept)}\n" if kept else ""
    for alias in gone:
        text += f"try:\n    from {origin} import {_aliases([alias])}\nexcept ImportError:\n    "
        text += _STAND_IN.format(name=alias.asname or alias.name)
    return text, [alias.asname or alias.name for alias in gone]


def _aliases(names: list[ast.alias]) -> str:
    text = ", ".join(f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in names)
    return f"({text})" if len(names) > 6 else text


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    base = package.split(".") if package else []
    base = base[: len(base) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _package_of(path: str) -> str:
    parts = PurePosixPath(path).parent.parts
    return ".".join(parts[1:] if parts[:1] == ("src",) else parts)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, Function, list[ast.stmt]]]:
    """Functions with their dotted names and the block they stand in, which may not become empty."""
    pending: list[tuple[str, list[ast.stmt]]] = [("", tree.body)]
    while pending:
        prefix, block = pending.pop()
        for node in block:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{prefix}{node.name}", node, block
            elif isinstance(node, ast.ClassDef):
                pending.append((f"{prefix}{node.name}.", node.body))
            elif isinstance(node, (ast.If, ast.Try, ast.With)):
                pending.append((prefix, node.body))
                pending.append((prefix, getattr(node, "orelse", [])))


def _is_wanted(statement: ast.stmt, wanted: set[str], dotted: str) -> bool:
    if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    scope = dotted.rpartition(".")[0]
    return (f"{scope}." if scope else "") + statement.name in wanted


def _is_comment_of(line: str, column: int) -> bool:
    return line.strip().startswith("#") and len(line) - len(line.lstrip()) == column and column > 0
