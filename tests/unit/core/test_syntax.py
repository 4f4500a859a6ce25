from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest

from ropewalk.core.syntax import parse_expression, parse_module

SOURCE = "def f(a):\n" + "".join(f"    a = [a, ({number}, {{'x': [a]}})]\n" for number in range(400))


def test_many_threads_parse_at_once() -> None:
    wanted = ast.dump(ast.parse(SOURCE))
    with ThreadPoolExecutor(4) as pool:
        assert {ast.dump(tree) for tree in pool.map(parse_module, [SOURCE] * 16)} == {wanted}


def test_errors_are_those_of_ast() -> None:
    with pytest.raises(SyntaxError):
        parse_module("def f(:")
    with pytest.raises(SyntaxError):
        parse_expression("a = 1")
    assert isinstance(parse_expression("1 + 1").body, ast.BinOp)
