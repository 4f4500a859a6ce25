"""Candidate edits: small mistakes undone. Each replaces one span of a file; all around it keeps its bytes.

The kinds answer the common slips (a comparison, an arithmetic or boolean operator, a constant or bound off by one,
arguments in the wrong order, a default, a return too early, a statement lost), each with a prior: how often undoing
it is right, by experience with mutants. What would not parse, or would mean the same, is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from ropewalk.core.records import Record
from ropewalk.core.syntax import Source, parse_module

INSERTIONS_MAX = 24
"""Statements tried in one place."""
_NEAR_FUNCTION = 0.5
"""Share of a function's suspicion that its signature gets: defaults run when the function is made, not when called."""

Span = tuple[str, int, int, str, float]
"""Operator, start, end, new text, prior."""

_COMPARISONS = {
    ast.Lt: ("<", ("<=", ">", ">=")), ast.LtE: ("<=", ("<", ">=", "==")), ast.Gt: (">", (">=", "<", "<=")),
    ast.GtE: (">=", (">", "<=", "==")), ast.Eq: ("==", ("!=", "<=", ">=")), ast.NotEq: ("!=", ("==", "<", ">")),
    ast.In: ("in", ("not in",)), ast.NotIn: ("not in", ("in",)), ast.Is: ("is", ("is not", "==")),
    ast.IsNot: ("is not", ("is", "!=")),
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: ("+", ("-", "*")), ast.Sub: ("-", ("+", "*")), ast.Mult: ("*", ("//", "/", "+", "**")),
    ast.FloorDiv: ("//", ("%", "/", "*")), ast.Div: ("/", ("//", "*")), ast.Mod: ("%", ("//", "*")),
    ast.Pow: ("**", ("*",)),
}  # fmt: skip


