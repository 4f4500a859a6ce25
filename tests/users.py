"""Runs Python as another user of this machine, so that what must work without root is tested by root, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ropewalk
from ropewalk.sandbox.drivers.process import kernel

UID = 12_345
"""A user that no system knows."""
_PACKAGES = Path(ropewalk.__file__).parents[1]


def run_as(code: str, *arguments: str, uid: int = UID, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Runs Python code with this interpreter and its packages as another user, in a mount namespace of its own.

    There the interpreter is visible even where it lies in a home that only its owner may enter. Needs root.

    Args:
        arguments: become `sys.argv[1:]`.
    """
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False, preexec_fn=lambda: _become(uid),
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(_PACKAGES)},
    )  # fmt: skip


def _become(uid: int) -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    for folder in {Path(sys.base_prefix), Path(sys.prefix)}:
        _open_up(folder)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _open_up(folder: Path) -> None:
    """Replaces the uppermost folder on the way that others may not enter by one that holds nothing but the way."""
    for parent in reversed(folder.parents):
        if not parent.stat().st_mode & 0o001:
            tree = kernel.clone_tree(str(folder))
            kernel.mount("tmpfs", str(parent), "tmpfs", 0, "mode=755")
            folder.mkdir(parents=True)
            kernel.attach(tree, str(folder))
            os.close(tree)
            return
