"""Files that only their owner may touch, and files replaced so that a crash leaves the old or the new one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ropewalk.core.errors import CallerError, DeniedError, UnavailableError

PERMISSIONS_RULE = "private_files"


def check_private(path: Path, *, folder: bool = False) -> None:
    """Makes sure that nobody but this user can read or replace what lies at `path`.

    Raises:
        CallerError: nothing is there, or something of another kind (a link, say).
        DeniedError: its mode lets others in, or it is another user's (rule `private_files`).
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise CallerError(f"There is no {path}.") from None
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(found.st_mode):
        raise CallerError(f"{path} is not a {'folder' if folder else 'plain file'}.")
    if found.st_uid != os.geteuid():
        raise DeniedError(
            f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}.",
            rule=PERMISSIONS_RULE,
            next_step=f"run as its owner, or `chown {os.geteuid()} {path}`.",
        )
    if found.st_mode & 0o077:
        raise DeniedError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: others may use it.",
            rule=PERMISSIONS_RULE,
            next_step=f"`chmod {0o700 if folder else 0o600:o} {path}`; replace its content if others could log in.",
        )


def read_private(path: Path, *, bytes_max: int) -> bytes:
    """The content of a file that is this user's alone.

    Raises:
        CallerError: absent, a link, or larger than `bytes_max`.
        DeniedError: others may read or replace it.
    """
    check_private(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise CallerError(f"{path} is larger than {bytes_max} bytes.")
    return data


def replace_durably(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Puts `data` at `path`; survives power loss once it returned, and is never seen half written.

    Raises:
        UnavailableError: the disk is full or read-only. What was there before is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror or error}.") from error


def sync_folder(path: Path) -> None:
    """Makes names that were added to or removed from a folder survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file, which is made if absent, against other processes and other openings.

    The kernel drops it when its holder dies.

    Raises:
        UnavailableError: the lock file cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be locked: {error.strerror or error}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