class Candidate(Record):
    """One edit of one file."""

    path: str
    """Relative to the workdir."""
    operator: str
    line: int
    start: int
    """Byte offsets; `end` exclusive."""
    end: int
    text: str
    score: float
    """Suspiciousness × prior."""

    def apply(self, source: bytes) -> bytes:
        """The edited file."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def candidates(path: str, source: bytes, suspicion: Mapping[int, float]) -> list[Candidate]:
    """All edits on suspicious lines of one file, best first; empty where it does not parse or is not plain UTF-8."""
    file = Source.read(source)
    if file is None:
        return []
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    seen = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = {line: suspicion[line] for line in range(function.lineno, _last(function) + 1) if line in suspicion}
        if not body:
            continue
        for operator, start, end, text, prior in _edits(file, function):
            line = file.line(start)
            signature = max(body.values()) * _NEAR_FUNCTION if line < function.body[0].lineno else 0.0
            score = prior * body.get(line, signature)
            key = (start, end, text)
            if score > 0 and key not in seen:
                seen.add(key)
                place = {"line": line, "start": start, "end": end}
                found.append(Candidate(path=path, operator=operator, text=text, score=score, **place))
    found.sort(key=lambda c: (-c.score, c.start, c.operator, c.text))
    return found


def parses_differently(candidate: Candidate, source: bytes) -> bool:
    """Whether the edit gives a program, and another one."""
    edited = candidate.apply(source)
    try:
        return ast.dump(parse_module(edited)) != _dump(source)
    except (SyntaxError, ValueError, RecursionError):
        return False


@lru_cache(maxsize=4)
def _dump(source: bytes) -> str:
    """Of the file that all candidates are edits of."""
    return ast.dump(parse_module(source))


def _last(node: ast.AST) -> int:
    last: int | None = getattr(node, "end_lineno", None)
    first: int = getattr(node, "lineno", 0)
    return last or first


def _edits(file: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Span]:
    yield from _defaults(file, function)
    parents = {child: parent for parent in ast.walk(function) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(function):
        if isinstance(node, ast.Compare):
            left: ast.expr = node.left
            for operator, right in zip(node.ops, node.comparators, strict=True):
                old, new = _COMPARISONS[type(operator)]
                yield from _replace_between(file, left, right, old, new, kind=("comparison", 1.0))
                left = right
        elif isinstance(node, ast.BinOp):
            yield from _arithmetic(file, node)
        elif isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            pair = tuple(f"{text}=" for text in new)
            yield from _replace_between(file, node.target, node.value, f"{old}=", pair, kind=("arithmetic", 0.9))
        elif isinstance(node, ast.BoolOp):
            old, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for one, two in zip(node.values, node.values[1:], strict=False):
                yield from _replace_between(file, one, two, old, (other,), kind=("boolean", 0.9))
        elif isinstance(node, ast.Constant):
            yield from _constant(file, node, parents)
        elif isinstance(node, ast.Call):
            yield from _call(file, node)
        elif isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper):
                yield from _bound(file, bound)
        yield from _negation(file, node)
    yield from _statements(file, function)


def _arithmetic(file: Source, node: ast.BinOp) -> Iterator[Span]:
    if type(node.op) in _ARITHMETIC:
        old, new = _ARITHMETIC[type(node.op)]
        yield from _replace_between(file, node.left, node.right, old, new, kind=("arithmetic", 0.9))
    off_by_one = isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.right, ast.Constant)
    if off_by_one and isinstance(node.right, ast.Constant) and node.right.value == 1:
        start, end = file.span(node)
        yield "off_by_one", start, end, file.text(node.left), 1.0


def _constant(file: Source, node: ast.Constant, parents: Mapping[ast.AST, ast.AST]) -> Iterator[Span]:
    start, end = file.span(node)
    value = node.value
    parent = parents.get(node)
    if isinstance(value, bool):
        yield "constant", start, end, str(not value), 1.0
    elif isinstance(value, int):
        in_sign = isinstance(parent, ast.UnaryOp)
        yield "constant", start, end, str(value - 1) if value or in_sign else "-1", 1.0
        yield "constant", start, end, str(value + 1), 0.7
        if value == 0 and not in_sign:
            yield "constant", start, end, "None", 0.3
    elif value is None and not isinstance(parent, ast.Return):
        yield "constant", start, end, "0", 0.1


def _call(file: Source, node: ast.Call) -> Iterator[Span]:
    for one, two in zip(node.args, node.args[1:], strict=False):
        if isinstance(one, ast.Starred) or isinstance(two, ast.Starred) or file.text(one) == file.text(two):
            continue
        start, end = file.span(one)[0], file.span(two)[1]
        between = file.bytes[file.span(one)[1] : file.span(two)[0]].decode()
        yield "swapped_arguments", start, end, file.text(two) + between + file.text(one), 0.8
    if isinstance(node.func, ast.Name) and node.func.id == "range":
        for bound in node.args[:2]:
            yield from _bound(file, bound)


def _bound(file: Source, bound: ast.expr | None) -> Iterator[Span]:
    if bound is None or isinstance(bound, ast.Constant | ast.Starred):
        return  # constants have their own edits
    start, end = file.span(bound)
    yield "off_by_one", start, end, f"{file.text(bound)} + 1", 0.5
    yield "off_by_one", start, end, f"{file.text(bound)} - 1", 0.4


def _negation(file: Source, node: ast.AST) -> Iterator[Span]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "boolean", file.span(node)[0], file.span(node.operand)[0], "", 0.5
    conditions: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        conditions = [node.test]
    elif isinstance(node, ast.BoolOp):
        conditions = node.values
    elif isinstance(node, ast.comprehension):
        conditions = node.ifs
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call | ast.Name | ast.Attribute):
        conditions = [node.value]
    for condition in conditions:
        if isinstance(condition, ast.Compare | ast.Constant):
            continue
        start, end = file.span(condition)
        text = file.text(condition)
        simple = isinstance(condition, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
        prior = 0.3 if isinstance(node, ast.Return) else 0.7
        yield "boolean", start, end, f"not {text}" if simple else f"not ({text})", prior


def _defaults(file: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Span]:
    arguments = function.args
    for default in [*arguments.defaults, *(default for default in arguments.kw_defaults if default)]:
        if not isinstance(default, ast.Constant):
            continue
        start, end = file.span(default)
        value = default.value
        if isinstance(value, bool):
            yield "default", start, end, str(not value), 1.0
        elif isinstance(value, int):
            for text in ("None", str(value - 1), str(value + 1)):
                yield "default", start, end, text, 0.9
        elif value is None:
            for text in ("0", "1", "False", "True"):
                yield "default", start, end, text, 0.3


def _statements(file: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Span]:
    """Returns too early, and statements lost (a `pass` where something stood)."""
    for parent in ast.walk(function):
        for block in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
            if not isinstance(block, list):
                continue
            for index, statement in enumerate(block):
                start, end = file.span(statement)
                if isinstance(statement, ast.Return) and index + 1 < len(block):
                    yield "early_return", start, end, "pass", 3.0
                elif isinstance(statement, ast.Pass):
                    for text in _insertions(file, function):
                        yield "lost_statement", start, end, text, 0.6
                elif isinstance(statement, ast.If) and not statement.orelse and parent is function:
                    yield "extra_condition", start, end, "pass", 0.1


def _insertions(file: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Statements worth trying in a gap: others of the same function, counters, and what loops do to collections."""
    texts: dict[str, None] = {}
    assigned: dict[str, None] = {}
    looped: dict[str, None] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign | ast.Expr | ast.Delete) and _last(node) == getattr(node, "lineno", 0):
            texts.setdefault(file.text(node))
        if isinstance(node, ast.For | ast.AsyncFor):
            looped |= dict.fromkeys(name.id for name in ast.walk(node.target) if isinstance(name, ast.Name))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned.setdefault(node.id)
    for name in assigned:
        if name not in looped:
            for item in looped:
                texts |= dict.fromkeys((f"{name}[{item}] += 1", f"{name}.append({item})", f"{name}.add({item})"))
            texts |= dict.fromkeys((f"{name} += 1", f"{name} -= 1"))
    lines = [text for text in texts if not re.match(r"[\"']", text)]
    return lines[:INSERTIONS_MAX]


def _replace_between(
    file: Source, left: ast.expr, right: ast.expr, old: str, new: tuple[str, ...], *, kind: tuple[str, float]
) -> Iterator[Span]:
    """The operator between two operands, replaced; the first replacement is the likeliest."""
    start, end = file.span(left)[1], file.span(right)[0]
    gap = file.bytes[start:end].decode()
    pattern = r"\s+".join(re.escape(word) for word in old.split())
    if old[0].isalpha():
        pattern = rf"\b{pattern}\b"
    places = list(re.finditer(pattern, gap))
    if len(places) != 1 or "#" in gap:
        return
    first = start + len(gap[: places[0].start()].encode())
    last = start + len(gap[: places[0].end()].encode())
    operator, prior = kind
    for index, text in enumerate(new):
        yield operator, first, last, text, prior if index == 0 else prior * 0.3
