"""Which expressions of a test cannot depend on the code under test.

A *closed* expression is built from literals, a list of pure builtins, pure modules of the standard library, and names
that are closed themselves. Its value can be recorded once, in a trusted run, and then left out of what is shipped.
Nothing here evaluates anything: this is a judgement on syntax.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

PURE_MODULES = frozenset(
    {
        *("math", "cmath", "itertools", "operator", "string", "functools", "collections", "decimal", "fractions"),
        *("datetime", "statistics", "textwrap", "unicodedata", "calendar"),
    }
)
_PURE_BUILTINS = frozenset(
    {
        *("list", "tuple", "set", "frozenset", "dict", "range", "sorted", "bytes", "bytearray", "str", "int", "float"),
        *("complex", "bool", "abs", "min", "max", "sum", "len", "round", "divmod", "pow", "chr", "ord", "hex", "oct"),
        *("bin", "repr", "ascii", "format", "slice", "any", "all", "isinstance", "issubclass", "callable", "type"),
        *("Ellipsis", "NotImplemented"),
    }
)
_ITERATORS = frozenset({"map", "filter", "zip", "enumerate", "reversed", "iter"})
_CONSUMERS = frozenset(
    {
        *("list", "tuple", "set", "frozenset", "dict", "sorted", "sum", "min", "max", "any", "all", "bytes", "join"),
        *("Counter", "deque", "OrderedDict", "reduce", "fromkeys", "prod", "fsum"),
    }
)
_MUTATORS = frozenset(
    {
        *("append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove", "clear"),
        *("add", "discard", "update", "setdefault", "sort", "reverse", "rotate", "send", "throw", "close"),
        *("intersection_update", "difference_update", "symmetric_difference_update", "now", "today", "utcnow"),
    }
)


def is_exception(name: str) -> bool:
    """Whether a builtin of this name is an ordinary exception."""
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, Exception)


def is_mutator(attribute: str) -> bool:
    """Whether a method of this name changes its object, or answers differently each time."""
    return attribute in _MUTATORS


class Closedness:
    """The judgement, given the names that are closed and those that hide builtins."""

    def __init__(self, names: Iterable[str], *, hidden: Iterable[str] = ()) -> None:
        self.names = frozenset(names)
        self._builtins = _PURE_BUILTINS - frozenset(hidden)
        self._iterators = _ITERATORS - frozenset(hidden)
        self._hidden = frozenset(hidden)

    def closed(self, node: ast.expr) -> bool:
        """Whether the value is plain data that candidate code cannot influence."""
        return self._closed(node, frozenset(), consumed=False)

    def pure_function(self, node: ast.FunctionDef) -> bool:
        """Whether a function uses nothing but its arguments and closed names."""
        if node.decorator_list:
            return False
        bound = {argument.arg for argument in _arguments(node.args)}
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Await, ast.ClassDef)):
                return False
            if isinstance(inner, ast.FunctionDef):
                bound |= {inner.name, *(argument.arg for argument in _arguments(inner.args))}
            elif isinstance(inner, ast.Lambda):
                bound |= {argument.arg for argument in _arguments(inner.args)}
            elif isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                bound.add(inner.id)
            elif isinstance(inner, ast.ExceptHandler) and inner.name:
                bound.add(inner.name)
        known = self.names | self._builtins | self._iterators | bound
        return all(
            inner.id in known or (inner.id not in self._hidden and is_exception(inner.id))
            for inner in ast.walk(node)
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
        )

    def _closed(self, node: ast.expr, bound: frozenset[str], *, consumed: bool) -> bool:
        match node:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return (
                    name in bound
                    or name in self.names
                    or name in self._builtins
                    or (name not in self._hidden and is_exception(name))
                )
            case ast.Attribute(value=value, attr=attribute):
                return not is_mutator(attribute) and self._closed(value, bound, consumed=False)
            case ast.Call():
                return self._call(node, bound, consumed=consumed)
            case ast.ListComp() | ast.SetComp() | ast.DictComp():
                return self._comprehension(node, bound)
            case ast.GeneratorExp():
                return consumed and self._comprehension(node, bound)
            case ast.Lambda(args=arguments, body=body):
                inner = bound | {argument.arg for argument in _arguments(arguments)}
                defaults = [*arguments.defaults, *(default for default in arguments.kw_defaults if default)]
                return self._all(defaults, bound) and self._closed(body, inner, consumed=False)
            case ast.Starred(value=value):
                return self._closed(value, bound, consumed=True)
            case ast.NamedExpr() | ast.Await() | ast.Yield() | ast.YieldFrom():
                return False
        return self._all((child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)), bound)

    def _all(self, nodes: Iterable[ast.expr], bound: frozenset[str], *, consumed: bool = False) -> bool:
        return all(self._closed(node, bound, consumed=consumed) for node in nodes)

    def _call(self, node: ast.Call, bound: frozenset[str], *, consumed: bool) -> bool:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        iterates = isinstance(function, ast.Name) and name in self._iterators and name not in bound
        if (iterates or _of_itertools(function)) and not consumed:
            return False
        if not iterates and not self._closed(function, bound, consumed=False):
            return False
        inner = iterates or _of_itertools(function) or name in _CONSUMERS
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        return self._all(arguments, bound, consumed=inner)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, bound: frozenset[str]
    ) -> bool:
        for generator in node.generators:
            if generator.is_async or not self._closed(generator.iter, bound, consumed=True):
                return False
            bound = bound | {name.id for name in ast.walk(generator.target) if isinstance(name, ast.Name)}
            if not self._all(generator.ifs, bound):
                return False
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return self._all(results, bound)


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    extra = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]


def _of_itertools(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "itertools"
