"""Copies a directory tree and describes it, in one pass: what layers are made of.

A tree may be what untrusted code left behind: nothing is followed out of it (every step is relative to an open
folder, never through a link), nothing is opened that could block or act (sockets, pipes and devices are left out),
setuid and setgid bits of files are dropped, and size, count and depth are bounded.

The description is a list of entries sorted by path; its canonical bytes are the tree's manifest, the manifest's
sha256 is the tree's digest. Times are kept on disk, to the nanosecond, since bytecode caches are checked by them,
but they are not part of the digest: the same state reached twice has one digest.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record, canonical_bytes
from ropewalk.sandbox import privilege

Owner = Callable[[int, int], tuple[int, int]]
"""From the ids found on disk to those inside a sandbox."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder of a tree is opened."""
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_COPY_BYTES = 1024 * 1024
_KEPT_BITS = 0o1777


class TreeEntry(Record):
    """One member of a tree."""

    path: str
    """Relative, `/` between parts, "" for the root; `base64:` in front where the bytes are not UTF-8."""
    kind: str
    """`file`, `directory`, `link`, `hardlink` (to the member named by `target`) or `whiteout`."""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""
    opaque: bool = False
    """A directory that hides what layers below hold in its place."""
    attributes: dict[str, str] = {}
    """Extended attributes `user.*`, base64."""


class Tree(Record):
    """What a copy holds."""

    entries: tuple[TreeEntry, ...]
    size: int
    """Bytes of all files."""
    skipped: int
    """Sockets, pipes and devices left out."""

    @property
    def manifest(self) -> bytes:
        """One line of canonical JSON per entry."""
        return b"".join(canonical_bytes(entry) + b"\n" for entry in self.entries)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.manifest).hexdigest()


def as_root(uid: int, gid: int) -> tuple[int, int]:
    """Owners on the host mean nothing inside: everything belongs to root."""
    return 0, 0


def as_is(uid: int, gid: int) -> tuple[int, int]:
    """Owners are those of the sandbox already."""
    return uid, gid


def copy(
    source: Path | int,
    destination: Path,
    *,
    owner: Owner = as_root,
    without: frozenset[str] = frozenset(),
    bytes_max: int | None = None,
) -> Tree:
    """Copies the members of `source` (a path, or a descriptor of a folder) into `destination`, a new folder.

    Args:
        owner: translates owners; where this process is not root, files are its own whatever the entry says.
        without: paths to leave out with all below them.
        bytes_max: of all files together, holes counted as if they were written, since here they would be.

    Raises:
        CallerError: too many members, too deep, too large, or `source` is no folder.
    """
    bytes_max = limits.TREE_BYTES_MAX if bytes_max is None else bytes_max
    return _Walk(owner, without, bytes_max).run(source, destination)


def describe(source: Path, *, owner: Owner) -> Tree:
    """The same without copying."""
    return _Walk(owner, frozenset(), limits.TREE_BYTES_MAX).run(source, None)


def remove(path: Path) -> None:
    """Removes a tree, also with folders that nobody may write to. Nothing where it is gone."""
    if not path.is_symlink() and path.is_dir():
        with suppress(OSError):
            path.chmod(0o700)
        try:
            names = list(os.scandir(path))
        except FileNotFoundError:
            return
        for entry in names:
            if entry.is_dir(follow_symlinks=False):
                remove(Path(entry.path))
            else:
                Path(entry.path).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)


