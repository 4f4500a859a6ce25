"""Runs a script where a folder is a file system of its own: small, or read-only. Needs root; nothing stays mounted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PRELUDE = """
import ctypes, json, os, re, subprocess, sys, threading, time
from pathlib import Path
place, arguments = Path(sys.argv[1]), sys.argv[3:]
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, REC, PRIVATE, REMOUNT, RDONLY = 0x20000, 0x4000, 1 << 18, 32, 1
def mounted(flags, options):
    if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", flags, options.encode() or None):
        sys.exit(77)
if libc.unshare(NEWNS) or libc.mount(b"none", b"/", None, REC | PRIVATE, None):
    sys.exit(77)
mounted(0, sys.argv[2])
def read_only():
    mounted(REMOUNT | RDONLY, "")
def ropewalk(*words):
    line = [sys.executable, "-m", "ropewalk", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240)
    assert "Traceback" not in done.stderr, done.stderr
    return done
"""


def run_on_own_disk(place: Path, script: str, *arguments: str | Path, options: str = "", **env: str) -> str:
    """What the script printed. It finds `place`, a file system of its own with these options of tmpfs, `arguments`,
    `read_only()`, which makes it so, and `ropewalk(*words)`.

    Args:
        place: made where it is missing.
        script: Python.
        arguments: strings to the script.
        options: `size=64m`.
        env: instead of all that begins with ROPEWALK_ or XDG_.
    """
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROPEWALK_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + script, str(place), options, *map(str, arguments)],
        env={**kept, "NO_COLOR": "1", **env}, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("this machine forbids mounting a tmpfs")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
