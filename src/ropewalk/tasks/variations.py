"""Small changes of values in source text: other numbers, shorter texts, longer lists."""

from __future__ import annotations

import ast
import random
from typing import Any

from ropewalk.core.syntax import parse_expression


def vary_arguments(text: str, source: random.Random) -> str | None:
    """Arguments of a call, as text, with one or two constants or elements changed; None where there is nothing."""
    try:
        return _varied(text, source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the text comes out of a sandbox
        return None


def _varied(text: str, source: random.Random) -> str | None:
    tree = parse_expression(text)
    for _ in range(source.choice((1, 1, 2))):
        places = [node for node in ast.walk(tree.body) if isinstance(node, (ast.Constant, ast.List, ast.UnaryOp))]
        places = [node for node in places if not isinstance(node, ast.List) or node.elts]
        if not places:
            return None
        change_value(source.choice(places), source)
    return ast.unparse(tree)


def change_value(node: ast.AST, source: random.Random) -> None:
    """Changes a constant, or the elements of a list, in place."""
    if isinstance(node, ast.List) and node.elts:  # an earlier change may have emptied it
        how = source.randrange(4)
        if how == 0:
            del node.elts[source.randrange(len(node.elts))]
        elif how == 1:
            node.elts.insert(source.randrange(len(node.elts) + 1), source.choice(node.elts))
        elif how == 2:
            source.shuffle(node.elts)
        else:
            node.elts.extend(node.elts[: source.randint(1, 3)])
    elif isinstance(node, ast.Constant):
        node.value = _other(node.value, source)


def _other(value: Any, source: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return abs(value + source.choice((-3, -2, -1, 1, 2, 3, 5, 10)))
    if isinstance(value, float):
        return round(abs(value * source.choice((0.5, 2, 3, 10))) + source.randint(0, 9), 3)
    if isinstance(value, str):
        return _other_text(value, source)
    if isinstance(value, bytes):
        return _other_text(value.decode("latin-1"), source).encode("latin-1")
    return value


def _other_text(value: str, source: random.Random) -> str:
    """A piece left out, said twice, or appended."""
    if not value:
        return value
    start = source.randrange(len(value))
    piece = value[start : start + source.randint(1, 4)]
    how = source.randrange(3)
    if how == 0:
        return value[:start] + value[start + len(piece) :]
    return value[:start] + piece + value[start:] if how == 1 else value + piece
