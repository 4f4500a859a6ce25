"""Makes a shipped test module go on after exceptions. For trusted runs on the broken source alone.

A test stops at its first exception, and what it would have asked for afterwards is not known to be wrong. Here every
statement stands by itself, so that each value is asked for, and whatever the test makes of its own is there to be seen.
"""

from __future__ import annotations

import ast

from ropewalk.core.syntax import parse_module
from ropewalk.reward.values.assertions import EMITTER, is_future, is_text, name_of, swallows

_SETUP = ("test", "setup", "setUp", "teardown", "tearDown", "asyncSetUp", "asyncTearDown")
_BARE = (ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.Raise)
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def lenient(shipped: str) -> str:
    """The module with each statement of it, of its classes, tests, fixtures and set-ups on its own."""
    tree = parse_module(shipped)
    tree.body = _apart(tree.body)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _apart(body: list[ast.stmt]) -> list[ast.stmt]:
    return [_alone(statement) for statement in body] or [ast.Pass()]


def _alone(statement: ast.stmt) -> ast.stmt:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if statement.name.startswith(_SETUP) or any(map(_is_fixture, statement.decorator_list)):
                statement.body = _apart(statement.body)
        case ast.ClassDef() | ast.For() | ast.If():
            # Not `while`: what ends it may be what raises.
            statement.body = _apart(statement.body)
            if not isinstance(statement, ast.ClassDef) and statement.orelse:
                statement.orelse = _apart(statement.orelse)
        case ast.With():
            if not any(swallows(item.context_expr) for item in statement.items):
                statement.body = _apart(statement.body)
    if isinstance(statement, _BARE) or is_future(statement) or is_text(statement):
        return statement
    handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, _instead(statement))
    return ast.Try([statement], [handler], [], [])


def _instead(statement: ast.stmt) -> list[ast.stmt]:
    """A point whose value cannot be made says so."""
    match statement:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id=module), attr=method), args=[ast.Constant() as name, *_]
            )
        ) if module == EMITTER and method in ("value", "truth"):
            missed = ast.Attribute(ast.Name(EMITTER, ast.Load()), "missed", ast.Load())
            return [ast.Expr(ast.Call(missed, [name], []))]
    return [ast.Pass()]


def _is_fixture(decorator: ast.expr) -> bool:
    return name_of(decorator.func if isinstance(decorator, ast.Call) else decorator) == "fixture"
