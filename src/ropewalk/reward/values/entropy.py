"""How much a forger must guess.

Whoever controls the candidate's process can report any value. What keeps a forger from being paid is that the right
values are not there to be read, so a grader states how many bits its voting values are worth. The estimate is on the
low side: a value counts once however often it is expected, and a value that is spelled out anywhere in what the
candidate can see (visible tests, shipped inputs) counts nothing.
"""

from __future__ import annotations

import ast
import doctest
import json
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ropewalk.core.syntax import parse_module
from ropewalk.reward.values.assertions import Kind, name_of
from ropewalk.reward.values.codec import children, number_of
from ropewalk.reward.values.encode import encode

GUESS_BITS_MIN: Final = 10.0
"""A grader below this is refused: one forgery in a thousand would be paid."""
_VALUE_BITS_MAX = 40.0
_RANGE_MAX = 1_000
_DECIMAL_MAX = 10**4000
"""Python refuses to write longer numbers in decimal."""


def guess_bits(values: Iterable[tuple[Kind, Any]], visible: frozenset[str]) -> float:
    """Bits of all values together.

    Args:
        values: How each is compared, and the encoded expected value (None for TRUTH).
        visible: Outlines of values that can be seen (`outlines_in`).
    """
    distinct: dict[str, float] = {}
    for kind, value in values:
        if kind == Kind.TRUTH:
            distinct["truth"] = 1.0
        elif kind == Kind.RAISES:
            distinct[outline(value)] = 2.0
        else:
            outlined = outline(value)
            bits = 0.0 if outlined in visible else _bits(value)
            distinct[outlined] = min(bits, distinct.get(outlined, bits))
    return sum(distinct.values())


def outline(value: Any) -> str:
    """A text that is equal for values that look alike: the types of sequences and of numbers do not matter."""
    return json.dumps(_outline(value), sort_keys=True)


def outlines_in(sources: Iterable[str]) -> frozenset[str]:
    """Outlines of all literal values spelled out in Python sources; sources that do not parse have none."""
    return frozenset().union(*map(_outlines_in, sources))


@lru_cache(maxsize=128)
def _outlines_in(source: str) -> frozenset[str]:
    # Many graders are built against the same source.
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            found.update(_literal_outlines(node))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ">>>" in node.value:
            found |= outlines_in(_shown_in(node.value))
    return frozenset(found)


def _shown_in(docstring: str) -> list[str]:
    """What the examples of a docstring call, and what they say comes out."""
    try:
        examples = doctest.DocTestParser().get_examples(docstring)
    except ValueError:
        return []
    return [text for example in examples for text in (example.source, example.want.strip())]


def _literal_outlines(node: ast.expr) -> list[str]:
    try:
        if isinstance(node, ast.Call) and name_of(node.func) == "range" and 1 <= len(node.args) <= 3:
            span = range(*(ast.literal_eval(argument) for argument in node.args))
            return [outline(encode(list(span)))] if len(span) <= _RANGE_MAX else []
        if isinstance(node, (ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp)):
            return [outline(encode(ast.literal_eval(node)))]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, OverflowError):
        pass
    return []


def _outline(value: Any) -> Any:
    number = number_of(value)
    if number is not None:
        if isinstance(number, int):
            return ["n", str(int(number)) if abs(number) < _DECIMAL_MAX else hex(number)]
        try:
            plain = complex(number)
        except OverflowError:
            return ["n", str(value)]
        whole = plain.imag == 0 and math.isfinite(plain.real) and plain.real == int(plain.real)
        return ["n", str(int(plain.real)) if whole else str(plain)]
    if isinstance(value, list) and value and value[0] == "r":
        span = range(*(number_of(part) for part in value[1:]))  # type: ignore[arg-type]
        return ["+", *(["n", str(item)] for item in span[:_RANGE_MAX])]
    inner = children(value)
    if inner or (isinstance(value, list) and value[1:] == [[]]):
        return ["+", *map(_outline, inner)]
    return value


def _bits(value: Any) -> float:
    number = number_of(value)
    if isinstance(number, bool) or value is None:
        return 1.0
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int):
        return min(number.bit_length() + 1.0, 4.0 if abs(number) <= 1_000 else 24.0)
    if number is not None:
        return 8.0
    if isinstance(value, str):
        return min(4.0 * len(value), 24.0) or 1.0
    tag = value[0]
    if tag == "b" or tag == "s":
        return min(2.0 * len(value[1]), 24.0) or 1.0
    if tag in ("T", "c"):
        return 2.0
    if tag == "r":
        return sum({outline(part): _bits(part) for part in value[1:]}.values())
    inner = children(value)
    if not inner and tag in ("dt", "dd", "tm", "td"):
        return 12.0
    # Equal parts tell nothing new.
    return min(1.0 + sum({outline(part): _bits(part) for part in inner}.values()), _VALUE_BITS_MAX)
