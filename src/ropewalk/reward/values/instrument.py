"""Turns a test module into two: one that records both sides of its assertions, and one that is shipped.

The shipped module evaluates the candidate's side alone. Expected values, messages, docstrings and the columns of
tables that hold nothing but expected values are gone from it. What cannot be taken apart is left as it was: it does
not vote, but where it fails, its test fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ropewalk.core.errors import CallerError
from ropewalk.core.syntax import parse_module
from ropewalk.reward.values.assertions import (
    EMITTER,
    Comparison,
    Kind,
    Raising,
    is_future,
    is_self_method,
    name_of,
    of_statement,
    raising,
    swallows,
)
from ropewalk.reward.values.scopes import Scope, inner_binding, parametrised

SOURCE_BYTES_MAX: Final = 2_000_000


@dataclass(frozen=True)
class Instrumented:
    """One test module."""

    recording: str
    """Python source that hands out both sides; for trusted runs only."""
    shipped: str
    """Python source that hands out the candidate's side and holds no expected value of a voting point."""
    kinds: dict[str, Kind]
    """Point → how it is compared."""
    changed: bool
    """Whether there was anything to take apart or to drop."""
    computable: frozenset[str] = frozenset()
    """Points whose expected side calls functions that are shipped: whoever is tested can call them, too."""


@dataclass(frozen=True)
class _Test:
    name: str
    node: ast.FunctionDef
    scope: Scope


_Point = tuple[str, Comparison | Raising]
_Symbol = tuple[int, str]


@lru_cache(maxsize=64)
def instrument(
    text: str, *, prefix: str = "", excluded: frozenset[str] = frozenset(), only: frozenset[str] | None = None
) -> Instrumented:
    """Both forms of a test module.

    Args:
        text: Its source. It is parsed, never run.
        prefix: Put before every point's name, so that modules do not clash.
        excluded: Points to leave as they were.
        only: Names (without class) of the test functions that are needed; others are dropped unless something else
            in the module speaks of them. None: all are kept.

    Raises:
        CallerError: it does not parse, or is larger than SOURCE_BYTES_MAX.
    """
    try:
        recording = _Module(text, prefix, excluded, only)
        shipped = _Module(text, prefix, excluded, only)
        forms = {"recording": recording.rewrite(shipped=False), "shipped": shipped.rewrite(shipped=True)}
    except (RecursionError, ValueError) as error:
        raise CallerError("A test module nests too deeply, or has a number of too many digits.") from error
    return Instrumented(
        **forms,
        kinds=recording.kinds,
        changed=bool(recording.kinds) or recording.pruned,
        computable=frozenset(shipped.computable),
    )


class _Module:
    def __init__(self, text: str, prefix: str, excluded: frozenset[str], only: frozenset[str] | None) -> None:
        if len(text) > SOURCE_BYTES_MAX:
            raise CallerError(f"A test module of {len(text)} characters; {SOURCE_BYTES_MAX} allowed.")
        try:
            self.tree = parse_module(text)
            self.pruned = only is not None and _prune(self.tree, only)
            self.scope = Scope(self.tree)
            self.tests = [_Test(prefix + name, node, Scope(node, self.scope)) for name, node in _tests(self.tree)]
        except (SyntaxError, ValueError, RecursionError) as error:
            raise CallerError(f"A test module does not parse: {error}.") from error
        self.points: dict[int, list[_Point]] = {}
        self.kinds: dict[str, Kind] = {}
        self.computable: set[str] = set()
        for test in self.tests:
            self._find_points(test, excluded)

    def rewrite(self, *, shipped: bool) -> str:
        """The module's new source. Works once: it takes the tree apart."""
        if shipped:
            bindings = [scope.bindings[name] for scope, name in self._strippable()]
            self.computable = self._computable({id(binding) for binding in bindings})
            for binding in bindings:
                binding.empty()
        tree = self.tree
        _Rewriter(self.points, {id(test.node) for test in self.tests}, shipped=shipped).visit(tree)
        at = 0
        while at < len(tree.body) and (_is_docstring(tree.body[at]) or is_future(tree.body[at])):
            at += 1
        tree.body.insert(at, ast.Import([ast.alias(EMITTER)]))
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"

    def _find_points(self, test: _Test, excluded: frozenset[str]) -> None:
        number = 0
        for statement in _open_statements(test.node.body, test.scope):
            found = _points_of(statement, test.scope)
            named = [(f"{test.name}:{number + index}", point) for index, point in enumerate(found)]
            number += len(named)
            if named and not any(name in excluded for name, _ in named):
                self.points[id(statement)] = named
                for name, point in named:
                    self.kinds[name] = point.kind if isinstance(point, Comparison) else Kind.RAISES

    def _strippable(self) -> list[tuple[Scope, str]]:
        """Closed names that are read where the shipped module no longer reads, and nowhere else."""
        scopes = {id(scope): scope for scope in (self.scope, *(test.scope for test in self.tests))}
        reads = _Reads(self)
        names = {
            (key, name)
            for key, scope in scopes.items()
            for name, binding in scope.bindings.items()
            if (binding.strippable or binding.only_function)
            and name in scope.closedness.names
            and (key, name) not in reads.kept
        }
        names &= reads.dropped | {symbol for symbol, _ in reads.within}
        while True:
            # A read inside a slot goes away only if that slot does.
            stuck = {symbol for symbol, holders in reads.within if not any(holder in names for holder in holders)}
            if not names & stuck:
                return [(scopes[key], name) for key, name in sorted(names, key=lambda symbol: symbol[1])]
            names -= stuck

    def _computable(self, gone: set[int]) -> set[str]:
        """Points whose expected side rests on a function, or a lambda, that stays."""
        found = set()
        for test in self.tests:
            for statement in ast.walk(test.node):
                for name, point in self.points.get(id(statement), ()) if isinstance(statement, ast.stmt) else ():
                    if point.expected is not None and self._rests_on_shipped(point.expected, test.scope, gone):
                        found.add(name)
        return found

    def _rests_on_shipped(self, expected: ast.expr, scope: Scope, gone: set[int]) -> bool:
        pending: list[ast.AST] = [expected]
        seen: set[int] = set()
        while pending:
            for inner in ast.walk(pending.pop()):
                binding = inner_binding(inner, scope)
                if binding is None or id(binding) in seen:
                    continue
                seen.add(id(binding))
                if binding.callable and id(binding) not in gone:
                    return True
                pending += binding.expressions
        return False


