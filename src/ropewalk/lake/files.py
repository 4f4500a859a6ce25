"""Small state files that change: replaced whole, durably, one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ropewalk.core.errors import UnavailableError


def read_text(path: Path) -> str | None:
    """The content, None where there is no such file.

    Raises:
        UnavailableError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unavailable(path, error) from error


def replace_text(path: Path, text: str) -> None:
    """Puts the text there: after a crash at any instant the file holds the old or the new text, whole.

    Raises:
        UnavailableError: full, read-only or not ours; the old text stands.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unavailable(path, error) from error


@contextlib.contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Holds the folder's lock against other threads and processes; a dead holder holds nothing.

    Raises:
        UnavailableError: the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unavailable(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unavailable(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"{path} cannot be used: {error.strerror or error}.",
        next_step="free some space or choose another state directory (ROPEWALK_STATE).",
    )
