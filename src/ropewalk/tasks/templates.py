"""Visible killers as templates of fresh cases: the same steps with other values.

A template is a test function whose assertions were replaced by notes: instead of comparing a value it notes it. With
its constants varied it is run on the right source, which says what the notes must be.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

from ropewalk.core.syntax import parse_expression
from ropewalk.tasks.bodies import Function, functions, parse, walk, without_parameters
from ropewalk.tasks.surgery import remove_tests
from ropewalk.tasks.variations import change_value

_EQUALITIES: Final = frozenset({
    "assertEqual", "assertEquals", "assertSequenceEqual", "assertListEqual", "assertTupleEqual", "assertDictEqual",
    "assertSetEqual", "assertMultiLineEqual", "assert_equal", "eq_", "eq",
})  # fmt: skip
_HELPERS: Final = """

import itertools as _itertools

import pytest


def _noted(value):
    return list(_itertools.islice(value, 200)) if hasattr(value, "__next__") else value
"""
_CONSTRUCTORS: Final = frozenset({
    "list", "tuple", "set", "frozenset", "dict", "range", "str", "int", "float", "bytes", "bytearray", "sorted",
    "reversed", "zip", "enumerate", "iter", "repr", "len",
})  # fmt: skip
_TEMPLATES_MAX: Final = 12
_FOUND: Final = "found"


def find_templates(tests: Mapping[str, bytes], killers: Iterable[str]) -> tuple[str, list[list[ast.stmt]]]:
    """The test module with the most usable killers, and their bodies as templates; "" and none where there are none.

    Usable are functions that need no fixtures, no parameters and nothing of their class but its assertions.
    """
    wanted: dict[str, set[str]] = {}
    for killer in killers:
        path, _, name = without_parameters(killer).partition("::")
        wanted.setdefault(path, set()).add(name.replace("::", "."))
    best: tuple[str, list[list[ast.stmt]]] = ("", [])
    for path, names in sorted(wanted.items()):
        tree = parse(tests.get(path, b""))
        found = [_template(node) for name, node in walk(tree) if name in names] if tree else []
        usable = [body for body in found if body][:_TEMPLATES_MAX]
        if len(usable) > len(best[1]):
            best = (path, usable)
    return best


def vary_templates(templates: Sequence[list[ast.stmt]], seed: int, *, count: int) -> Iterator[str]:
    """Bodies with one to three values changed, as indented text, each once."""
    chance = random.Random(seed)
    known = [template for body in templates if (template := _Template.of(body))]
    if not known:
        return
    seen = {template.text() for template in known}
    for _ in range(count * 3):
        template = chance.choice(known)
        if not template.places:
            continue
        changes = [chance.choice(template.places) for _ in range(chance.choice((1, 1, 2, 3)))]
        try:
            text = template.changed(changes, chance)
        except (ValueError, RecursionError, MemoryError):
            continue
        if text not in seen:
            seen.add(text)
            yield text
            if len(seen) >= count + len(known):
                return


class _Template:
    """A body whose statements are written down once; a change writes down those that it touches."""

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        self._body = body
        self._texts = [_text(statement) for statement in body]
        self.places = [(number, node) for number, statement in enumerate(body) for node in _values(statement)]
        """Statement's number and value in it."""

    @classmethod
    def of(cls, body: Sequence[ast.stmt]) -> Self | None:
        """None where a body cannot be written down: it is too deep, or has a number of too many digits."""
        try:
            return cls(body)
        except (ValueError, RecursionError):
            return None

    def text(self) -> str:
        return "\n".join(self._texts)

    def changed(self, changes: Sequence[tuple[int, ast.Constant | ast.List]], chance: random.Random) -> str:
        """The text with some values changed; the template itself stays as it is."""
        before: list[tuple[ast.Constant | ast.List, Any]] = []
        texts = list(self._texts)
        try:
            for _, node in changes:
                before.append((node, list(node.elts) if isinstance(node, ast.List) else node.value))
                change_value(node, chance)
            for number in {number for number, _ in changes}:
                texts[number] = _text(self._body[number])
        finally:
            for node, value in reversed(before):
                if isinstance(node, ast.List):
                    node.elts = value
                else:
                    node.value = value
        return "\n".join(texts)


def without_any_test(source: str) -> str:
    """A test module's imports, helpers and data."""
    names = [name for name in functions(source) if name.rpartition(".")[2].startswith("test")]
    return remove_tests(source, names)


def noting_module(preamble: str, bodies: Sequence[str]) -> str:
    """A module of functions `case_0`, `case_1`, … that return their notes."""
    cases = [f"def case_{number}():\n    found = []\n{body}\n    return found\n" for number, body in enumerate(bodies)]
    return "\n\n".join([preamble + _HELPERS, *cases])