class _Walk:
    def __init__(self, owner: Owner, without: frozenset[str], bytes_max: int) -> None:
        self.owner = owner
        self.without = without
        self.bytes_max = bytes_max
        self.entries: list[TreeEntry] = []
        self.inodes: dict[tuple[int, int], str] = {}
        self.bytes = 0
        self.skipped = 0
        self.chown = privilege.is_root()

    def run(self, source: Path | int, destination: Path | None) -> Tree:
        try:
            fd = os.open(source if isinstance(source, Path) else f"/proc/self/fd/{source}", FOLDER & ~os.O_NOFOLLOW)
        except OSError as error:
            raise CallerError(f"{source} is not a readable folder: {error.strerror}.") from error
        target = -1
        try:
            if destination is not None:
                destination.mkdir(mode=0o700)
                target = os.open(destination, FOLDER)
            self.folder(fd, target, "", 0)
        finally:
            os.close(fd)
            if target >= 0:
                os.close(target)
        return Tree(entries=tuple(sorted(self.entries, key=order)), size=self.bytes, skipped=self.skipped)

    def folder(self, fd: int, target: int, path: str, depth: int) -> None:
        if depth > limits.TREE_DEPTH_MAX:
            raise CallerError(f"A tree has folders nested deeper than {limits.TREE_DEPTH_MAX} levels at {path[:80]!r}.")
        for name in sorted(os.listdir(fd)):
            inner = f"{path}/{name}" if path else name
            if inner in self.without:
                continue
            if len(self.entries) >= limits.TREE_MEMBERS_MAX:
                raise CallerError(f"A tree has more than {limits.TREE_MEMBERS_MAX} members.")
            self.member(fd, target, name, inner, depth)
        self.finish_folder(fd, target, path)

    def member(self, fd: int, target: int, name: str, path: str, depth: int) -> None:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            with _opened(fd, name, FOLDER, found) as inner:
                into = -1
                if target >= 0:
                    os.mkdir(name, 0o700, dir_fd=target)
                    into = os.open(name, FOLDER, dir_fd=target)
                try:
                    self.folder(inner, into, path, depth + 1)
                finally:
                    if into >= 0:
                        os.close(into)
        elif kind == stat.S_IFREG:
            self.file(fd, target, name, path, found)
        elif kind == stat.S_IFLNK:
            link = os.readlink(name, dir_fd=fd)
            uid, gid = self.owner(found.st_uid, found.st_gid)
            self.entries.append(TreeEntry(path=text(path), kind="link", uid=uid, gid=gid, target=text(link)))
            if target >= 0:
                os.symlink(link, name, dir_fd=target)
                self.settle(target, name, found, uid, gid)
        elif kind == stat.S_IFCHR and found.st_rdev == 0:
            self.entries.append(TreeEntry(path=text(path), kind="whiteout"))
            if target >= 0:
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)
        else:
            self.skipped += 1

    def file(self, fd: int, target: int, name: str, path: str, found: os.stat_result) -> None:
        key = (found.st_dev, found.st_ino)
        if found.st_nlink > 1 and key in self.inodes:
            first = self.inodes[key]
            self.entries.append(TreeEntry(path=text(path), kind="hardlink", target=text(first)))
            if target >= 0:
                self.link(target, name, path, first)
            return
        self.inodes[key] = path
        self.check_size(found.st_size)  # before the first byte: a hole costs its maker nothing
        uid, gid = self.owner(found.st_uid, found.st_gid)
        with _opened(fd, name, _READ, found) as inner:
            out = (
                os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
                if target >= 0
                else -1
            )
            try:
                size, sha256 = self.pour(inner, out)
                attributes = encoded(own_attributes(inner))
                if out >= 0:
                    for attribute, value in attributes.items():
                        os.setxattr(out, attribute, base64.b64decode(value))
            finally:
                if out >= 0:
                    os.close(out)
        mode = found.st_mode & _KEPT_BITS
        self.entries.append(TreeEntry(path=text(path), kind="file", mode=mode, uid=uid, gid=gid, size=size,
                                      sha256=sha256, attributes=attributes))  # fmt: skip
        if target >= 0:
            self.settle(target, name, found, uid, gid)

    def pour(self, source: int, out: int) -> tuple[int, str]:
        hashed = hashlib.sha256()
        size = 0
        while data := os.read(source, _COPY_BYTES):
            self.check_size(len(data))
            size += len(data)
            self.bytes += len(data)
            hashed.update(data)
            if out >= 0:
                view = memoryview(data)
                while view:
                    view = view[os.write(out, view) :]
        return size, hashed.hexdigest()

    def check_size(self, more: int) -> None:
        if self.bytes + more > self.bytes_max:
            raise CallerError(f"A tree is larger than {self.bytes_max} bytes.")

    def link(self, target: int, name: str, path: str, first: str) -> None:
        """`first` is named from the root of the tree; `target` is the folder of `path`."""
        up = "../" * path.count("/")
        os.link(up + first, name, src_dir_fd=target, dst_dir_fd=target, follow_symlinks=False)

    def settle(self, target: int, name: str, found: os.stat_result, uid: int, gid: int) -> None:
        """Owner first: changing it clears bits of the mode. Times last."""
        if self.chown:
            os.chown(name, uid, gid, dir_fd=target, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            os.chmod(name, found.st_mode & _KEPT_BITS, dir_fd=target)
        os.utime(name, ns=(found.st_mtime_ns, found.st_mtime_ns), dir_fd=target, follow_symlinks=False)

    def finish_folder(self, fd: int, target: int, path: str) -> None:
        found = os.fstat(fd)
        uid, gid = self.owner(found.st_uid, found.st_gid)
        attributes = encoded(own_attributes(fd))
        opaque = is_opaque(fd)
        self.entries.append(TreeEntry(path=text(path), kind="directory", mode=found.st_mode & _KEPT_BITS, uid=uid,
                                      gid=gid, opaque=opaque, attributes=attributes))  # fmt: skip
        if target < 0:
            return
        for attribute, value in attributes.items():
            os.setxattr(target, attribute, base64.b64decode(value))
        if opaque:
            mark_opaque(target)
        if self.chown:
            os.fchown(target, uid, gid)
        os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))
        os.fchmod(target, found.st_mode & _KEPT_BITS)


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOATIME | os.O_CLOEXEC


