from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.syntax import Source, compile_module, lines_of, parse_expression, parse_module

SOURCE = "def f(a):\n" + "".join(f"    a = [a, ({number}, {{'x': [a]}})]\n" for number in range(400))


def test_many_threads_parse_at_once() -> None:
    wanted = ast.dump(ast.parse(SOURCE))
    with ThreadPoolExecutor(4) as pool:
        assert {ast.dump(tree) for tree in pool.map(parse_module, [SOURCE] * 16)} == {wanted}


def test_errors_are_syntax_errors() -> None:
    with pytest.raises(SyntaxError):
        parse_module("def f(:")
    with pytest.raises(SyntaxError):
        parse_expression("a = 1")
    assert isinstance(parse_expression("1 + 1").body, ast.BinOp)


PIECES = st.sampled_from([
    "x = a + b\n", "\f\ny = 'é𝄞' + a\n", "# \x1c \u2028 é\n", "def f(a, b=1):\r\n    return a < b\r\n",
    "z = [a,\r b]\r",
    'd = """\n\fé\r\n""" + a\n',
])  # fmt: skip
ENCODINGS = ["", "utf-8", "UTF8", "latin-1", "cp1252", "ascii", "utf-7", "rot13", "no-such"]


@given(
    st.lists(PIECES, min_size=1, max_size=6), st.sampled_from(ENCODINGS), st.sampled_from(["", "\n", "\r"]),
    st.booleans(),
)  # fmt: skip
def test_nodes_are_found_where_they_stand_or_not_at_all(pieces: list[str], cookie: str, above: str, mark: bool) -> None:
    text = (f"{above}# coding: {cookie}\n" if cookie else "") + "".join(pieces)
    data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    source = Source.read(data)
    if source is None:
        assert mark or (cookie and cookie.lower() not in ("utf-8", "utf8"))
        return
    assert not mark
    for node in ast.walk(parse_module(data)):
        if isinstance(node, ast.expr | ast.stmt):
            assert source.text(node) == _as_written(text, node)
            assert source.line(source.start(node)) == node.lineno
            assert source.line_start(node) <= source.start(node) <= source.end(node)


def _as_written(text: str, node: ast.expr | ast.stmt) -> str:
    lines = lines_of(text)[node.lineno - 1 : node.end_lineno]
    lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
    lines[0] = lines[0].encode()[node.col_offset :].decode()
    return "".join(lines)


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbfx = 1\n", "# coding: latin-1\nx = 'é'\n".encode("latin-1"), b"x = '\xe9'\n"]
)
def test_what_is_not_plain_utf8_has_no_places(data: bytes) -> None:
    assert Source.read(data) is None


@pytest.mark.parametrize(
    "text",
    ["-" * 50_000 + "1", "(" * 50_000 + ")" * 50_000, "not " * 20_000 + "1", "9" * 5_000, "a\0b", "1 +"],
    ids=["signs", "brackets", "words", "digits", "zero byte", "half"],
)
def test_what_cannot_be_parsed_is_a_syntax_error_whatever_the_parser_makes_of_it(text: str) -> None:
    for parse in (parse_module, parse_expression, lambda text: compile_module(text, "<test>")):
        with pytest.raises(SyntaxError):
            parse(text)
