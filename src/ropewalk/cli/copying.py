"""Files and whole folders into a sandbox and out of it."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ropewalk.core.errors import CallerError
from ropewalk.core.paths import parts_below
from ropewalk.security.data_classes import Use, check_allowed

if TYPE_CHECKING:
    from ropewalk.sandbox.sandbox import Sandbox

MODE_MAX = 0o777
"""What is taken over of a mode: nobody gets a file that runs as somebody else."""


async def copy_in(sandbox: Sandbox, source: Path, target: str) -> int:
    """A file or a folder with all in it; links are not followed and not copied. Returns how many files.

    Raises:
        CallerError: there is no such file or folder here.
    """
    name = target + source.name if target.endswith("/") else target
    if source.is_file():
        await sandbox.upload(source, name, mode=source.stat().st_mode & MODE_MAX)
        return 1
    if not source.is_dir():
        raise CallerError(f"There is no file or folder {source}.")
    folders, files = [name], []
    for folder, names, found in os.walk(source):
        inside = posixpath.join(name, *Path(folder).relative_to(source).parts)
        folders += [posixpath.join(inside, each) for each in sorted(names) if not (Path(folder) / each).is_symlink()]
        paths = [Path(folder) / each for each in sorted(found)]
        files += [
            (path, posixpath.join(inside, path.name)) for path in paths if path.is_file() and not path.is_symlink()
        ]
    for first in range(0, len(folders), 200):
        made = await sandbox.exec(["mkdir", "-p", "--", *folders[first : first + 200]])
        if not made.ok:
            raise CallerError(f"The folders cannot be made in {sandbox.id}: {made.stderr.strip()}")
    for path, inside in files:
        await sandbox.upload(path, inside, mode=path.stat().st_mode & MODE_MAX)
    return len(files)


async def copy_out(sandbox: Sandbox, source: str, target: Path) -> int:
    """A file or a folder with all in it; links are left out. Returns how many files.

    Raises:
        CallerError: there is nothing of that name inside, or a name inside would lead out of the target.
        DeniedError: as `Sandbox.download`; not even a folder is made then.
    """
    check_allowed(sandbox.record.spec.data_class, Use.EXPORT, "file")
    here = target / (PurePosixPath(source).name or "root") if target.is_dir() else target
    if (await sandbox.stat(source)).kind != "directory":
        await sandbox.download(source, here)
        return 1
    count = 0
    here.mkdir(parents=True, exist_ok=True)
    for entry in await sandbox.list(source, recursive=True):
        place = here / _relative(entry.path, source)
        if entry.kind == "directory":
            place.mkdir(parents=True, exist_ok=True)
        elif entry.kind == "file":
            place.parent.mkdir(parents=True, exist_ok=True)
            await sandbox.download(entry.path, place)
            place.chmod(entry.mode & MODE_MAX | 0o600)
            count += 1
    return count


def _relative(path: str, folder: str) -> Path:
    """The path below the folder. What names it is beside untrusted code, so it is believed in nothing."""
    parts = PurePosixPath(path).parts
    base = PurePosixPath(folder).parts
    rest = parts_below("/".join(parts[len(base) :] if parts[: len(base)] == base else parts))
    if not rest:
        raise CallerError(f"The sandbox names a file {path[:200]!r} that is not in {folder}.")
    return Path(*rest)
