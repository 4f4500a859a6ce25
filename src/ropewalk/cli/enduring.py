"""Output whose reader may go away: `| head`, a `tee` or an ssh session that dies. That is no reason to end the work."""

from __future__ import annotations

import contextlib
import os
from typing import Any, TextIO


class Enduring:
    """A text stream that falls silent for good once nobody reads it any more.

    Args:
        stream: where text goes.
        whatever: whether it falls silent for every other reason too (a full disk). Not for results, whose loss has to
            be told.
    """

    def __init__(self, stream: TextIO, *, whatever: bool = False) -> None:
        self._stream = stream
        self._tolerated: type[OSError] = OSError if whatever else BrokenPipeError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes what can be written."""
        try:
            return self._stream.write(text)
        except self._tolerated:
            return self._silence(len(text))

    def flush(self) -> None:
        """Hands on what was written."""
        try:
            self._stream.flush()
        except self._tolerated:
            self._silence(0)

    def _silence(self, taken: int) -> int:
        """Also for whoever writes past this object, and for what the interpreter flushes at its end."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        return taken