class _Reads(ast.NodeVisitor):
    """Where every name is read, seen from the shipped module."""

    def __init__(self, module: _Module) -> None:
        self.kept: set[_Symbol] = set()
        """Read in what is shipped."""
        self.dropped: set[_Symbol] = set()
        """Read in what is left out."""
        self.within: list[tuple[_Symbol, tuple[_Symbol, ...]]] = []
        """Read in the slots of those symbols."""
        self._points = module.points
        self._tests = {id(test.node): test.scope for test in module.tests}
        self._module = module.scope
        self._scope = module.scope
        self._slots: dict[int, _Symbol] = {}
        for scope in (module.scope, *self._tests.values()):
            for name, binding in scope.bindings.items():
                if binding.strippable and name in scope.closedness.names:
                    self._slots.update({id(slot.get()): (id(scope), name) for slot in binding.slots})
                elif binding.only_function:
                    self._slots[id(binding.function)] = (id(scope), name)
        self._holders: list[_Symbol] = []
        self._leaving = False
        self.visit(module.tree)

    def visit(self, node: ast.AST) -> None:
        holder = self._slots.get(id(node))
        if holder:
            self._holders.append(holder)
        if isinstance(node, ast.stmt) and id(node) in self._points:
            self._visit_assertion(node)
        elif isinstance(node, ast.Call) and _is_subtest(node):
            self._leave(node)
        else:
            super().visit(node)
        if holder:
            self._holders.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Decorators and defaults belong to the outer scope."""
        scope = self._tests.get(id(node))
        if scope is None:
            self.generic_visit(node)
            return
        for child in [*node.decorator_list, node.args]:
            self.visit(child)
        self._scope, outer = scope, self._scope
        for statement in node.body:
            self.visit(statement)
        self._scope = outer

    def visit_Name(self, node: ast.Name) -> None:
        """One read."""
        if not isinstance(node.ctx, ast.Load):
            return
        scope = self._scope if node.id in self._scope.bindings else self._module
        symbol = (id(scope), node.id)
        if self._leaving:
            self.dropped.add(symbol)
        elif self._holders:
            self.within.append((symbol, tuple(self._holders)))
        else:
            self.kept.add(symbol)

    def _leave(self, node: ast.AST) -> None:
        self._leaving, before = True, self._leaving
        self.generic_visit(node)
        self._leaving = before

    def _visit_assertion(self, statement: ast.stmt) -> None:
        shipped: list[ast.AST] = []
        if isinstance(statement, ast.With):
            shipped = [*statement.body]
        for _, point in self._points[id(statement)]:
            if isinstance(point, Comparison):
                shipped.append(point.actual)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                shipped += [*statement.value.args[1:], *statement.value.keywords]
        self._leave(statement)
        # What is shipped after all is read once more, and that read counts.
        for node in shipped:
            self.visit(node)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, points: dict[int, list[_Point]], tests: set[int], *, shipped: bool) -> None:
        self._points = points
        self._tests = tests
        self._shipped = shipped

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        points = self._points.get(id(node))
        if points is None:
            return super().visit(node)  # type: ignore[no-any-return]
        if isinstance(node, ast.With):
            self.generic_visit(node)
            context = self._call("raises", points[0][0], *self._recorded(points[0][1]))
            return ast.With([ast.withitem(context)], node.body, lineno=node.lineno)
        return [ast.Expr(self._emission(node, name, point)) for name, point in points]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Docstrings and parameter ids may spell out what is expected."""
        self.generic_visit(node)
        if self._shipped and id(node) in self._tests:
            if _is_docstring(node.body[0]):
                node.body = node.body[1:] or [ast.Pass()]
            for decorator in node.decorator_list:
                if parametrised(decorator) is not None and isinstance(decorator, ast.Call):
                    decorator.keywords = [keyword for keyword in decorator.keywords if keyword.arg != "ids"]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Sub-tests repeat their values as labels."""
        if self._shipped and _is_subtest(node):
            return ast.Call(node.func, [], [])
        if self._shipped and name_of(node.func) == "param":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "id"]
        return self.generic_visit(node)

    def _emission(self, node: ast.AST, name: str, point: Comparison | Raising) -> ast.expr:
        if isinstance(point, Raising):
            assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            kinds = ast.Tuple(self._recorded(point), ast.Load())
            return self._call("raised", name, kinds, *node.value.args[1:], keywords=node.value.keywords)
        actual = point.actual
        if point.kind == Kind.TRUTH:
            return self._call("truth", name, actual)
        if point.kind == Kind.MULTISET:
            actual = ast.List([ast.Starred(actual, ast.Load())], ast.Load())
        if self._shipped:
            return self._call("value", name, actual)
        return self._call("pair", name, actual, *self._recorded(point))

    def _recorded(self, point: Comparison | Raising) -> list[ast.expr]:
        if self._shipped or point.expected is None:
            return []
        return [point.expected, *(point.tolerance if isinstance(point, Comparison) else ())]

    def _call(
        self, method: str, name: str, *arguments: ast.expr, keywords: list[ast.keyword] | None = None
    ) -> ast.Call:
        function = ast.Attribute(ast.Name(EMITTER, ast.Load()), method, ast.Load())
        return ast.Call(function, [ast.Constant(name), *arguments], keywords or [])


def _tests(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Test functions and methods, with their qualified names."""
    pending: list[tuple[str, list[ast.stmt]]] = [("", tree.body)]
    while pending:
        prefix, body = pending.pop(0)
        for statement in body:
            if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test"):
                yield prefix + statement.name, statement
            elif isinstance(statement, ast.ClassDef):
                pending.append((f"{prefix}{statement.name}.", statement.body))
            elif isinstance(statement, ast.If):
                pending.append((prefix, [*statement.body, *statement.orelse]))