@contextmanager
def _opened(folder: int, name: str, flags: int, found: os.stat_result) -> Iterator[int]:
    """A member for reading. Without root, one whose owner took himself the right to read gets it back meanwhile."""
    restore = False
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except PermissionError:
        try:
            fd = os.open(name, flags & ~os.O_NOATIME, dir_fd=folder)
        except PermissionError:
            os.chmod(name, found.st_mode & 0o777 | 0o700, dir_fd=folder)
            restore = True
            fd = os.open(name, flags & ~os.O_NOATIME, dir_fd=folder)
    try:
        yield fd
    finally:
        if restore:
            os.fchmod(fd, stat.S_IMODE(found.st_mode))
        os.close(fd)


def mark_opaque(fd: int) -> None:
    """Marks a folder so that the overlay hides what lies below it. Root's overlays read one mark, others' another."""
    os.setxattr(fd, _OPAQUE[0 if privilege.is_root() else 1], b"y")


def is_opaque(fd: int) -> bool:
    """Whether an open folder hides what layers below hold in its place."""
    for name in _OPAQUE:
        with suppress(OSError):
            if os.getxattr(fd, name) == b"y":
                return True
    return False


def is_kept_attribute(name: str) -> bool:
    """Whether an extended attribute belongs to a tree's content. The others mean something to this machine's kernel."""
    return name.startswith("user.") and not name.startswith("user.overlay.")


def own_attributes(fd: int) -> dict[str, bytes]:
    """The extended attributes of an open file or folder that belong to its content."""
    try:
        names = os.listxattr(fd)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM, errno.EACCES):
            return {}
        raise
    return {name: os.getxattr(fd, name) for name in sorted(names) if is_kept_attribute(name)}


def encoded(attributes: Mapping[str, bytes]) -> dict[str, str]:
    """Extended attributes as a member's record has them; see `attribute_values`."""
    return {name: base64.b64encode(value).decode() for name, value in sorted(attributes.items())}


def attribute_values(entry: TreeEntry) -> dict[str, bytes]:
    """The extended attributes of a member."""
    return {name: base64.b64decode(value) for name, value in entry.attributes.items()}


def file_name(text: str) -> str:
    """A member's path as the file system has it."""
    return os.fsdecode(base64.b64decode(text[7:])) if text.startswith("base64:") else text


def text(name: str) -> str:
    """A name of the file system as a record has it; see `file_name`."""
    raw = os.fsencode(name)
    try:
        plain = raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode()
    return plain if not plain.startswith("base64:") else "base64:" + base64.b64encode(raw).decode()


def order(entry: TreeEntry) -> tuple[str, ...]:
    """By what a tree's entries are sorted."""
    return tuple(entry.path.split("/"))
