"""What is spelled out in files: literals, strings and comments of Python sources, and the text of anything else."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ropewalk.core.syntax import lines_of, parse_module
from ropewalk.reward.values.assertions import name_of
from ropewalk.reward.values.datafiles import show
from ropewalk.reward.values.encode import encode
from ropewalk.reward.values.outlines import ITEMS_MAX
from ropewalk.reward.values.prose import numbers, prose
from ropewalk.reward.values.visible import Visible, gathered, union

_LITERALS_MAX = 100_000
"""Of one statement; where a table is larger, nothing counts as secret."""
_PROSE_MIN = 2
_PARTS_MAX = 4_096
_PARTS: dict[tuple[str, int, int], Visible] = {}


def seen_in(texts: Iterable[str]) -> Visible:
    """What is spelled out in files: literals, strings, comments and examples of Python sources, all else as text.

    What is a step away from one of thousands of literals must still be found among them, so it counts as unseen.
    """
    return union(map(_seen_in, texts))


def seen_in_files(files: Iterable[tuple[str, bytes]]) -> Visible:
    """The same of files by path; what cannot be read may hold anything."""
    python, others, paths = [], [], []
    for path, data in files:
        paths.append(path)
        text = _decoded(data) if path.endswith((".py", ".pyi")) else None
        if text is None:
            others.append((path, data))
        else:
            python.append(text)
    names = prose("\n".join(paths))
    return union([seen_in(python), *show(others), names])


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


@lru_cache(maxsize=128)
def _seen_in(text: str) -> Visible:
    # Many graders are built against the same source.
    tree = _tree_of(text)
    if tree is None:
        return prose(text)
    lines = lines_of(text)
    parts = [_seen_in_part(node, lines) for node in _parts_of(tree)]
    # A number sign within a string makes the rest of its line a comment here: that only shows more.
    comments = [line.partition("#")[2].strip() for line in lines if "#" in line]
    return union([*parts, prose("\n".join(comments)), numbers(text)])


def _seen_in_part(node: ast.AST, lines: list[str]) -> Visible:
    """Test files of one change differ by a few functions: the rest of them is looked through once."""
    if not isinstance(node, ast.stmt):
        return _of_tree(node)
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    key = ("".join(lines[first - 1 : node.end_lineno]), node.col_offset, node.end_col_offset or 0)
    found = _PARTS.get(key)
    if found is None:
        if len(_PARTS) >= _PARTS_MAX:
            _PARTS.clear()
        found = _PARTS[key] = _of_tree(node)
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


def _tree_of(text: str) -> ast.Module | None:
    """None where it is no Python, or none that can be parsed here."""
    try:
        return parse_module(text)
    except SyntaxError:
        return None


def _of_tree(tree: ast.AST) -> Visible:
    found: list[Any] = []
    parts: list[Visible] = []
    nodes = list(ast.walk(tree))
    literals, inside = _literal_nodes(nodes)
    for node in nodes:
        if id(node) not in literals:
            found += _range(node)
        elif id(node) not in inside:
            found += _spelled_out(node, parts)
            for text in _texts_in(node):
                parts.append(prose(text))
                shown = map(_tree_of, _shown_in(text)) if ">>>" in text else ()
                parts += [_of_tree(example) for example in shown if example is not None]
    if len(found) > _LITERALS_MAX:
        parts.append(Visible(unopened=frozenset({f"a table of {len(found)} literals"})))
    return union([gathered(found), *parts])


def _literal_nodes(nodes: list[ast.AST]) -> tuple[set[int], set[int]]:
    """Ids of all nodes that spell out a value, parents before children in `nodes`, and of those that are part of
    another one; one look at each node, however deep they are nested."""
    found: set[int] = set()
    inside: set[int] = set()
    for node in reversed(nodes):  # children before their parents
        parts: list[ast.AST | None] = []
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            parts += node.elts
        elif isinstance(node, ast.Dict):
            parts += [*node.keys, *node.values]
        elif isinstance(node, ast.UnaryOp):
            is_sign = isinstance(node.op, (ast.USub, ast.UAdd))
            if not (is_sign and isinstance(node.operand, ast.Constant)):
                continue
            parts.append(node.operand)
        elif not isinstance(node, ast.Constant):
            continue
        ids = set(map(id, parts))
        if ids <= found:
            found.add(id(node))
            inside |= ids
    return found, inside


def _spelled_out(node: ast.AST, unopened: list[Visible]) -> list[Any]:
    """The value of a literal and everything in it, each encoded."""
    try:
        pending: list[Any] = [ast.literal_eval(node)]
    except (ValueError, TypeError, SyntaxError):
        return []  # a set of lists, a number too long to be read: nothing that runs
    except (MemoryError, RecursionError):
        unopened.append(Visible(unopened=frozenset({"a literal that is nested too deep"})))
        return []
    found: list[Any] = []
    while pending and len(found) <= _LITERALS_MAX:
        value = pending.pop()
        found.append(encode(value))
        if isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
    return found


def _texts_in(node: ast.AST) -> list[str]:
    nodes = (node,) if isinstance(node, ast.Constant) else ast.walk(node)
    held = [part.value for part in nodes if isinstance(part, ast.Constant)]
    texts = [value.decode("latin-1") if isinstance(value, bytes) else value for value in held]
    return [text for text in texts if isinstance(text, str) and len(text) >= _PROSE_MIN]


def _shown_in(docstring: str) -> list[str]:
    """What the examples of a docstring call, and what they say comes out."""
    try:
        examples = doctest.DocTestParser().get_examples(docstring)
    except ValueError:
        return []
    return [text.strip() for example in examples for text in (example.source, example.want)]


def _range(node: ast.AST) -> list[Any]:
    """What a `range` of literals counts."""
    if not (isinstance(node, ast.Call) and name_of(node.func) == "range" and 1 <= len(node.args) <= 3):
        return []
    try:
        span = range(*(ast.literal_eval(argument) for argument in node.args))
        return [encode(list(span))] if len(span) <= ITEMS_MAX else []
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, OverflowError):
        return []
