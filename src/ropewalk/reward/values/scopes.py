"""Names of a test module: what binds them, which are closed, and where they are read.

A *slot* is the place of an expression in the tree: the right side of `expected = [1]`, or one column of a literal
table that a loop or a parametrised test runs through. Where a closed name is read on expected sides alone, its slots
are emptied before the tests are shipped.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ropewalk.reward.values.assertions import name_of
from ropewalk.reward.values.closed import PURE_MODULES, Closedness, is_mutator


@dataclass(frozen=True)
class Slot:
    """A place in the tree: `owner.name`, or one item of that list."""

    owner: ast.AST
    name: str
    index: int | None = None

    def get(self) -> ast.expr:
        """The expression there."""
        place = getattr(self.owner, self.name)
        found: ast.expr = place if self.index is None else place[self.index]
        return found

    def empty(self) -> None:
        """Puts None there."""
        nothing = ast.copy_location(ast.Constant(None), self.get())
        if self.index is None:
            setattr(self.owner, self.name, nothing)
        else:
            getattr(self.owner, self.name)[self.index] = nothing


@dataclass
class Binding:
    """All that binds one name in one scope."""

    slots: list[Slot] = field(default_factory=list)
    sources: list[ast.expr] = field(default_factory=list)
    """Expressions it takes its value from and that have no slot of their own."""
    function: ast.FunctionDef | None = None
    pure: bool = False
    """An import of something pure."""
    opaque: bool = False
    outside: bool = False
    """Its expressions are evaluated in the module's scope (parametrised arguments)."""

    @property
    def strippable(self) -> bool:
        """Whether all its values lie in slots."""
        return bool(self.slots) and not (self.sources or self.function or self.pure or self.opaque)

    @property
    def only_function(self) -> bool:
        """Whether it is a function and nothing else."""
        return self.function is not None and not (self.slots or self.sources or self.pure or self.opaque)

    @property
    def expressions(self) -> list[ast.AST]:
        """All that it takes its value from."""
        return [*(slot.get() for slot in self.slots), *self.sources, *([self.function] if self.function else [])]

    @property
    def callable(self) -> bool:
        """Whether calling it can compute something."""
        return self.function is not None or any(
            isinstance(inner, ast.Lambda) for node in self.expressions for inner in ast.walk(node)
        )

    def empty(self) -> None:
        """Leaves nothing of its values."""
        for slot in self.slots:
            slot.empty()
        if self.function is not None:
            nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            self.function.args, self.function.body, self.function.returns = nothing, [ast.Pass()], None


Bindings = dict[str, Binding]


