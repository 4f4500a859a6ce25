"""The exit code of `sandbox exec`: the command's own, or what shells and timeout(1) say for how it ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.cli.sandbox import result_code


@pytest.mark.parametrize(
    ("exit_code", "signal", "termination", "expected"),
    [
        (0, None, "finished", 0),
        (3, None, "finished", 3),
        (None, 9, "finished", 137),
        (None, 9, "timeout", 124),
        (None, 9, "out_of_memory", 137),
        (137, None, "out_of_memory", 137),  # a shell whose child was killed
        (None, None, "out_of_memory", 137),
    ],
)
def test_a_result_becomes_an_exit_code(
    exit_code: int | None, signal: int | None, termination: str, expected: int
) -> None:
    result: Any = SimpleNamespace(exit_code=exit_code, signal=signal, termination=termination)
    assert result_code(result) == expected
