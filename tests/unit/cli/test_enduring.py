"""Whoever read a command's output may go away; the command ends as it would have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from ropewalk.cli.board import Board
from ropewalk.cli.enduring import Enduring
from ropewalk.cli.output import print_table, say


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8", buffering=1) as stream:
        yield stream


def test_progress_that_nobody_reads_ends_nothing(unread: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", unread)
    with Board() as board:
        board.begin("Run", total=2)
        board.advance("one")
        board.end("two")


def test_results_that_nobody_reads_end_nothing(unread: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", unread)
    say("one")
    print_table(("a",), [("b",)], empty="")
    say("two")


def test_results_that_are_lost_otherwise_are_told() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        with pytest.raises(OSError, match="No space left"):
            stream = Enduring(full)
            stream.write("x")
            stream.flush()
        Enduring(full, whatever=True).flush()


@pytest.mark.parametrize(("words", "code"), [("run ls", 0), ("run ls --json", 0), ("nosuch", 2), ("trace nosuch", 2)])
def test_the_exit_code_stays_what_it_is(tmp_path: Path, words: str, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    line = [sys.executable, "-m", "ropewalk", *words.split(), "--state", str(tmp_path / "state")]
    try:
        assert subprocess.run(line, stdout=writing, stderr=writing, check=False).returncode == code
    finally:
        os.close(writing)