class Scope:
    """The names of a function or of a module."""

    def __init__(self, node: ast.FunctionDef | ast.Module, parent: Scope | None = None) -> None:
        self.node = node
        self.parent = parent
        self.reads = Counter(
            inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
        )
        self.bindings: Bindings = {}
        if isinstance(node, ast.FunctionDef):
            self._bind_parameters(node)
        for statement in node.body:
            self._bind_statement(statement)
        self._mark_mutated()
        self.closedness = self._closed_names()

    def closed(self, node: ast.expr) -> bool:
        """Whether an expression in this scope is closed."""
        return self.closedness.closed(node)

    def binding(self, name: str) -> Binding | None:
        """What binds a name right here."""
        return self.bindings.get(name)

    def _get(self, name: str) -> Binding:
        return self.bindings.setdefault(name, Binding())

    def _bind_statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[target]):
                self._bind(target, [Slot(statement, "value")])
            case ast.AnnAssign(target=target, value=ast.expr()):
                self._bind(target, [Slot(statement, "value")])
            case ast.FunctionDef(name=name):
                binding = self._get(name)
                binding.opaque = binding.opaque or binding.function is not None
                binding.function = statement
                return
            case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._get(name).opaque = True
                return
            case ast.Import() | ast.ImportFrom():
                self._bind_import(statement)
            case ast.For(target=target, iter=iterable):
                self._bind_loop(target, iterable)
            case _:
                self._make_opaque(statement)
        for child in _statements_within(statement):
            self._bind_statement(child)

    def _make_opaque(self, statement: ast.stmt) -> None:
        """Every other way to bind a name: augmented assignment, with, except, del, match, several targets …"""
        nested = {id(inner) for child in _statements_within(statement) for inner in ast.walk(child)}
        for inner in ast.walk(statement):
            if id(inner) in nested:
                continue
            if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                self._get(inner.id).opaque = True
            elif isinstance(inner, ast.ExceptHandler) and inner.name:
                self._get(inner.name).opaque = True
            elif isinstance(inner, (ast.Global, ast.Nonlocal)):
                for name in inner.names:
                    self._get(name).opaque = True
            elif isinstance(inner, (ast.MatchAs, ast.MatchStar)) and inner.name:
                self._get(inner.name).opaque = True

    def _bind_import(self, statement: ast.Import | ast.ImportFrom) -> None:
        for alias in statement.names:
            module = alias.name if isinstance(statement, ast.Import) else (statement.module or "")
            binding = self._get(alias.asname or alias.name.split(".")[0])
            if module.split(".")[0] in PURE_MODULES and not getattr(statement, "level", 0):
                binding.pure = True
            else:
                binding.opaque = True

    def _bind_loop(self, target: ast.expr, iterable: ast.expr) -> None:
        table = self._table(iterable)
        if table is not None:
            self._bind(target, [Slot(table, "elts", index) for index in range(len(table.elts))])
            return
        for name in _names(target):
            self._get(name).sources.append(ast.Call(ast.Name("list", ast.Load()), [iterable], []))

    def _table(self, iterable: ast.expr) -> ast.List | ast.Tuple | None:
        """The literal list behind a loop, also by way of a name that is read only there."""
        if isinstance(iterable, ast.Name) and self.reads[iterable.id] == 1:
            binding = self.bindings.get(iterable.id)
            if binding and len(binding.slots) == 1 and binding.strippable and binding.slots[0].index is None:
                iterable = binding.slots[0].get()
        if isinstance(iterable, (ast.List, ast.Tuple)) and not _starred(iterable.elts):
            return iterable
        return None

    def _bind(self, target: ast.expr, slots: list[Slot]) -> None:
        if isinstance(target, ast.Name):
            self._get(target.id).slots.extend(slots)
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            return
        values = [slot.get() for slot in slots]
        size = len(target.elts)
        if not _starred(target.elts) and all(
            isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == size and not _starred(value.elts)
            for value in values
        ):
            for index, element in enumerate(target.elts):
                self._bind(element, [Slot(value, "elts", index) for value in values])
            return
        for name in _names(target):
            self._get(name).sources.extend(values)

    def _bind_parameters(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        extra = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]:
            self._get(argument.arg).opaque = True
        for decorator in node.decorator_list:
            columns = parametrised(decorator)
            if columns is None or self.parent is None:
                continue
            names, values = columns
            table = self.parent._table(values)
            if table is not None and all(name in self.bindings for name in names):
                self._bind_columns(names, table)

    def _bind_columns(self, names: list[str], table: ast.List | ast.Tuple) -> None:
        columns: list[list[Slot]] = [[] for _ in names]
        for index, row in enumerate(table.elts):
            owner, place = row, "elts"
            if isinstance(row, ast.Call) and name_of(row.func) == "param":
                owner, place = row, "args"
            elif len(names) == 1:
                columns[0].append(Slot(table, "elts", index))
                continue
            cells = getattr(owner, place, None)
            if not isinstance(cells, list) or len(cells) != len(names) or _starred(cells):
                return
            for column, slots in enumerate(columns):
                slots.append(Slot(owner, place, column))
        for name, slots in zip(names, columns, strict=True):
            self.bindings[name] = Binding(slots=slots, outside=True)

    def _mark_mutated(self) -> None:
        for inner in ast.walk(self.node):
            match inner:
                case ast.Attribute(value=owner, attr=attribute) if is_mutator(attribute):
                    self._mark(owner)
                case ast.Subscript(value=owner, ctx=context) | ast.Attribute(value=owner, ctx=context):
                    if not isinstance(context, ast.Load):
                        self._mark(owner)
                case ast.NamedExpr(target=target):
                    self._get(target.id).opaque = True
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    for name in names:
                        self._get(name).opaque = True

    def _mark(self, node: ast.expr) -> None:
        while isinstance(node, (ast.Subscript, ast.Attribute)):
            node = node.value
        if isinstance(node, ast.Name) and node.id in self.bindings:
            self.bindings[node.id].opaque = True

    def _closed_names(self) -> Closedness:
        outer = self.parent.closedness.names if self.parent else frozenset()
        hidden = set(self.bindings) | (set(self.parent.bindings) if self.parent else set())
        names = {name for name, binding in self.bindings.items() if not binding.opaque}
        while True:
            closedness = Closedness((outer - set(self.bindings)) | names, hidden=hidden)
            still = {name for name in names if self._is_closed(self.bindings[name], closedness)}
            if still == names:
                return closedness
            names = still

    def _is_closed(self, binding: Binding, closedness: Closedness) -> bool:
        if binding.function is not None and not closedness.pure_function(binding.function):
            return False
        judge = self.parent.closedness if binding.outside and self.parent else closedness
        return all(judge.closed(node) for node in [*(slot.get() for slot in binding.slots), *binding.sources])


def inner_binding(node: ast.AST, scope: Scope) -> Binding | None:
    """What binds the name that is read there, in a test or else in its module."""
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return None
    outer = scope.parent.bindings.get(node.id) if scope.parent else None
    return scope.bindings.get(node.id, outer)


def parametrised(decorator: ast.expr) -> tuple[list[str], ast.expr] | None:
    """Argument names and the table of `@pytest.mark.parametrize(names, table)`; None for anything else."""
    if not isinstance(decorator, ast.Call) or name_of(decorator.func) != "parametrize" or len(decorator.args) != 2:
        return None
    if any(keyword.arg not in ("ids", "scope") for keyword in decorator.keywords):
        return None
    match decorator.args[0]:
        case ast.Constant(value=str(text)):
            names = [name.strip() for name in text.split(",") if name.strip()]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            names = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            if len(names) != len(parts):
                return None
        case _:
            return None
    return names, decorator.args[1]


def _statements_within(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Direct sub-statements in the same scope."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(statement, name, [])
    for holder in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
        yield from holder.body


def _names(target: ast.expr) -> Iterator[str]:
    return (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def _starred(nodes: list[ast.expr]) -> bool:
    return any(isinstance(node, ast.Starred) for node in nodes)
