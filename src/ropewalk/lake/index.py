"""Which package index this machine uses: the one that pip uses, so that a mirror needs no second setting."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from ropewalk.core.errors import UnavailableError
from ropewalk.machinery.redaction import hide

VARIABLES: Final = ("ROPEWALK_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
"""Looked at in this order; a variable that is set but empty is taken as not set, as pip does."""

_BUILT_IN = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
_TIMEOUT_S: Final = 20.0


def index_url(explicit: str | None = None, *, environ: Mapping[str, str] | None = None) -> str:
    """The simple index's URL, without a slash at its end. Logs and errors hide a password in it.

    The first of: the argument, `VARIABLES`, pip's configuration (`global.index-url`), pip's built-in default.

    Raises:
        UnavailableError: none of them is set, and no pip can be asked.
    """
    variables = os.environ if environ is None else environ
    chosen = explicit or next((variables[name] for name in VARIABLES if variables.get(name)), None)
    url = (chosen or _ask_pip()).strip().rstrip("/")
    with suppress(ValueError):  # no URL: whoever fetches says so
        hide(unquote(urlsplit(url).password or ""))
    return url


@functools.cache
def _ask_pip() -> str:
    for python in _interpreters():
        configured = _run(python, "-m", "pip", "--disable-pip-version-check", "config", "get", "global.index-url")
        if answer := configured or _run(python, "-c", _BUILT_IN):
            return answer
    raise UnavailableError(
        "No package index is configured, and no pip tells its default.",
        next_step=f"set {VARIABLES[0]} to a simple index's URL, or install pip (Debian: apt install python3-pip).",
    )


def _interpreters() -> list[str]:
    """This one, the one its virtual environment was made from, and the one on PATH: any that may have pip."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}"
    found = (sys.executable, getattr(sys, "_base_executable", None), str(base), shutil.which("python3"))
    return list(dict.fromkeys(path for path in found if path and Path(path).exists()))


def _run(python: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [python, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[-1].strip() if done.returncode == 0 and lines else ""
