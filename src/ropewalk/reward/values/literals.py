"""What is spelled out in files: literals and examples of Python sources, numbers and words of anything else."""

from __future__ import annotations

import ast
import doctest
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ropewalk.core.syntax import lines_of, parse_module
from ropewalk.reward.values.assertions import name_of
from ropewalk.reward.values.encode import encode
from ropewalk.reward.values.visible import ITEMS_MAX, RANGE_MAX, Visible, gathered, union

_LITERALS_MAX = 100_000
"""Of one statement; what a larger table holds besides them counts as unseen."""
_TOKEN = re.compile(r"[^\s,;=()\[\]{}<>\"'|]+")
_PARTS_MAX = 4_096
_PARTS: dict[tuple[str, int, int], Visible] = {}


def seen_in(texts: Iterable[str]) -> Visible:
    """What is spelled out in files: literals and examples of Python sources, numbers and words of anything else.

    What is a step away from one of thousands of literals must still be found among them, so it counts as unseen.
    """
    return union(map(_seen_in, texts))


@lru_cache(maxsize=128)
def _seen_in(text: str) -> Visible:
    # Many graders are built against the same source.
    tree = _tree_of(text)
    if tree is None:
        return gathered(_tokens_in(text))
    lines = lines_of(text)
    return union([_seen_in_part(node, lines) for node in _parts_of(tree)])


def _seen_in_part(node: ast.AST, lines: list[str]) -> Visible:
    """Test files of one change differ by a few functions: the rest of them is looked through once."""
    if not isinstance(node, ast.stmt):
        return gathered(_values_in_tree(node))
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    key = ("".join(lines[first - 1 : node.end_lineno]), node.col_offset, node.end_col_offset or 0)
    found = _PARTS.get(key)
    if found is None:
        if len(_PARTS) >= _PARTS_MAX:
            _PARTS.clear()
        found = _PARTS[key] = gathered(_values_in_tree(node))
    return found


def _parts_of(tree: ast.Module) -> list[ast.AST]:
    """Statements of a module and of its classes, and what else belongs to the classes."""
    parts: list[ast.AST] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            parts += [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords), *node.body]
        else:
            parts.append(node)
    return parts


def _values_in(text: str) -> list[Any]:
    tree = _tree_of(text)
    return _tokens_in(text) if tree is None else _values_in_tree(tree)


def _tree_of(text: str) -> ast.Module | None:
    """None where it is no Python, or none that can be parsed here."""
    try:
        return parse_module(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _values_in_tree(tree: ast.AST) -> list[Any]:
    found: list[Any] = []
    literals = _literal_nodes(tree)
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if id(node) in literals:
            found += _spelled_out(node, _LITERALS_MAX - len(found))
            inner = _texts_in(node)
        else:
            found += _range(node)
            inner = []
            pending += ast.iter_child_nodes(node)
        for text in inner:
            if ">>>" in text:
                for shown in _shown_in(text):
                    found += _values_in(shown)
    return found


def _literal_nodes(tree: ast.AST) -> set[int]:
    """Ids of all nodes that spell out a value; one look at each node, however deep they are nested."""
    found: set[int] = set()
    for node in reversed(list(ast.walk(tree))):  # children before their parents
        match node:
            case ast.Constant():
                found.add(id(node))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant()):
                found.add(id(node))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                if all(id(part) in found for part in parts):
                    found.add(id(node))
            case ast.Dict(keys=keys, values=values):
                if all(id(part) in found for part in (*keys, *values)):
                    found.add(id(node))
    return found


def _spelled_out(node: ast.AST, count_max: int) -> list[Any]:
    """The value of a literal and everything in it, each encoded."""
    try:
        pending: list[Any] = [ast.literal_eval(node)]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return []
    found: list[Any] = []
    while pending and len(found) < count_max:
        value = pending.pop()
        found.append(encode(value))
        if isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
    return found


def _texts_in(node: ast.AST) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _tokens_in(text: str) -> list[Any]:
    """Data files: the text, its lines, its words, and the numbers among them."""
    found: list[Any] = [encode(text[:100_000]), *(encode(line.strip()) for line in text.splitlines()[:ITEMS_MAX])]
    for token in _TOKEN.findall(text)[:20_000]:
        found.append(encode(token))
        with suppress(ValueError):
            found.append(encode(int(token)))
        with suppress(ValueError):
            found.append(encode(float(token)))
    with suppress(ValueError, RecursionError):
        found.append(encode(json.loads(text)))
    return found


def _shown_in(docstring: str) -> list[str]:
    """What the examples of a docstring call, and what they say comes out."""
    try:
        examples = doctest.DocTestParser().get_examples(docstring)
    except ValueError:
        return []
    return [text for example in examples for text in (example.source, example.want.strip())]


def _range(node: ast.AST) -> list[Any]:
    """What a `range` of literals counts."""
    if not (isinstance(node, ast.Call) and name_of(node.func) == "range" and 1 <= len(node.args) <= 3):
        return []
    try:
        span = range(*(ast.literal_eval(argument) for argument in node.args))
        return [encode(list(span))] if len(span) <= RANGE_MAX else []
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, OverflowError):
        return []
