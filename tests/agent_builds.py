"""Builds of the guest agent for tests: with gcc's checks of addresses and undefined behaviour in them."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SOURCES = PROJECT / "agent"


@cache
def built(name: str) -> Path:
    """`agent-sanitized` or `fuzz`, made where its sources changed; skips where there is no gcc."""
    if shutil.which("gcc") is None or shutil.which("make") is None:
        pytest.skip("no gcc and make to build the agent with its checks")
    folder = SOURCES / "build"
    folder.mkdir(exist_ok=True)
    with (folder / "checked.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes ask at once, and both are made of the same parts
        command = ["make", "--quiet", "-C", str(SOURCES), f"build/{name}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return folder / name
