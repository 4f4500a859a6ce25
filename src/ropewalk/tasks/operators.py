"""Mutation operators: each finds the places in one function where it can make a small, named mistake.

A mutation replaces a span of the source; everything around it keeps its bytes. Annotations, decorators, docstrings
and inner functions (which are functions of their own) are left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

from ropewalk.core.records import Record
from ropewalk.core.syntax import Source
from ropewalk.tasks.bodies import Function, parse


class Edit(Record):
    """One mutation of one file."""

    operator: str
    function: str
    """Dotted name in the module."""
    line: int
    """1-based."""
    start: int
    """Byte offsets into the source; `end` exclusive."""
    end: int
    text: str
    """What stands there instead."""

    def apply(self, source: bytes) -> bytes:
        """The mutated source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


Span = tuple[int, int, str]
Operator = Callable[[Source, ast.AST], Iterator[Span]]

_COMPARISONS: Final = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}  # fmt: skip
_ARITHMETIC: Final = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"), ast.Pow: ("**", "*"),
}  # fmt: skip


def mutations(source: bytes, name: str, node: Function) -> tuple[Edit, ...]:
    """Every place in one function where an operator applies, in the source's order.

    Args:
        source: the module; one that is not plain UTF-8 has no mutations.
        name: the function's dotted name in it.
        node: its syntax node, of this very source.
    """
    text = Source.read(source)
    if text is None:
        return ()
    found: list[Edit] = []
    for part in _own_nodes(node):
        for operator, find in OPERATORS.items():
            for start, end, replacement in find(text, part):
                line = text.line(start)
                found.append(Edit(operator=operator, function=name, line=line, start=start, end=end, text=replacement))
    return tuple(sorted(found, key=lambda edit: (edit.start, edit.operator, edit.text)))


def mutate(source: bytes, edit: Edit) -> bytes | None:
    """The mutated source; None where it would not parse, or would mean the same."""
    mutated = edit.apply(source)
    before, after = parse(source), parse(mutated)
    if before is None or after is None:
        return None
    try:
        return None if ast.dump(before) == ast.dump(after) else mutated
    except (ValueError, RecursionError):  # a number of too many digits, or too deep
        return None


def _comparison(source: Source, node: ast.AST) -> Iterator[Span]:
    if not isinstance(node, ast.Compare):
        return
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        yield from _between(source, left, right, *_COMPARISONS[type(operator)])
        left = right


def _arithmetic(source: Source, node: ast.AST) -> Iterator[Span]:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield from _between(source, node.left, node.right, *_ARITHMETIC[type(node.op)])
    elif isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        old, new = _ARITHMETIC[type(node.op)]
        yield from _between(source, node.target, node.value, f"{old}=", f"{new}=")


def _boolean(source: Source, node: ast.AST) -> Iterator[Span]:
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(source, left, right, old, new)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield source.start(node), source.start(node.operand), ""


def _constant(source: Source, node: ast.AST) -> Iterator[Span]:
    if isinstance(node, ast.Constant) and (changed := _other_constant(node.value)) is not None:
        yield source.start(node), source.end(node), changed


def _off_by_one(source: Source, node: ast.AST) -> Iterator[Span]:
    if isinstance(node, ast.Slice):
        bounds = [bound for bound in (node.lower, node.upper) if bound is not None]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        bounds = node.args[:2]
    else:
        return
    for bound in bounds:
        if isinstance(bound, ast.Constant) and isinstance(bound.value, int) and not isinstance(bound.value, bool):
            yield source.start(bound), source.end(bound), str(bound.value + 1)
        elif not isinstance(bound, (ast.Starred, ast.Constant)):
            yield source.start(bound), source.end(bound), f"({source.text(bound)}) - 1"


def _swapped(source: Source, node: ast.AST) -> Iterator[Span]:
    if not isinstance(node, ast.Call):
        return
    for one, two in zip(node.args, node.args[1:], strict=False):
        if isinstance(one, ast.Starred) or isinstance(two, ast.Starred):
            continue
        between = source.bytes[source.end(one) : source.start(two)].decode()
        if between.strip(" \n,") == "" and source.text(one) != source.text(two):
            yield source.start(one), source.end(two), source.text(two) + between + source.text(one)


def _dropped(source: Source, node: ast.AST) -> Iterator[Span]:
    if isinstance(node, ast.Expr):
        drops = isinstance(node.value, (ast.Call, ast.Await))
    elif isinstance(node, ast.Assign):
        drops = any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    elif isinstance(node, ast.If):
        drops = not node.orelse and len(node.body) == 1 and node.lineno != node.body[0].lineno
    else:
        drops = isinstance(node, (ast.AugAssign, ast.Delete))
    if drops and isinstance(node, ast.stmt):
        yield source.start(node), source.end(node), "pass"


def _wrong_default(source: Source, node: ast.AST) -> Iterator[Span]:
    if not isinstance(node, ast.arguments):
        return
    for default in [*node.defaults, *(default for default in node.kw_defaults if default is not None)]:
        if isinstance(default, ast.Constant):
            changed = "0" if default.value is None else _other_constant(default.value)
            if changed is not None:
                yield source.start(default), source.end(default), changed


def _early_return(source: Source, node: ast.AST) -> Iterator[Span]:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or len(node.body) < 3:
        return
    for statement in node.body[1:]:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue  # decorators make their beginning another line
        start = source.start(statement)
        indent = source.bytes[source.line_start(statement) : start].decode()
        if not indent.strip():
            yield start, start, f"return\n{indent}"


OPERATORS: Final[dict[str, Operator]] = {
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "boolean": _boolean,
    "constant": _constant,
    "slice_or_range_off_by_one": _off_by_one,
    "swapped_arguments": _swapped,
    "dropped_statement": _dropped,
    "wrong_default": _wrong_default,
    "early_return": _early_return,
}
"""By name; the names are part of every mutant task's record."""


def _other_constant(value: object) -> str | None:
    """Source of a constant that is near and different; None for kinds that make no good mistake."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    if isinstance(value, (str, bytes)) and value:
        return repr(value[:-1]) if len(value) > 1 else repr(value * 2)
    return None


def _between(source: Source, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Span]:
    """The span of an operator between two operands, if it stands there once and without a comment."""
    start, end = source.end(left), source.start(right)
    gap = source.bytes[start:end].decode()
    pattern = r"\s+".join(re.escape(word) for word in old.split())
    if old[0].isalpha():
        pattern = rf"\b{pattern}\b"
    places = list(re.finditer(pattern, gap))
    if len(places) == 1 and "#" not in gap:
        yield start + len(gap[: places[0].start()].encode()), start + len(gap[: places[0].end()].encode()), new


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Nodes that belong to the function itself."""
    yield function
    yield function.args
    pending: list[ast.AST] = list(reversed(function.body))
    if isinstance(function.body[0], ast.Expr) and isinstance(function.body[0].value, ast.Constant):
        pending.pop()
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.JoinedStr)):
            continue
        yield node
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.AnnAssign):
            children.remove(node.annotation)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            children = []
        pending.extend(reversed(children))