def judging_module(preamble: str, cases: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """A test module that compares notes with what they must be (body, notes as text), and its tests' names."""
    names = [f"test_case_{number}" for number in range(len(cases))]
    tests = [
        f"def {name}():\n    found = []\n{body}\n{_assertions(truth)}\n"
        for name, (body, truth) in zip(names, cases, strict=True)
    ]
    return "\n\n".join([preamble + _HELPERS, *tests]), names


def _assertions(truth: str) -> str:
    """One for each note, so that each value counts by itself: in a list, even one that is seen would look unseen."""
    notes = parse_expression(truth).body
    assert isinstance(notes, ast.List)
    lines = [f"    assert len(found) == {len(notes.elts)}"]
    lines += [f"    assert found[{number}] == {expectation(note)}" for number, note in enumerate(notes.elts)]
    return "\n".join(lines)


def expectation(value: ast.expr) -> str:
    """A literal as the right side of an assertion: floats within pytest's tolerance, since other right solutions may
    add up in another order. `pytest` must be imported where it stands."""
    text = ast.unparse(value)
    parts = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
    is_flat = all(isinstance(part, (ast.Constant, ast.UnaryOp)) for part in parts)
    has_float = any(isinstance(part, ast.Constant) and isinstance(part.value, float) for part in ast.walk(value))
    has_text = any(isinstance(part, ast.Constant) and isinstance(part.value, (str, bytes)) for part in ast.walk(value))
    return f"pytest.approx({text})" if has_float and is_flat and not has_text else text


def _template(node: Function) -> list[ast.stmt]:
    """A function's body with notes for assertions; empty where it cannot be used."""
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if isinstance(node, ast.AsyncFunctionDef) or node.decorator_list or names not in ([], ["self"]) or arguments.vararg:
        return []
    body = _Noting().visit(ast.Module(copy.deepcopy(node.body), [])).body
    used = [part for statement in body for part in ast.walk(statement)]
    names_used = [part for part in used if isinstance(part, ast.Name)]
    notes = [name for name in names_used if getattr(name, "is_note", False)]
    if not notes or any(name.id == "self" or (name.id == _FOUND and name not in notes) for name in names_used):
        return []
    leaves = (ast.Return, ast.Yield, ast.YieldFrom, ast.Nonlocal)
    return [] if any(isinstance(part, leaves) for part in used) else body


class _Noting(ast.NodeTransformer):
    """Replaces assertions of equality by notes, and drops all other assertions."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            return _note(test.left, test.comparators[0])
        return ast.Pass()

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if isinstance(call, ast.Constant) and isinstance(call.value, str):
            return ast.Pass()
        if not isinstance(call, ast.Call):
            return node
        is_method = isinstance(call.func, ast.Attribute) and _is_self(call.func.value)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in _EQUALITIES and len(call.args) >= 2:
            return _note(call.args[0], call.args[1])
        return ast.Pass() if is_method else node

    def visit_With(self, node: ast.With) -> ast.stmt | list[ast.stmt]:
        calls = [item.context_expr for item in node.items]
        names = [
            call.func.attr for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        ]
        if names == ["subTest"]:
            return self.generic_visit(node).body  # type: ignore[attr-defined, no-any-return]
        if any(name in ("assertRaises", "assertRaisesRegex", "assertWarns", "raises", "warns") for name in names):
            return ast.Pass()
        return self.generic_visit(node)  # type: ignore[return-value]


def _note(left: ast.expr, right: ast.expr) -> ast.stmt:
    """A note of the side that is computed; none where the other side calls what the module ships, or a tolerance."""
    sides = [side for side in (left, right) if not _is_expectation(side)]
    dropped = right if (sides[0] if sides else left) is left else left
    if not _is_literal_like(dropped):
        return ast.Pass()
    value = ast.Call(ast.Name("_noted", ast.Load()), [sides[0] if sides else left], [])
    name = ast.Name(_FOUND, ast.Load())
    name.is_note = True  # type: ignore[attr-defined]
    return ast.Expr(ast.Call(ast.Attribute(name, "append", ast.Load()), [value], []))


def _is_expectation(node: ast.expr) -> bool:
    """Whether an expression is what a value is compared with rather than the value."""
    if isinstance(node, ast.Name):
        return node.id.startswith(("expect", "want"))
    return not any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(node))


def _is_literal_like(node: ast.expr) -> bool:
    """Whether an expression calls nothing but constructors of plain data."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return all(isinstance(call.func, ast.Name) and call.func.id in _CONSTRUCTORS for call in calls)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _values(statement: ast.stmt) -> Iterator[ast.Constant | ast.List]:
    """Constants and lists that may be changed; parts of formatted strings may not."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.JoinedStr):
            continue
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | bytes()) | ast.List(elts=[_, *_]):
                yield node
        pending.extend(ast.iter_child_nodes(node))


def _text(statement: ast.stmt) -> str:
    """A statement as text, indented once."""
    return "\n".join(f"    {line}" for line in ast.unparse(statement).splitlines())
