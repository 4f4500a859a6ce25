"""Runs `ropewalk` as a user does, with a state and a HOME that are nobody else's."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from ropewalk.cli import main


class Outcome(NamedTuple):
    """What came back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def ropewalk(*words: str | Path, state: Path, **env: str) -> Outcome:
    """One command line, in this process: what it does is the same, and no interpreter has to start."""
    out, err = _stream(), _stream()
    with (
        mock.patch.dict(os.environ, _environment(state, env), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main([str(word) for word in words])
    return _checked(code, _text(out), _text(err))


def ropewalk_process(*words: str | Path, state: Path, stdin: str = "", timeout_s: float = 240.0, **env: str) -> Outcome:
    """One command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", *map(str, words)],
        env=_environment(state, env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return _checked(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def started(*words: str | Path, state: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A command line that runs meanwhile; killed when the block ends, if it is not over by then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ropewalk", *map(str, words)],
        env=_environment(state, env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _environment(state: Path, more: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROPEWALK_")}
    return {**kept, "ROPEWALK_STATE": str(state), "HOME": str(state.parent), "NO_COLOR": "1", **more}


def _checked(code: int, out: str, err: str) -> Outcome:
    assert "Traceback" not in err, err
    return Outcome(code, out, err)


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()
