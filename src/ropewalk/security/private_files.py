"""Files that only their owner may touch."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ropewalk.core.errors import CallerError, DeniedError

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
