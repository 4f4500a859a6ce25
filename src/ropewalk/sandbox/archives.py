"""Unpacks a tar archive of a root file system, which anybody may have made.

Members are written relative to an open folder, never through a link that the archive made; sizes, count and depth
are bounded while reading, so that a small archive cannot fill the disk.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import math
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.paths import parts_below
from ropewalk.machinery.archives import open_tar
from ropewalk.sandbox import privilege
from ropewalk.sandbox.trees import Owner, as_is, as_root

_CHUNK = 1024 * 1024
_HEADER_BYTES = 4096
_PACKERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open,
}  # fmt: skip
"""By the first bytes of a packed file."""
_TIME_S_MAX = 2**33
"""Of a member's time, which extended headers may set to anything: more than a file system keeps."""
_DAMAGED = (tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
_UNFIT = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ, errno.EMLINK)
"""Errors that a member's own name or target brings about."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(path: Path, destination: Path) -> Owner:
    """Unpacks into a new folder and says how its owners are to be read.

    Raises:
        CallerError: no tar archive, damaged, a member that leaves the folder or goes through a link, or past the
            limits `TREE_*`.
    """
    destination.mkdir(mode=0o755)
    root = os.open(destination, _FOLDER)
    try:
        with _plain(path) as file, open_tar(file) as archive:
            total = 0
            for count, member in enumerate(archive):
                total += member.size if member.isreg() else 0
                if count >= limits.TREE_MEMBERS_MAX or total > limits.TREE_BYTES_MAX:
                    raise CallerError(f"{path.name} holds more than {limits.TREE_MEMBERS_MAX} members "
                                      f"or {limits.TREE_BYTES_MAX} bytes.")  # fmt: skip
                _member(archive, member, root)
    except _DAMAGED as error:
        raise CallerError(f"{path.name} is not a whole tar archive: {error}.") from error
    except (FileNotFoundError, IsADirectoryError) as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}.") from error
    except OSError as error:
        if error.errno not in _UNFIT:
            raise
        raise CallerError(f"{path.name} holds a member that cannot be written: {error.strerror}.") from error
    finally:
        os.close(root)
    return as_is if privilege.is_root() else as_root


@contextmanager
def _plain(path: Path) -> Iterator[IO[bytes]]:
    """The archive unpacked to a file without a name, whatever it was packed with.

    Before it is parsed: the parser takes extended headers of any size into memory, and a small packed file may hold
    one of gigabytes.
    """
    with path.open("rb") as raw:
        head = raw.read(8)
    opener = next((opener for magic, opener in _PACKERS.items() if head.startswith(magic)), None)
    if opener is None:
        with path.open("rb") as file:
            yield file
        return
    allowed = limits.TREE_BYTES_MAX + _HEADER_BYTES * limits.TREE_MEMBERS_MAX
    packed = path.stat().st_size
    with tempfile.TemporaryFile() as plain, opener(path) as source:
        total = 0
        while data := source.read(_CHUNK):
            total += len(data)
            if total > allowed or total > max(packed * limits.ARCHIVE_RATIO_MAX, limits.ARCHIVE_RATIO_FREE_BYTES):
                raise CallerError(f"{path.name} unpacks to more than {limits.TREE_BYTES_MAX} bytes "
                                  f"or {limits.ARCHIVE_RATIO_MAX} times its size.")  # fmt: skip
            plain.write(data)
        plain.seek(0)
        yield plain


def _parts(name: str, what: str) -> tuple[str, ...]:
    parts = parts_below(name.lstrip("/") if what == "link" else name)
    if parts is None or len(parts) > limits.TREE_DEPTH_MAX:
        raise CallerError(f"The archive has a {what} outside of it or too deep: {name[:200]!r}.")
    return parts


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int) -> None:
    parts = _parts(member.name, "member")
    if not parts:
        os.fchmod(root, member.mode & 0o1777)
        return
    folder = _descend(root, parts[:-1], member.name)
    name = parts[-1]
    try:
        if not (member.isdir() and _is_folder(folder, name)):
            _clear(folder, name)
        if member.isdir():
            if not _is_folder(folder, name):
                os.mkdir(name, 0o700, dir_fd=folder)
        elif member.isreg():
            _write(archive, member, folder, name)
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=folder)
        elif member.islnk():
            target = _parts(member.linkname, "link")
            source = _descend(root, target[:-1], member.linkname)
            try:
                os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(source)
            return
        else:
            return
        if privilege.is_root():
            uid, gid = (value if 0 <= value < 65536 else 65534 for value in (member.uid, member.gid))
            os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
        if not member.issym():
            # A folder stays open to its owner while members may still come.
            os.chmod(name, member.mode & 0o1777 | (0o700 if member.isdir() else 0), dir_fd=folder)
        time_s = min(max(member.mtime, 0), _TIME_S_MAX) if math.isfinite(member.mtime) else 0
        os.utime(name, ns=(0, int(time_s * 1e9)), dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError, IndexError) as error:
        raise CallerError(f"The archive's member {member.name[:200]!r} refers to what is not there.") from error
    finally:
        os.close(folder)


def _descend(root: int, parts: tuple[str, ...], name: str) -> int:
    """A descriptor of the folder, made on the way."""
    fd = os.dup(root)
    for part in parts:
        try:
            try:
                os.mkdir(part, 0o755, dir_fd=fd)
            except FileExistsError:
                pass
            inner = os.open(part, _FOLDER, dir_fd=fd)
        except OSError as error:
            raise CallerError(f"The archive's member {name[:200]!r} goes through a link or a file.") from error
        finally:
            os.close(fd)
        fd = inner
    return fd


def _is_folder(folder: int, name: str) -> bool:
    try:
        fd = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        return False
    os.close(fd)
    return True


def _clear(folder: int, name: str) -> None:
    """A later member replaces an earlier one."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError) as error:
        raise CallerError(f"The archive's member {name[:200]!r} would replace a folder.") from error


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str) -> None:
    source = archive.extractfile(member)
    if source is None:
        raise CallerError(f"The archive's member {member.name[:200]!r} has no content.")
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with source, os.fdopen(fd, "wb") as file:
        while data := source.read(_CHUNK):
            file.write(data)
