"""Files that appear whole or not at all, and locks that die with their holder."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ropewalk.core.errors import CallerError, UnavailableError

NEXT_STEP = "free some space, or choose another place (ROPEWALK_STATE for the state directory)."


def replace_whole(
    path: Path, data: bytes, *, durable: bool = True, mode: int = 0o600, parents: bool = False
) -> None:  # fmt: skip
    """Puts `data` at `path`. See `replacing`, which this is for what fits into memory."""
    with replacing(path, durable=durable, mode=mode, parents=parents) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(
    path: Path, *, durable: bool = True, mode: int = 0o600, parents: bool = False
) -> Iterator[BinaryIO]:  # fmt: skip
    """A file to write to, that takes its place when the block ends, so that nobody ever sees a part of it.

    It is written beside its place and renamed into it. A link at `path` is replaced, not followed.

    Args:
        durable: whether content and name are on disk then (fsync(2)), or only when the kernel sees fit.
        mode: less what the umask takes away.
        parents: whether missing folders are made, for this user alone.

    Raises:
        UnavailableError: it cannot be written. What was there before still is, and nothing is left beside it.
    """
    name = os.fsdecode(os.fsencode(path.name)[:200])  # its own may be as long as names get
    temporary = path.with_name(f".{name}.{secrets.token_hex(8)}")
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        if error.errno is None:
            raise  # a time limit of the block's, which says nothing about the file
        raise UnavailableError(f"{path} cannot be written: {error.strerror}.", next_step=NEXT_STEP) from error


def read_all(paths: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Files of a listing with their content. One that was removed since it was listed is left out."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            yield path, path.read_bytes()


def write_out(path: Path, data: bytes) -> None:
    """Writes a file where a person asked for it: through links, and readable for whoever the umask lets.

    Raises:
        CallerError: there is something else than a file.
        UnavailableError: as `replacing`.
    """
    target = _file_at(path)
    replace_whole(target, data, mode=0o666)


def _file_at(path: Path) -> Path:
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise CallerError(f"{path} is no file.", next_step="name a file, or a new name.")
    return target


def check_out(path: Path) -> None:
    """Returns if `write_out` can write there, as far as that can be known before there is anything to write. Folders
    that are missing are made.

    Raises:
        CallerError: there is something else than a file.
        UnavailableError: it cannot be written.
    """
    target = _file_at(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix="."):
            pass
    except OSError as error:
        raise UnavailableError(
            f"{path} cannot be written: {error.strerror or error}.", next_step="name another file."
        ) from error


def sync_folder(path: Path) -> None:
    """Makes names that were added to or removed from a folder survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(path: Path) -> None:
    """Makes everything on the file system of a folder survive power loss (syncfs(2)): for trees of many files, of which
    each would have to be opened otherwise. Some 10 ms, or as long as others have more to write.

    Raises:
        OSError: the disk does not take it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, *, parents: bool = False, held: UnavailableError | None = None) -> Iterator[None]:
    """Holds an exclusive lock on a file, which is made if absent, against other processes and other openings.

    The kernel drops it when its holder dies (flock(2)).

    Args:
        parents: whether missing folders are made, for this user alone.
        held: what to raise at once where somebody else holds it; None waits.

    Raises:
        UnavailableError: the lock file cannot be made.
    """
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be locked: {error.strerror}.", next_step=NEXT_STEP) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if held else 0))
        except BlockingIOError:
            if held is None:
                raise
            raise held from None
        yield
    finally:
        os.close(descriptor)
