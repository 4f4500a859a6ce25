"""Where the agent's folder is on this machine. Host side."""

from __future__ import annotations

import compileall
import sys
from pathlib import Path


def agent_directory() -> Path:
    """The folder to show to sandboxes, read-only; start `agent.py` in it.

    Its bytecode is compiled for this Python if need be, which saves every sandbox with the same minor version some
    15 ms. Where the folder cannot be written, sandboxes start slower and nothing else changes.
    """
    folder = Path(__file__).parent
    tag = sys.implementation.cache_tag
    if any(
        not (compiled := folder / "__pycache__" / f"{source.stem}.{tag}.pyc").exists()
        or compiled.stat().st_mtime < source.stat().st_mtime
        for source in folder.glob("*.py")
    ):
        compileall.compile_dir(folder, quiet=2, maxlevels=0)
    return folder
