"""Whether a tool's output, seen a second time, is the recorded one, but for what no two runs have in common."""

from __future__ import annotations

import difflib
import re
from typing import Final

DIFF_LINES_MAX: Final = 40
"""Of one output; what is cut is counted."""

_NEVER_TWICE: Final = (
    (re.compile(r"(?<![\d.])\d+\.\d+ ?(?:s|ms|sec|seconds)\b(?: \(\d+:\d\d:\d\d\))?"), "<time>"),
    (re.compile(r"\b0x[0-9a-fA-F]{6,16}\b"), "<address>"),
    (re.compile(r"={3,}"), "==="),  # pytest's rules are as long as the time in them leaves room
)


def same_output(recorded: str, now: str) -> bool:
    """Whether two outputs are equal, times taken (`in 0.06s`) and addresses in memory aside."""
    return recorded == now or _steady(recorded) == _steady(now)


def output_diff(recorded: str, now: str) -> tuple[str, ...]:
    """The two outputs as a unified diff, lines that differ in times and addresses alone left as recorded."""
    known = {_steady(line): line for line in recorded.splitlines()}
    lines = list(
        difflib.unified_diff(
            recorded.splitlines(),
            [known.get(_steady(line), line) for line in now.splitlines()],
            "recorded",
            "now",
            lineterm="",
            n=1,
        )
    )
    if len(lines) > DIFF_LINES_MAX:
        lines[DIFF_LINES_MAX:] = [f"… {len(lines) - DIFF_LINES_MAX} lines more"]
    return tuple(lines)


def _steady(text: str) -> str:
    for pattern, instead in _NEVER_TWICE:
        text = pattern.sub(instead, text)
    return text
