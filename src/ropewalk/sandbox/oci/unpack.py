"""Unpacks one layer of an image into a tree and describes it, in one pass over bytes that anybody may have made.

Format: OCI image specification 1.1, layer.md: a tar archive of changes. `.wh.NAME` hides what lower layers hold as
NAME, `.wh..wh..opq` what they hold in the same folder; here they become what overlayfs knows (see `trees`), so that a
layer can be mounted as it lies. Never is anything written through a link; sizes, count and depth are bounded.

Left out, and counted by kind: device nodes and pipes, setuid and setgid bits of files, file capabilities and extended
attributes outside of `user.*`. Refused: members and hard links that lead out of the tree or through what is no folder,
and names that mean more than a name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.paths import parts_below
from ropewalk.machinery.archives import BoundedMember
from ropewalk.sandbox import privilege, trees
from ropewalk.sandbox.archives import DAMAGED, UNFIT
from ropewalk.sandbox.oci.members import LayerFile, LayerFolder, LayerLink, LayerMember, LayerWhiteout, as_tree
from ropewalk.sandbox.oci.streams import ByteSource, Forward
from ropewalk.sandbox.trees import Tree

T = TypeVar("T")

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
_AUFS: Final = ".wh..wh."
"""In front of what only aufs needs."""
_XATTR: Final = "SCHILY.xattr."
_KEPT_BITS: Final = 0o1777
_IDS: Final = 65_536
_NOBODY: Final = 65_534
_TIME_S_MAX: Final = 2**33
"""Of a member's time, which extended headers may set to anything: more than a file system keeps."""
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ZERO_CHUNK: Final = 65_536

Parts = tuple[str, ...]


class Pending(NamedTuple):
    """What only the layers below can tell."""

    links: dict[Parts, Parts]
    """Hard links to what this layer does not hold, by their place."""
    folders: tuple[Parts, ...]
    """Folders that are only on the way to others: owner and mode are those of the same folder below."""


