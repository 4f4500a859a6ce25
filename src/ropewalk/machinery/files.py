"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ropewalk.core.errors import UnavailableError


def replace_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Writes a file beside its place and renames it into it, so that nobody ever sees a part of it.

    Args:
        durable: whether content and name are on disk when this returns (fsync(2)), or only when the kernel sees fit.

    Raises:
        UnavailableError: it cannot be written. What was there before still is, and nothing is left beside it.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
        if durable:
            _sync_folder(path.parent)
    except BaseException as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UnavailableError(f"{path} cannot be written: {error.strerror or error}.") from error
        raise


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
