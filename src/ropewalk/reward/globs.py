"""Globs over paths inside a task: `*` and `?` stay within a folder, `**/` spans any number of folders."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=256)
def _pattern(glob: str) -> re.Pattern[str]:
    parts = []
    at = 0
    while at < len(glob):
        if glob.startswith("**/", at):
            parts.append("(?:[^/]+/)*")
            at += 3
        elif glob.startswith("**", at):
            parts.append(".*")
            at += 2
        elif glob[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif glob[at] == "?":
            parts.append("[^/]")
            at += 1
        else:
            parts.append(re.escape(glob[at]))
            at += 1
    return re.compile("".join(parts), re.DOTALL)


def matches_any(path: str, globs: tuple[str, ...]) -> bool:
    """Whether a relative path with forward slashes matches one of the globs."""
    return any(_pattern(glob).fullmatch(path) for glob in globs)
