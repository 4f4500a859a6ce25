"""Makes a module of tests show every value that it computes. For trusted runs alone.

Whoever is tested shares the process with the tests: functions of the standard library can be replaced, frames walked,
objects looked up. So what an expression of a test yields is within reach, also where it is handed to a C function and
nothing keeps it. Here each expression is passed through `saw`, which looks at its value and gives it back.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from ropewalk.core.syntax import parse_module
from ropewalk.reward.values.assertions import EMITTER, is_future, is_text

_SAW: Final = "_ropewalk_saw"
_YIELDS: Final = "_ropewalk_yields"
_OWNER: Final = "_ropewalk_owner"
_INDEX: Final = "_ropewalk_index"
_HEAD = f"""
try:
    from {EMITTER} import saw as {_SAW}, yields as {_YIELDS}
except ImportError:
    def {_SAW}(value): return value
    {_YIELDS} = {_SAW}
"""
_Watched = (
    ast.Call, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.Subscript, ast.Attribute, ast.Name, ast.JoinedStr,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.NamedExpr,
    ast.Await, ast.Yield, ast.YieldFrom,
)  # fmt: skip
_NOT_NAMES = frozenset({"self", "cls", EMITTER, _SAW, _YIELDS, _OWNER, _INDEX})
"""What hangs on an object is looked at when it is read, and at every call."""


def watched(source: str) -> str:
    """The module with every value shown.

    Raises:
        SyntaxError, RecursionError: it cannot be parsed, so it is not run either.
    """
    tree = parse_module(source)
    _Watch().visit(tree)
    at = 0
    while at < len(tree.body) and (is_text(tree.body[at]) or is_future(tree.body[at])):
        at += 1
    tree.body[at:at] = parse_module(_HEAD).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class _Watch(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        """One node; a watched one comes back inside a call."""
        if isinstance(node, ast.Slice) or (isinstance(node, ast.Tuple) and _has_slices(node)):
            return self._children(node)  # it stands between brackets alone
        visited = super().visit(node)
        if not isinstance(visited, _Watched) or not isinstance(getattr(visited, "ctx", ast.Load()), ast.Load):
            return visited
        if isinstance(visited, ast.Name) and visited.id in _NOT_NAMES:
            return visited
        return ast.Call(ast.Name(_SAW, ast.Load()), [visited], [])

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """What is called is no value that anybody expects; what it is called on may be."""
        node.func = self._children(node.func) if isinstance(node.func, ast.Attribute) else self._inside(node.func)
        # What a test hands out is looked at nowhere: it is what the broken source made.
        handed_out = _is_emission(node)
        node.args = [self._inside(arg) if handed_out else self.visit(arg) for arg in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.GeneratorExp:
        """What it yields belongs together, however much of it somebody takes."""
        self.generic_visit(node)
        node.elt = ast.Call(ast.Name(_YIELDS, ast.Load()), [node.elt], [])
        return node

    def visit_Yield(self, node: ast.Yield) -> ast.Yield:
        """The same for a generator function."""
        if node.value:
            node.value = ast.Call(ast.Name(_YIELDS, ast.Load()), [self.visit(node.value)], [])
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.FormattedValue:
        """Its format must stay what it is."""
        node.value = self.visit(node.value)
        if isinstance(node.format_spec, ast.JoinedStr):
            self._children(node.format_spec)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Annotations and decorators stay as they are; what decorators are given is looked at."""
        for decorator in node.decorator_list:
            self._inside(decorator)
        self.visit(node.args)
        node.body = self._statements(node.body)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Its bases and decorators stay as they are."""
        for decorator in node.decorator_list:
            self._inside(decorator)
        node.body = self._statements(node.body, in_class=True)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """No annotation is visited."""
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Its value alone."""
        if node.value:
            node.value = self.visit(node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """What is there afterwards is looked at, too. Where it lies is worked out once."""
        self.generic_visit(node)
        before: list[ast.stmt] = []
        target = node.target
        if isinstance(target, ast.Subscript) and (isinstance(target.slice, ast.Slice) or _has_slices(target.slice)):
            return [node]
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            before.append(ast.Assign([ast.Name(_OWNER, ast.Store())], target.value))
            target.value = ast.Name(_OWNER, ast.Load())
        if isinstance(target, ast.Subscript):
            before.append(ast.Assign([ast.Name(_INDEX, ast.Store())], target.slice))
            target.slice = ast.Name(_INDEX, ast.Load())
        return [*before, node, ast.Expr(ast.Call(ast.Name(_SAW, ast.Load()), [_as_read(target)], []))]

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """Patterns are no expressions."""
        node.guard = self.visit(node.guard) if node.guard else None
        node.body = self._statements(node.body)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        """Its types stay as they are."""
        node.body = self._statements(node.body)
        return node

    def _statements(self, body: list[ast.stmt], *, in_class: bool = False) -> list[ast.stmt]:
        shown: list[ast.stmt] = []
        for statement in body:
            # What is bound in a class is its attribute.
            alone = in_class and isinstance(statement, ast.AugAssign)
            visited: Any = self.generic_visit(statement) if alone else self.visit(statement)
            shown += visited if isinstance(visited, list) else [visited]
        return shown

    def _inside(self, node: ast.expr) -> ast.expr:
        """The same node, with its parts shown and itself not."""
        if isinstance(node, ast.Call):
            return self.visit_Call(node)
        return node if isinstance(node, ast.Name) else self._children(node)

    def _children(self, node: Any) -> Any:
        return self.generic_visit(node)


def _has_slices(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple) and any(isinstance(part, ast.Slice) for part in node.elts)


def _as_read(target: ast.expr) -> ast.expr:
    match target:
        case ast.Name(id=name):
            return ast.Name(name, ast.Load())
        case ast.Attribute(value=owner, attr=name):
            return ast.Attribute(owner, name, ast.Load())
        case ast.Subscript(value=owner, slice=index):
            return ast.Subscript(owner, index, ast.Load())
    return target


def _is_emission(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and (function.value.id == EMITTER)
    )
