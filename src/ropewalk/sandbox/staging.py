"""Private folders in which something is made before it takes its place, and how they go when their maker died."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.core.errors import UnavailableError
from ropewalk.machinery.files import NEXT_STEP
from ropewalk.sandbox import trees

PREFIX = ".staging-"


@contextmanager
def staging_folder(root: Path, what: str) -> Iterator[Path]:
    """A private folder below `root`, gone when the block ends; its lock tells `sweep` that somebody is at work in it.

    Args:
        what: what is made there, for messages: "layer".

    Raises:
        UnavailableError: no room, or the place is read-only.
    """
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"No {what} can be stored in {root}: {error.strerror}.", next_step=NEXT_STEP) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    except OSError as error:
        raise UnavailableError(
            f"The {what} could not be stored in {root}: {error.strerror or error}.", next_step=NEXT_STEP
        ) from error
    finally:
        trees.remove(folder)
        os.close(lock)


def sweep(root: Path) -> int:
    """Removes what makers left behind that were killed; returns how many folders."""
    count = 0
    for folder in list(root.glob(f"{PREFIX}*")):
        if _abandoned(folder):
            trees.remove(folder)
            count += 1
    return count


def _abandoned(folder: Path) -> bool:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between its making and its locking there is an instant.
        return time.time() - os.fstat(fd).st_mtime > 1
    except OSError:
        return False
    finally:
        os.close(fd)
