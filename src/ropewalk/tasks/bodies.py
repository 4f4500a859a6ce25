"""Functions by what they do: the same body under another name, class or indentation has the same digest.

Used in two places. Tests that share a body must stay on one side of a split, since who sees one knows the other.
And a task must not hold a fixed function anywhere, under whatever name.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ropewalk.core.records import digest_bytes
from ropewalk.core.syntax import parse_module

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True)
class Body:
    """One function of a module.

    Attributes:
        name: its dotted path in the module: `Class.method`, `outer.inner`.
        first_line, last_line: 1-based, decorators included.
        digest: sha256 of its arguments and statements, without docstrings, names, decorators and positions.
        weight: number of syntax nodes, a measure of how unlikely an equal body is by chance.
    """

    name: str
    first_line: int
    last_line: int
    digest: str
    weight: int


@lru_cache(maxsize=12)
def parse(source: bytes | str) -> ast.Module | None:
    """The module's syntax tree, or None where this Python cannot parse it. Others hold it too: not to be changed."""
    try:
        return parse_module(source)
    except SyntaxError:
        return None


def functions(source: bytes | str, *, only: Collection[str] | None = None) -> dict[str, Body]:
    """All functions of a module by dotted name; where a name is defined twice, the last one, as Python has it.

    Args:
        source: the module; nothing comes out of one that cannot be parsed.
        only: last parts of the names wanted.
    """
    if only is None:
        return dict(_outline(source).functions)
    tree = parse(source)
    if tree is None:
        return {}
    return {name: describe(name, node) for name, node in walk(tree) if node.name in only}


@dataclass(frozen=True)
class _Outline:
    """What is known of one module: its functions, and the names of its classes' bases."""

    functions: Mapping[str, Body]
    classes: Mapping[str, tuple[str, ...]]


@lru_cache(maxsize=256)
def _outline(source: bytes | str) -> _Outline:
    # The same few modules are looked at for every unit of a change.
    tree = parse(source)
    if tree is None:
        return _Outline({}, {})
    classes = {
        node.name: tuple(_last_name(base) for base in node.bases)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    return _Outline({name: describe(name, node) for name, node in walk(tree)}, classes)


def toplevel(source: bytes | str) -> tuple[str, ...]:
    """Names of a module's own functions, methods and inner ones not among them."""
    return tuple(name for name in functions(source) if "." not in name)


def walk(scope: Scope, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function below a scope with its dotted name, outer ones first."""
    for node in _statements(scope):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{prefix}{node.name}", node
            yield from walk(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from walk(node, f"{prefix}{node.name}.")


def describe(name: str, node: Function) -> Body:
    """The body of one function; `name` is its dotted name in the module."""
    try:
        statements = [_without_docstrings(statement) for statement in body_of(node)]
        text = ast.dump(node.args) + "".join(ast.dump(statement) for statement in statements)
    except (ValueError, RecursionError):  # a number of too many digits, or too deep: like no other
        statements, text = [], f"{name}:{node.lineno}"
    weight = sum(1 for statement in statements for _ in ast.walk(statement))
    return Body(name, first_line(node), node.end_lineno or node.lineno, digest_bytes(text.encode()), weight)


def first_line(node: Function | ast.ClassDef) -> int:
    """Where a definition begins, decorators included (1-based)."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


class BodyKeys:
    """Tells which test ids run the same body: parametrised, inherited or copied ones."""

    def __init__(self, modules: Mapping[str, bytes]) -> None:
        self._functions: dict[str, Mapping[str, Body]] = {}
        self._bases: dict[str, tuple[tuple[str, str], ...]] = {}
        """Class name → (module, class) places with that name."""
        self._parents: dict[tuple[str, str], tuple[str, ...]] = {}
        for path, source in modules.items():
            known = _outline(source)
            self._functions[path] = known.functions
            for name, bases in known.classes.items():
                self._parents[path, name] = bases
                self._bases[name] = (*self._bases.get(name, ()), (path, name))

    def key(self, test_id: str) -> str:
        """The body's digest; where the function cannot be found, one that all tests of that name share."""
        body = self.body(test_id)
        return body.digest if body else f"unknown:{without_parameters(test_id).rsplit('::', 1)[-1]}"

    def body(self, test_id: str) -> Body | None:
        """The function behind a test id, looked up through base classes as Python would."""
        path, _, rest = without_parameters(test_id).partition("::")
        *classes, name = rest.split("::")
        if not classes:
            return self._functions.get(path, {}).get(name)
        return self._method(path, classes[-1], name, ".".join(classes), frozenset())

    def _method(self, path: str, cls: str, name: str, dotted: str, seen: frozenset[tuple[str, str]]) -> Body | None:
        found = self._functions.get(path, {}).get(f"{dotted}.{name}")
        if found or (path, cls) in seen:
            return found
        for base in self._parents.get((path, cls), ()):
            places = self._bases.get(base, ())
            for place, base_name in sorted(places, key=lambda at: at[0] != path):
                found = self._method(place, base_name, name, base_name, seen | {(path, cls)})
                if found:
                    return found
        return None


def without_parameters(test_id: str) -> str:
    """A test id without its parameters: `tests/test_a.py::TestA::test_b[1-2]` → `tests/test_a.py::TestA::test_b`."""
    path, separator, rest = test_id.partition("::")
    return path + separator + rest.split("[", 1)[0]


def body_of(node: Scope) -> list[ast.stmt]:
    """Its statements without the docstring."""
    head = node.body[0] if node.body else None
    is_docstring = (
        isinstance(head, ast.Expr) and isinstance(head.value, ast.Constant) and isinstance(head.value.value, str)
    )
    return node.body[1:] if is_docstring else node.body


def _without_docstrings(statement: ast.stmt) -> ast.AST:
    """The statement with inner functions' docstrings gone; a copy only where there are any."""
    inner = [n for n in ast.walk(statement) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    if not inner:
        return statement
    copy = parse_module(ast.unparse(statement))
    for node in ast.walk(copy):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.body = body_of(node) or [ast.Pass()]
    return copy


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Statements of a scope, also those inside `if`, `try`, `with` and loops, but not inside inner scopes."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
        elif isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            if isinstance(child, ast.stmt):
                yield child
            yield from _statements(child)


def _last_name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
