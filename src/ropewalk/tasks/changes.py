"""Which statements of functions differ between two states of a package: what a test can ask for that is new.

Whole functions are too coarse for that, since a release may change one function twice. Lines are too fine, since a
formatter may touch all of them. So statements are compared by their syntax, in order, and what differs is told by the
lines on which the later state has it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from ropewalk.tasks.bodies import Function, body_of, parse, walk
from ropewalk.tasks.worlds import WORKDIR

_FORKS: Final = (ast.IfExp, ast.BoolOp, ast.comprehension)
"""Expressions of which a run may pass over a part."""
_PLACE: Final = re.compile(r"\d{1,7}(:\d{1,7})?", re.ASCII)


@dataclass(frozen=True)
class ChangedLine:
    """A line with a statement, or a part of one, that the earlier state lacks.

    Attributes:
        function: dotted name of the function it stands in.
        forks: a run may come by the line without executing all of it, so that parts of it count on their own.
    """

    function: str
    forks: bool


ChangedLines = Mapping[str, Mapping[int, ChangedLine]]
"""Path → line of the later state (1-based) → what it is."""


@dataclass(frozen=True)
class _Statement:
    """One statement without the statements inside it: what it says, and where."""

    text: str
    first: int
    last: int
    forks: bool
    is_own: bool = True
    """False: it only stands where another one is."""


def changed_lines(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> ChangedLines:
    """What functions of the later state hold that the earlier one's do not.

    A function is compared with the one of its name in its module, else with the only one of its last name that the
    earlier state has anywhere (it was moved), else all of it is new. Where something was only taken out, the statement
    after it stands for that. Statements of modules and classes are left out: they run when a module is imported,
    whatever a test does. So do files that this Python cannot parse.

    Args:
        before, after: Python files, path → content.
    """
    changed = [path for path in sorted(after) if before.get(path) != after[path] and path.endswith(".py")]
    if not changed:
        return {}
    named = _by_last_name(before)
    found: dict[str, dict[int, ChangedLine]] = {}
    taken: set[tuple[str, int]] = set()
    for path in changed:
        old, new = _functions(before.get(path, b"")), _functions(after[path])
        for name, node in new.items():
            model = old.get(name) or named.get(node.name)
            for statement in _differing(list(_outline(model)) if model else [], list(_outline(node))):
                lines = found.setdefault(path, {})
                for line in range(statement.first, statement.last + 1):
                    # Two statements on one line (`if x: return y`): which of them ran is not told by the line.
                    forks = statement.forks or (path, line) in taken
                    lines[line] = ChangedLine(name, forks)
                    taken.update([(path, line)] if statement.is_own else ())
    return found


def read_places(said: Iterable[object], lines: ChangedLines) -> frozenset[str]:
    """The places that a run says it executed: `path:line`, or `path:line:column` for a part of a line.

    Args:
        said: JSON texts of `line_probe`. They come out of a sandbox: what is none of these lines is left out.
        lines: that were asked for.
    """
    found: set[str] = set()
    for text in said:
        try:
            told = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            continue
        for path, places in told.items() if isinstance(told, dict) else ():
            inner = path.removeprefix(f"{WORKDIR}/")
            for place in places if isinstance(places, list) else ():
                if isinstance(place, str) and _PLACE.fullmatch(place):
                    is_known = int(place.partition(":")[0]) in lines.get(inner, {})
                    found.update([f"{inner}:{place}"] if is_known else ())
    return frozenset(found)


def for_probe(lines: ChangedLines) -> dict[str, dict[str, bool]]:
    """Lines as `line_probe` wants them: absolute path → line → whether it forks."""
    return {
        f"{WORKDIR}/{path}": {str(line): what.forks for line, what in those.items()} for path, those in lines.items()
    }


def _functions(source: bytes) -> dict[str, Function]:
    tree = parse(source)
    return dict(walk(tree)) if tree else {}


def _by_last_name(files: Mapping[str, bytes]) -> dict[str, Function | None]:
    """Functions whose last name is theirs alone; None for those that share it."""
    found: dict[str, Function | None] = {}
    for path, source in files.items():
        if path.endswith(".py"):
            for node in _functions(source).values():
                found[node.name] = None if node.name in found else node
    return found


def _differing(old: list[_Statement], new: list[_Statement]) -> Iterator[_Statement]:
    matcher = SequenceMatcher(None, [one.text for one in old], [one.text for one in new], autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        if kind == "delete":
            yield from new[start : start + 1] or new[-1:]
        elif kind != "equal":
            yield from new[start:end]


def _outline(function: Function) -> Iterator[_Statement]:
    """Parameters, as if they stood where the body begins, then every statement; inner functions are none of them."""
    body = body_of(function)
    if body:
        line = body[0].lineno
        yield _Statement(ast.dump(function.args), line, line, forks=False, is_own=False)
        yield from _statements(body)


def _statements(body: list[ast.stmt]) -> Iterator[_Statement]:
    for statement in body:
        yield from _parts(statement)


def _parts(statement: ast.stmt) -> Iterator[_Statement]:
    """The statement's own part, then the statements inside it."""
    kind = type(statement).__name__
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield _one(f"{kind} {statement.name}", statement.lineno)
        case ast.If() | ast.While():
            yield _one(kind, statement.lineno, statement.test)
        case ast.For() | ast.AsyncFor():
            yield _one(kind, statement.lineno, statement.target, statement.iter)
        case ast.With() | ast.AsyncWith():
            items = [(item.context_expr, item.optional_vars) for item in statement.items]
            yield _one(kind, statement.lineno, *(part for pair in items for part in pair if part))
        case ast.Match():
            yield _one(kind, statement.lineno, statement.subject)
        case ast.Try() | ast.TryStar():
            pass  # it does nothing by itself
        case _:
            yield _one("", statement.lineno, statement)
            return
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for _, value in ast.iter_fields(statement):
        for part in value if isinstance(value, list) else ():
            if isinstance(part, ast.ExceptHandler):
                yield _one(f"except {part.name}", part.lineno, *([part.type] if part.type else []))
                yield from _statements(part.body)
            elif isinstance(part, ast.match_case):
                guard = [part.guard] if part.guard else []
                yield _one("case", part.pattern.lineno, part.pattern, *guard)
                yield from _statements(part.body)
            elif isinstance(part, ast.stmt):
                yield from _parts(part)


def _one(kind: str, first: int, *nodes: ast.stmt | ast.expr | ast.pattern) -> _Statement:
    try:
        text = kind + "".join(ast.dump(node) for node in nodes)
    except (ValueError, RecursionError):  # a number of too many digits, or too deep: like no other
        text = f"{kind} {first}"
    last = max((node.end_lineno or first for node in nodes), default=first)
    return _Statement(text, first, last, any(isinstance(part, _FORKS) for node in nodes for part in ast.walk(node)))
