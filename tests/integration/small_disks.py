"""Runs a script where a folder is a file system of its own: small, or read-only. Needs root; nothing stays mounted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PRELUDE = """
import ctypes, importlib, json, os, pkgutil, re, signal, subprocess, sys, traceback
from pathlib import Path
from types import SimpleNamespace
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
def loaded():
    import ropewalk.app.ropewalk, ropewalk.cli
    for each in pkgutil.iter_modules(ropewalk.cli.__path__):
        if each.name != "__main__":
            importlib.import_module("ropewalk.cli." + each.name)
    return ropewalk.cli.main
def ropewalk(*words):
    main, streams = loaded(), [os.memfd_create("out"), os.memfd_create("err")]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(240)
            for number, stream in enumerate([os.open(os.devnull, os.O_RDONLY), *streams]):
                os.dup2(stream, number)
            sys.argv[:] = ["ropewalk", *map(str, words)]
            code = main()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    out, err = map(said, streams)
    assert "Traceback" not in err, err
    return SimpleNamespace(returncode=code, stdout=out, stderr=err)
def said(stream):
    with open(stream, "rb") as whole:
        whole.seek(0)
        return whole.read().decode()
"""


def run_on_own_disk(place: Path, script: str, *arguments: str | Path, options: str = "", **env: str) -> str:
    """What the script printed. It finds `place`, a file system of its own with these options of tmpfs, `arguments`,
    `read_only()`, which makes it so, and `ropewalk(*words)`.

    Args:
        place: made where it is missing.
        script: Python. Its commands are forks of a process that has loaded Ropewalk (where the script is when it gives
            the first): most of what one costs is to load it.
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
