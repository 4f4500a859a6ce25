"""How this program was called, for commands that people copy from what it prints."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "ropewalk"


def program() -> str:
    """What to type to call this very program again: `ropewalk` where the shell finds it by that name, else its path,
    as short as it can be said from here."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py" and called.parent.name == NAME:
        return f"{shlex.quote(_short(Path(sys.executable)))} -m {NAME}"
    if called.name != NAME or not called.is_file():
        return NAME
    found = shutil.which(NAME)
    if found and os.path.realpath(found) == os.path.realpath(called):
        return NAME
    return shlex.quote(_short(called))


def _short(path: Path) -> str:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  (links stay: a virtual environment's python is one)
    try:
        below = absolute.relative_to(Path.cwd())
    except (OSError, ValueError):
        return str(absolute)
    return str(below) if "/" in str(below) else f"./{below}"
