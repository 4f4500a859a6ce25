"""Parsing Python sources from several threads, and finding in their bytes what a syntax tree speaks of.

Before Python 3.11.8 and 3.12.2 the depth of a syntax tree under construction is counted once per interpreter, not per
thread: two threads that parse at the same time can end in "SystemError: AST constructor recursion depth mismatch"
(https://github.com/python/cpython/issues/106905). One lock for the whole process keeps them apart. It costs little,
since parsing holds the interpreter's own lock anyway.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import threading
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

_LOCK = threading.Lock()
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def parse_module(source: str | bytes) -> ast.Module:
    """`ast.parse` for a module, safe in threads.

    Raises:
        SyntaxError: also where the parser gives up for depth, or for a number of too many digits.
    """
    with _refusals():
        return ast.parse(source)


def parse_expression(source: str) -> ast.Expression:
    """`ast.parse` in mode `eval`, safe in threads.

    Raises:
        SyntaxError: as `parse_module`.
    """
    with _refusals():
        return ast.parse(source, mode="eval")


def compile_module(source: str | bytes, name: str) -> CodeType:
    """`compile` for a module, safe in threads, without this one's future statements.

    Raises:
        SyntaxError: as `parse_module`.
    """
    with _refusals():
        code: CodeType = compile(source, name, "exec", dont_inherit=True)
        return code


@contextmanager
def _refusals() -> Iterator[None]:
    """A module that nests too deeply ends the parser in whatever its depth hits first."""
    try:
        with _LOCK:
            yield
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "it nests too deeply") from error


def lines_of(text: str) -> list[str]:
    """Lines as Python counts them, with their ends: a form feed ends none, unlike in `str.splitlines`."""
    return _LINE.findall(text)


class Source:
    """A module's bytes, addressed by the nodes of its syntax tree. Use `Source.read`."""

    def __init__(self, data: bytes) -> None:
        self.bytes = data
        self._starts = [0]
        for line in data.splitlines(keepends=True):  # of bytes these are Python's
            self._starts.append(self._starts[-1] + len(line))

    @classmethod
    def read(cls, data: bytes) -> Source | None:
        """None where the bytes are not plain UTF-8: a syntax tree counts in bytes of UTF-8 after the byte order mark,
        whatever the file's own encoding (PEP 263) is, and its positions would be those of other bytes."""
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(lines).readline)
            data.decode("utf-8")
        except (SyntaxError, UnicodeDecodeError):
            return None
        return cls(data) if codecs.lookup(encoding).name == "utf-8" else None

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Byte offset of its first byte."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Byte offset behind its last one."""
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end."""
        return self.start(node), self.end(node)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """What stands there."""
        return self.bytes[self.start(node) : self.end(node)].decode()

    def line_start(self, node: ast.expr | ast.stmt) -> int:
        """Byte offset of the line in which it starts."""
        return self._starts[node.lineno - 1]

    def line(self, offset: int) -> int:
        """The line of a byte, from 1."""
        return bisect_right(self._starts, offset)
