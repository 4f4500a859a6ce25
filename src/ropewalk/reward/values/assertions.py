"""Recognises assertions and tells the candidate's side from the expected one."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EMITTER: Final = "_ropewalk"
"""The module by which tests hand out values."""


class Kind(StrEnum):
    """How the supervisor compares what a point hands out."""

    EQUAL = "equal"
    """Python's `==`."""
    IDENTICAL = "identical"
    """None, True or False itself."""
    MULTISET = "multiset"
    """Equal elements, in any order."""
    SEQUENCE = "sequence"
    """Equal elements in this order, in a list or a tuple."""
    CLOSE = "close"
    """Numbers within a tolerance."""
    TRUTH = "truth"
    """It holds. Worth little: everybody knows the answer."""
    RAISES = "raises"
    """An exception of an expected type."""


@dataclass(frozen=True)
class Comparison:
    """One voting point."""

    kind: Kind
    actual: ast.expr
    """The candidate's side, which is shipped."""
    expected: ast.expr | None = None
    """Closed; None for TRUTH."""
    tolerance: tuple[ast.expr, ...] = ()
    """For CLOSE: relative and absolute; closed."""


@dataclass(frozen=True)
class Raising:
    """An expectation that code raises."""

    expected: ast.expr
    """A type or a tuple of types; closed."""


Closed = Callable[[ast.expr], bool]

_EQUAL = frozenset(
    {
        *("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual"),
        "assertMultiLineEqual",
    }
)
_TWO_SIDED = {
    **dict.fromkeys(_EQUAL, Kind.EQUAL),
    "assertCountEqual": Kind.MULTISET,
    "assertSequenceEqual": Kind.SEQUENCE,
}
RAISES = frozenset({"assertRaises", "raises"})
_SWALLOWS = frozenset({"assertRaises", "assertRaisesRegex", "raises", "suppress", "assertRaisesRegexp"})


def of_statement(statement: ast.stmt, closed: Closed) -> list[Comparison]:
    """The points of one statement; empty where it is not an assertion that can vote."""
    if isinstance(statement, ast.Assert):
        return [_of_condition(part, closed) for part in _conjuncts(statement.test)]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _of_method(statement.value, closed)
    return []


def raising(call: ast.expr, closed: Closed) -> Raising | None:
    """What `self.assertRaises(E)` or `pytest.raises(E)` expects; None for anything more elaborate."""
    if not isinstance(call, ast.Call) or call.keywords or not call.args or name_of(call.func) not in RAISES:
        return None
    if not (is_self_method(call.func) or _is_of(call.func, "pytest")):
        return None
    kinds = call.args[0].elts if isinstance(call.args[0], ast.Tuple) else [call.args[0]]
    if not kinds or not all(isinstance(kind, (ast.Name, ast.Attribute)) and closed(kind) for kind in kinds):
        return None
    return Raising(call.args[0])


def name_of(function: ast.expr) -> str:
    """The last part of a dotted name."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def is_self_method(function: ast.expr) -> bool:
    """Whether it is `self.something`."""
    return _is_of(function, "self")


def swallows(context: ast.expr) -> bool:
    """Whether a context manager is about exceptions, so that what raises within it need not fail the test."""
    return isinstance(context, ast.Call) and name_of(context.func) in _SWALLOWS


def is_future(statement: ast.stmt) -> bool:
    """Whether it is `from __future__ import …`, which nothing but texts may precede."""
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def is_text(statement: ast.stmt) -> bool:
    """Whether it is a docstring, or another constant that stands by itself."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_of(function: ast.expr, owner: str) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == owner


def _conjuncts(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _conjuncts(value)]
    return [test]


def _of_condition(test: ast.expr, closed: Closed) -> Comparison:
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            found = _sides(left, right, Kind.EQUAL, closed)
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[right]):
            found = _identity(left, right)
        case _:
            found = None
    return found or Comparison(Kind.TRUTH, test)


def _sides(left: ast.expr, right: ast.expr, kind: Kind, closed: Closed) -> Comparison | None:
    for actual, expected in ((left, right), (right, left)):
        if isinstance(expected, ast.Call) and name_of(expected.func) == "approx":
            return _approx(actual, expected, closed)
    if closed(right) != closed(left):
        actual, expected = (left, right) if closed(right) else (right, left)
        return Comparison(kind, actual, expected)
    return None


def _identity(left: ast.expr, right: ast.expr) -> Comparison | None:
    if isinstance(right, ast.Constant) and (right.value is None or isinstance(right.value, bool)):
        return Comparison(Kind.IDENTICAL, left, right)
    return None


def _approx(actual: ast.expr, call: ast.Call, closed: Closed) -> Comparison | None:
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    if len(call.args) != 1 or not options.keys() <= {"rel", "abs"} or closed(actual):
        return None
    if not closed(call.args[0]) or not all(map(closed, options.values())):
        return None
    relative = options.get("rel", ast.Constant(0.0 if "abs" in options else 1e-6))
    return Comparison(Kind.CLOSE, actual, call.args[0], (relative, options.get("abs", ast.Constant(1e-12))))


def _of_method(call: ast.Call, closed: Closed) -> list[Comparison]:
    if not is_self_method(call.func) or any(isinstance(argument, ast.Starred) for argument in call.args):
        return []
    name, arguments = name_of(call.func), call.args
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in ("assertAlmostEqual", "assertAlmostEquals"):
        return _almost(arguments, options, closed)
    if not options.keys() <= {"msg"}:
        return []
    match name, arguments:
        case ("assertTrue", [value, *_]):
            return [Comparison(Kind.TRUTH, value)]
        case ("assertFalse", [value, *_]):
            return [Comparison(Kind.TRUTH, ast.UnaryOp(ast.Not(), value))]
        case ("assertIsNone", [value, *_]):
            return [Comparison(Kind.IDENTICAL, value, ast.Constant(None))]
        case ("assertIs", [left, right, *_]):
            found = _identity(left, right)
            return [found] if found else []
        case (_, [left, right, *_]) if name in _TWO_SIDED:
            found = _sides(left, right, _TWO_SIDED[name], closed)
            if found is None and name in _EQUAL:
                found = Comparison(Kind.TRUTH, ast.Compare(left, [ast.Eq()], [right]))
            return [found] if found else []
    return []


def _almost(arguments: list[ast.expr], options: dict[str | None, ast.expr], closed: Closed) -> list[Comparison]:
    if len(arguments) not in (2, 3) or not options.keys() <= {"places", "delta", "msg"}:
        return []
    found = _sides(arguments[0], arguments[1], Kind.CLOSE, closed)
    if found is None or found.kind != Kind.CLOSE or found.tolerance:
        return []
    places = options.get("places", arguments[2] if len(arguments) == 3 else ast.Constant(7))
    if isinstance(places, ast.Constant) and places.value is None:
        places = ast.Constant(7)
    if "delta" in options:
        absolute = options["delta"]
    elif isinstance(places, ast.Constant) and isinstance(places.value, int) and 0 <= places.value <= 300:
        absolute = ast.Constant(0.5 * 10.0**-places.value)
    else:
        return []
    if not closed(absolute):
        return []
    return [Comparison(Kind.CLOSE, found.actual, found.expected, (ast.Constant(0.0), absolute))]