def _prune(tree: ast.Module, only: frozenset[str]) -> bool:
    """Drops test functions that nobody needs; whether there were any."""
    spoken_of = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    spoken_of |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    needed = only | spoken_of
    pending: list[ast.Module | ast.ClassDef | ast.If] = [tree]
    pruned = False
    while pending:
        holder = pending.pop()
        kept = [statement for statement in holder.body if not _is_test(statement) or _named(statement) in needed]
        pruned = pruned or len(kept) < len(holder.body)
        holder.body = kept or [ast.Pass()]
        pending += [statement for statement in kept if isinstance(statement, (ast.ClassDef, ast.If))]
    return pruned


def _is_test(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name.startswith("test")


def _named(statement: ast.stmt) -> str:
    return getattr(statement, "name", "")


def _open_statements(body: list[ast.stmt], scope: Scope) -> Iterator[ast.stmt]:
    """Statements where an assertion that fails is sure to fail the test."""
    for statement in body:
        yield statement
        match statement:
            case ast.With(items=items, body=inner):
                if not any(swallows(item.context_expr) for item in items):
                    yield from _open_statements(inner, scope)
            case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=finalbody):
                for block in [[] if handlers else inner, *(handler.body for handler in handlers), orelse, finalbody]:
                    yield from _open_statements(block, scope)
            case ast.If(body=inner, orelse=orelse) | ast.For(body=inner, orelse=orelse):
                yield from _open_statements([*inner, *orelse], scope)
            case ast.While(body=inner, orelse=orelse):
                yield from _open_statements([*inner, *orelse], scope)


def _points_of(statement: ast.stmt, scope: Scope) -> list[Comparison | Raising]:
    if isinstance(statement, ast.With):
        if len(statement.items) != 1 or statement.items[0].optional_vars is not None:
            return []
        call = statement.items[0].context_expr
        found = raising(call, scope.closed) if isinstance(call, ast.Call) and len(call.args) == 1 else None
        return [found] if found else []
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if is_self_method(call.func) and name_of(call.func) == "assertRaises" and len(call.args) > 1:
            found = raising(ast.Call(call.func, call.args, []), scope.closed)
            return [found] if found else []
    return list(of_statement(statement, scope.closed))


def _is_subtest(node: ast.Call) -> bool:
    return is_self_method(node.func) and name_of(node.func) == "subTest"


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
