"""What can be ingested: a release in a package index, a directory, an archive."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import Record
from ropewalk.lake.archives import canonical_tar

TOP: Final = "source"
"""The directory that holds everything in a packed directory, as `name-version` does in a source distribution."""
LEFT_OUT: Final = frozenset({
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".tox", ".nox", "node_modules",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".DS_Store",
})  # fmt: skip
"""Names that are never packed: version control, caches, installed environments. Nor are `*.pyc`, nor what by its name
holds secrets (`is_left_out`): what the raw zone took in stays there."""
_SECRETS: Final = re.compile(r"\.env(\..*)?|\.netrc|\.pypirc|\.pgpass|id_(rsa|dsa|ecdsa|ed25519)|.*\.(key|p12|pfx|jks)")
_NO_SECRETS: Final = frozenset({".env.example", ".env.sample", ".env.template", ".env.dist"})
_ARCHIVES: Final = (".tar.gz", ".tgz", ".zip", ".whl", ".tar")


class PypiSource(Record):
    """`pypi:NAME` or `pypi:NAME==VERSION`."""

    distribution: str
    version: str | None


class PathSource(Record):
    """A directory or an archive of this machine."""

    path: str
    directory: bool


class Packed(Record):
    """A directory as one canonical tar."""

    data: bytes
    skipped: tuple[str, ...]
    """What was left out (`LEFT_OUT`), relative paths."""


def parse_source(source: str | Path) -> PypiSource | PathSource:
    """
    Raises:
        CallerError: not of a known form, or there is no such directory or archive.
    """
    if isinstance(source, str) and source.startswith("pypi:"):
        name, separator, version = source.removeprefix("pypi:").partition("==")
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name) or (separator and not version):
            raise CallerError(f"{source[:120]!r} is not of the form pypi:NAME or pypi:NAME==VERSION.")
        return PypiSource(distribution=canonicalize_name(name), version=version or None)
    path = Path(source)
    if path.is_dir():
        return PathSource(path=str(path.resolve()), directory=True)
    if path.is_file() and path.name.endswith(_ARCHIVES):
        return PathSource(path=str(path.resolve()), directory=False)
    problem = "is neither a directory nor an archive" if path.exists() else "does not exist"
    of_index = not path.exists() and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(==\S+)?", str(source))
    raise CallerError(
        f"{str(source)[:200]!r} is no source: it {problem}.",
        next_step=f"{f'write pypi:{source} for the package index; else ' if of_index else ''}"
        f"give pypi:NAME==VERSION, a directory, or an archive ({', '.join(_ARCHIVES)}).",
    )


def read_archive(path: Path, *, bytes_max: int = limits.DOWNLOAD_BYTES_MAX) -> bytes:
    """
    Raises:
        CallerError: larger than `bytes_max`, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > bytes_max:
        raise CallerError(f"{path} is larger than the {bytes_max} bytes allowed.")
    return data


def pack_directory(root: Path, *, bytes_max: int = limits.ARCHIVE_BYTES_MAX) -> Packed:
    """All files below a directory as one tar below `TOP`; equal files give equal bytes on every machine.

    Links to files inside the directory become copies.

    Raises:
        CallerError: a link that leads out or to no file, a device, fifo or socket; a name that archives cannot hold;
            too many files or bytes; nothing to pack.
        UnavailableError: a file cannot be read.
    """
    root = root.resolve()
    files: dict[str, bytes] = {}
    executable: set[str] = set()
    skipped: list[str] = []
    left = bytes_max
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders.sort()
        here = Path(folder)
        for name in [*folders, *names]:
            path = here / name
            relative = path.relative_to(root).as_posix()
            if is_left_out(name):
                skipped.append(relative)
            elif path.is_symlink() or name in names:
                data, mode = _read_file(path, root, left)
                left -= len(data)
                files[f"{TOP}/{relative}"] = data
                if mode & stat.S_IXUSR:
                    executable.add(f"{TOP}/{relative}")
        folders[:] = [name for name in folders if not is_left_out(name) and not (here / name).is_symlink()]
    if not files:
        raise CallerError(f"{root} holds no file to ingest.")
    return Packed(data=canonical_tar(files, executable=executable), skipped=tuple(sorted(skipped)))


def is_left_out(name: str) -> bool:
    """Whether a file or folder of this name is never packed."""
    return (
        name in LEFT_OUT or name.endswith(".pyc") or (name not in _NO_SECRETS and _SECRETS.fullmatch(name) is not None)
    )


def _read_file(path: Path, root: Path, left: int) -> tuple[bytes, int]:
    target = path.resolve()
    if not target.is_relative_to(root):
        raise CallerError(f"{path} is a link out of {root}.", next_step="replace it by a copy, or remove it.")
    if target.is_dir():
        raise CallerError(f"{path} is a link to a folder.", next_step="replace it by a copy, or remove it.")
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise CallerError(f"{path} is a link to nothing.", next_step="remove it.") from None
    except OSError as error:
        # A socket cannot be opened at all (ENXIO).
        raise CallerError(f"{path} cannot be read: {error.strerror}.") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CallerError(f"{path} is neither a file nor a directory.", next_step="remove it.")
        data = file.read(left + 1)
    if len(data) > left:
        raise CallerError(f"{root} is larger than the bytes allowed for one source; {path} passes the limit.")
    return data, status.st_mode


def _refuse(error: OSError) -> None:
    raise UnavailableError(f"{error.filename} cannot be read: {error.strerror}.") from error