class LayerUnpacker:
    """Of one layer, into a new folder. `read` once, `link_below` and `inherit` for what is pending, then `finish`."""

    def __init__(self, destination: Path, what: str, *, changes: bool = True) -> None:
        """
        Args:
            what: the layer's name for messages.
            changes: whether `.wh.` hides something, and a slash in front of a name is overlooked, as in layers of
                images. An archive of a whole root file system is taken literally.
        """
        self.what = what
        self.dropped: Counter[str] = Counter()
        self._changes = changes
        destination.mkdir(mode=0o700)
        self._root = os.open(destination, trees.FOLDER)
        self._near: tuple[Parts, int] = ((), os.dup(self._root))
        self._members: dict[Parts, LayerMember] = {(): LayerFolder(mode=0o755)}
        self._hidden: set[Parts] = set()
        self._links: dict[Parts, Parts] = {}
        self._bytes = 0
        self._is_root = privilege.is_root()

    def close(self) -> None:
        """Lets go of the folder."""
        os.close(self._near[1])
        os.close(self._root)

    def read(self, source: ByteSource) -> Pending:
        """Unpacks the archive.

        Raises:
            CallerError: no tar archive, damaged, a member that leaves the tree, or past the limits `TREE_*`.
        """
        stream = Forward(source)
        try:
            archive = tarfile.TarFile(fileobj=stream, mode="r", tarinfo=BoundedMember)  # type: ignore[arg-type]
            count = 0
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all
                count += 1
                self._check_room(0, count)
                self._take(archive, stream, member)
                if _is_cut_in_padding(archive, stream):
                    break
        except DAMAGED as error:
            raise CallerError(f"{self.what} is not a whole tar archive: {error}.") from error
        except OSError as error:
            if error.errno not in (*UNFIT, errno.ENOENT, errno.ENOTDIR):
                raise
            raise CallerError(f"{self.what} holds a member that cannot be written: {error.strerror}.") from error
        return Pending(
            dict(self._links),
            tuple(p for p, m in self._members.items() if isinstance(m, LayerFolder) and not m.explicit),
        )

    def finish(self) -> Tree:
        """Sets what folders get last, and describes the tree.

        Raises:
            CallerError: a hard link to what no layer holds.
        """
        for parts in self._links:
            raise self._wrong("/".join(parts), "is a hard link to what is not there")
        for parts in self._hidden:
            self._hide(parts)
        for parts in sorted(self._members, key=len, reverse=True):
            member = self._members[parts]
            if isinstance(member, LayerFolder):
                self._settle_folder(parts, member)
        return as_tree(self._members, skipped=self.dropped["devices"] + self.dropped["pipes"])

    def link_below(self, parts: Parts, source: int, found: os.stat_result) -> None:
        """Gives a pending hard link the content of a file of a layer below, of which `source` is a descriptor, and with
        it all others to the same file."""
        if parts not in self._links:
            return
        folder = self._descend(parts[:-1], "/".join(parts))
        name = parts[-1]
        fd = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            self._check_room(found.st_size, 0)
            size, sha256 = _copy(source, fd)
            self._bytes += size
            uid, gid = (found.st_uid, found.st_gid) if self._is_root else (0, 0)
            file = LayerFile(mode=found.st_mode & _KEPT_BITS, uid=uid, gid=gid, size=size, sha256=sha256)
            for attribute, value in trees.own_attributes(source).items():
                self._keep_attribute(fd, file.attributes, attribute, value)
            self._settle(fd, file, found.st_mtime_ns)
        finally:
            os.close(fd)
        self._members[parts] = file
        for again in [
            place for place, target in self._links.items() if target == self._links[parts] and place != parts
        ]:
            self._link(again, parts)
            del self._links[again]
        del self._links[parts]

    def inherit(self, parts: Parts, source: int, found: os.stat_result) -> None:
        """Gives a folder that was only on the way what the same folder of a layer below has."""
        folder = self._members[parts]
        assert isinstance(folder, LayerFolder)
        folder.mode, folder.mtime_ns = found.st_mode & _KEPT_BITS, found.st_mtime_ns
        if self._is_root:
            folder.uid, folder.gid = found.st_uid, found.st_gid
        folder.attributes = trees.own_attributes(source)

    def _take(self, archive: tarfile.TarFile, stream: Forward, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name, "is outside of the tree, or too deep")
        if self._changes and any(part.startswith(WHITEOUT) for part in parts):
            self._take_mark(parts, member)
            return
        if not parts:
            if member.isdir():
                self._members[()] = self._folder(member)
            return
        folder = self._descend(parts[:-1], member.name)
        kind = "pipes" if member.isfifo() else "devices" if member.ischr() or member.isblk() else ""
        if kind or not (member.isdir() or member.isreg() or member.issym() or member.islnk()):
            self.dropped[kind or "others"] += 1
            return
        self._make_way(folder, parts, member)
        if member.isdir():
            self._make_folder(folder, parts, member)
        elif member.issym():
            self._make_symlink(folder, parts, member)
        elif member.islnk():
            self._take_link(parts, member)
        else:
            self._make_file(archive, stream, folder, parts, member)

    def _take_mark(self, parts: Parts, member: tarfile.TarInfo) -> None:
        name = parts[-1]
        if any(part.startswith(WHITEOUT) for part in parts[:-1]) and not parts[0].startswith(_AUFS):
            raise self._wrong(member.name, "lies in a whiteout")
        if name == OPAQUE:
            self._descend(parts[:-1], member.name)
            folder = self._members[parts[:-1]]
            assert isinstance(folder, LayerFolder)
            folder.opaque = True
            return
        if any(part.startswith(_AUFS) for part in parts):
            return
        hidden = name.removeprefix(WHITEOUT)
        if hidden in ("", ".", ".."):
            raise self._wrong(member.name, "hides nothing that has a name")
        self._descend(parts[:-1], member.name)
        self._hidden.add((*parts[:-1], hidden))

    def _hide(self, parts: Parts) -> None:
        """Whiteouts hide what lies below, whatever this layer holds in the same place and in whichever order."""
        held = self._members.get(parts)
        if isinstance(held, LayerFolder):
            held.opaque = True
        elif held is None:
            folder = self._descend(parts[:-1], "/".join(parts))
            os.mknod(parts[-1], stat.S_IFCHR, 0, dir_fd=folder)
            self._members[parts] = LayerWhiteout()

    def _make_way(self, folder: int, parts: Parts, member: tarfile.TarInfo) -> None:
        """A later member replaces an earlier one of the same name."""
        held = self._members.get(parts)
        self._links.pop(parts, None)
        if held is None or (isinstance(held, LayerFolder) and member.isdir()):
            return
        if isinstance(held, LayerFolder):
            raise self._wrong(member.name, "would replace a folder")
        os.unlink(parts[-1], dir_fd=folder)
        del self._members[parts]

    def _folder(self, member: tarfile.TarInfo) -> LayerFolder:
        uid, gid = self._owner(member)
        held = LayerFolder(mode=member.mode & _KEPT_BITS, uid=uid, gid=gid, mtime_ns=_time_ns(member), explicit=True)
        for name, value in self._attributes(member).items():
            held.attributes[name] = value
        return held

    def _make_folder(self, folder: int, parts: Parts, member: tarfile.TarInfo) -> None:
        held = self._members.get(parts)
        if held is None:
            self._create(lambda: os.mkdir(parts[-1], 0o700, dir_fd=folder), member.name)
        made = self._folder(member)
        made.opaque = isinstance(held, LayerFolder) and held.opaque
        self._members[parts] = made

    def _make_symlink(self, folder: int, parts: Parts, member: tarfile.TarInfo) -> None:
        self._create(lambda: os.symlink(member.linkname, parts[-1], dir_fd=folder), member.name)
        uid, gid = self._owner(member)
        if self._is_root:
            os.chown(parts[-1], uid, gid, dir_fd=folder, follow_symlinks=False)
        time_ns = _time_ns(member)
        os.utime(parts[-1], ns=(time_ns, time_ns), dir_fd=folder, follow_symlinks=False)
        self._members[parts] = LayerLink(uid=uid, gid=gid, target=member.linkname)
        self._attributes(member, kept=False)

    def _take_link(self, parts: Parts, member: tarfile.TarInfo) -> None:
        target = self._parts(member.linkname, "is a hard link out of the tree", link=True)
        if not target or target == parts:
            raise self._wrong(member.name, "is a hard link to what is no file")
        if target in self._members:
            self._link(parts, target)
        else:
            self._links[parts] = self._links.get(target, target)

    def _link(self, parts: Parts, target: Parts) -> None:
        held = self._members[target]
        if not isinstance(held, LayerFile | LayerLink):
            raise self._wrong("/".join(parts), "is a hard link to what is no file")
        folder = self._descend(parts[:-1], "/".join(parts))
        source = self._open_folder(target[:-1], "/".join(target))
        try:
            os.link(target[-1], parts[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)
        self._members[parts] = held

    def _make_file(
        self, archive: tarfile.TarFile, stream: Forward, folder: int, parts: Parts, member: tarfile.TarInfo
    ) -> None:
        self._check_room(member.size, 0)  # before the first byte: a hole costs its maker nothing
        fd = self._create(lambda: os.open(parts[-1], _NEW, 0o600, dir_fd=folder), member.name)
        try:
            sha256 = _write_sparse(archive, member, fd) if member.issparse() else _write(stream, member.size, fd)
            self._bytes += member.size
            uid, gid = self._owner(member)
            if member.mode & 0o6000:
                self.dropped["setuid bits"] += 1
            file = LayerFile(mode=member.mode & _KEPT_BITS, uid=uid, gid=gid, size=member.size, sha256=sha256)
            for name, value in self._attributes(member).items():
                self._keep_attribute(fd, file.attributes, name, value)
            self._settle(fd, file, _time_ns(member))
        finally:
            os.close(fd)
        self._members[parts] = file

    def _create(self, make: Callable[[], T], name: str) -> T:
        try:
            return make()
        except FileExistsError:
            raise self._wrong(
                name, "cannot be told from another one: this machine's file system does not tell upper from lower case"
            ) from None

    def _settle(self, fd: int, file: LayerFile, time_ns: int) -> None:
        """Owner first: changing it clears bits of the mode. Times last."""
        if self._is_root:
            os.fchown(fd, file.uid, file.gid)
        os.fchmod(fd, file.mode)
        os.utime(fd, ns=(time_ns, time_ns))

    def _settle_folder(self, parts: Parts, folder: LayerFolder) -> None:
        fd = self._open_folder(parts, "/".join(parts))
        try:
            kept: dict[str, bytes] = {}
            for name, value in folder.attributes.items():
                self._keep_attribute(fd, kept, name, value)
            folder.attributes = kept
            if folder.opaque:
                trees.mark_opaque(fd)
            if self._is_root:
                os.fchown(fd, folder.uid, folder.gid)
            os.utime(fd, ns=(folder.mtime_ns, folder.mtime_ns))
            os.fchmod(fd, folder.mode)
        finally:
            os.close(fd)

    def _attributes(self, member: tarfile.TarInfo, *, kept: bool = True) -> dict[str, bytes]:
        """The extended attributes that stay; the others are counted."""
        found: dict[str, bytes] = {}
        for key, value in member.pax_headers.items():
            if not key.startswith(_XATTR):
                continue
            name = key.removeprefix(_XATTR)
            if kept and trees.is_kept_attribute(name):
                found[name] = value.encode("utf-8", "surrogateescape")
            else:
                self.dropped["capabilities" if name == "security.capability" else "attributes"] += 1
        return found

    def _keep_attribute(self, fd: int, into: dict[str, bytes], name: str, value: bytes) -> None:
        try:
            os.setxattr(fd, name, value)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EPERM, errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EINVAL):
                raise
            self.dropped["attributes"] += 1
            return
        into[name] = value

    def _owner(self, member: tarfile.TarInfo) -> tuple[int, int]:
        if not self._is_root:
            return 0, 0
        uid, gid = (value if 0 <= value < _IDS else _NOBODY for value in (member.uid, member.gid))
        if (uid, gid) != (member.uid, member.gid):
            self.dropped["owners"] += 1
        return uid, gid

    def _parts(self, name: str, why: str, *, link: bool = False) -> Parts:
        parts = parts_below(name.lstrip("/") if self._changes or link else name)
        if parts is None or len(parts) > limits.TREE_DEPTH_MAX:
            raise self._wrong(name, why)
        return parts

    def _descend(self, parts: Parts, name: str) -> int:
        """A descriptor of the folder, made on the way; open until the next call."""
        if self._near[0] != parts:
            fd = self._open_folder(parts, name)
            os.close(self._near[1])
            self._near = (parts, fd)
        return self._near[1]

    def _open_folder(self, parts: Parts, name: str) -> int:
        fd = os.dup(self._root)
        for depth, part in enumerate(parts, 1):
            here = parts[:depth]
            held = self._members.get(here)
            try:
                if held is None:
                    self._create(partial(os.mkdir, part, 0o700, dir_fd=fd), name)
                    self._members[here] = LayerFolder(mode=0o755)
                elif not isinstance(held, LayerFolder):
                    raise self._wrong(name, "goes through a link or a file")
                inner = os.open(part, trees.FOLDER, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _check_room(self, more: int, count: int) -> None:
        if self._bytes + more > limits.TREE_BYTES_MAX or max(count, len(self._members)) > limits.TREE_MEMBERS_MAX:
            raise CallerError(
                f"{self.what} holds more than {limits.TREE_MEMBERS_MAX} members or {limits.TREE_BYTES_MAX} bytes."
            )

    def _wrong(self, name: str, why: str) -> CallerError:
        return CallerError(f"{self.what} cannot be unpacked: its member {name[:200]!r} {why}.")


def _is_cut_in_padding(archive: tarfile.TarFile, stream: Forward) -> bool:
    """Whether all that is missing is what fills up the last member's block: umoci writes layers that end like that."""
    stream.seek(archive.offset)
    missing = archive.offset - stream.tell()
    if missing >= tarfile.BLOCKSIZE:
        raise tarfile.ReadError("unexpected end of data")
    return missing > 0


def _time_ns(member: tarfile.TarInfo) -> int:
    with suppress(ArithmeticError):  # to the nanosecond, which `mtime` as a float has not
        time_s = Decimal(member.pax_headers.get("mtime", member.mtime))
        return int(min(max(time_s, Decimal(0)), Decimal(_TIME_S_MAX)).scaleb(9)) if time_s.is_finite() else 0
    return 0


def _write(stream: Forward, size: int, fd: int) -> str:
    hashed = hashlib.sha256()
    left = size
    while left:
        data = stream.some(left)
        if not data:
            raise tarfile.ReadError("unexpected end of data")
        left -= len(data)
        hashed.update(data)
        while data:
            data = data[os.write(fd, data) :]
    return hashed.hexdigest()


def _write_sparse(archive: tarfile.TarFile, member: tarfile.TarInfo, fd: int) -> str:
    source = archive.extractfile(member)
    assert source is not None
    hashed = hashlib.sha256()
    zeros = bytes(_ZERO_CHUNK)
    at = 0
    with source:
        while data := source.read(_ZERO_CHUNK):
            hashed.update(data)
            if data != zeros[: len(data)]:
                os.pwrite(fd, data, at)
            at += len(data)
    os.ftruncate(fd, member.size)
    if at != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return hashed.hexdigest()


def _copy(source: int, target: int) -> tuple[int, str]:
    hashed = hashlib.sha256()
    size = 0
    while data := os.read(source, 1 << 20):
        size += len(data)
        hashed.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
    return size, hashed.hexdigest()
