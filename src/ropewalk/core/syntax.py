"""Parsing Python sources from several threads.

Before Python 3.11.8 and 3.12.2 the depth of a syntax tree under construction is counted once per interpreter, not per
thread: two threads that parse at the same time can end in "SystemError: AST constructor recursion depth mismatch"
(https://github.com/python/cpython/issues/106905). One lock for the whole process keeps them apart. It costs little,
since parsing holds the interpreter's own lock anyway.
"""

from __future__ import annotations

import ast
import threading

_LOCK = threading.Lock()


def parse_module(source: str | bytes) -> ast.Module:
    """`ast.parse` for a module, safe in threads.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
    """
    with _LOCK:
        return ast.parse(source)


def parse_expression(source: str) -> ast.Expression:
    """`ast.parse` in mode `eval`, safe in threads.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
    """
    with _LOCK:
        return ast.parse(source, mode="eval")
