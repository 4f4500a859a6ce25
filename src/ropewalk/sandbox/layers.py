"""Layers: content-addressed directory trees, the read-only parts that root file systems are stacked from.

Stored as `layers/<digest>/`: `tree/` with owners as the ids inside a sandbox (0 … 65535), `manifest`, one line of
canonical JSON per member whose sha256 is the digest, `record.json`, and `tenants/`, an empty file per tenant who may
use it. A layer appears by one rename, whole, and is never changed; equal content is stored once. What is to be kept is
on the disk before it has its name; what snapshots alone need, when somebody asks for it (`settle`).

Whose: a layer belongs to every tenant who brought its bytes, and to all where the operator made it `public`. One that
a snapshot made belongs to nobody until the snapshot's tenant claims it. Layers without `tenants/` were stored before
there were any, and are public, as they were then. See docs/design/formats/images.md.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, IntegrityError, RopewalkError, UnavailableError
from ropewalk.core.paths import parts_below
from ropewalk.core.records import Record, canonical_bytes, decode_own
from ropewalk.machinery.files import NEXT_STEP, locked, sync_filesystem, sync_folder
from ropewalk.sandbox import privilege, trees
from ropewalk.sandbox.staging import staging_folder, sweep
from ropewalk.sandbox.trees import Owner, Tree, TreeEntry
from ropewalk.security.tenants import PUBLIC, check_owner
from ropewalk.store.layout import Layout

log = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TRANSIENT = "transient"
"""A file in a layer's folder: snapshots made it, and it may go with the last of them."""
_TENANTS = "tenants"
"""A folder in a layer's folder: a file for each tenant who may use it."""
_WATCHED_MEMBERS = 512
"""Layers of at most so many members are looked over at every use for changed times; larger ones are not."""
_QUICK_LOOKS = 64


class _Known(NamedTuple):
    """A layer of which this process has read every byte.

    Attributes:
        quick, whole: `_fingerprint` as `check` takes it, and of all members.
        is_touched: whether it moved between two readings that found the same bytes.
    """

    members: int
    quick: tuple[int, ...]
    whole: tuple[int, ...]
    is_touched: bool


class LayerRecord(Record):
    """A stored layer."""

    digest: str
    bytes: int
    """Of its files."""
    files: int
    """Members of any kind."""
    skipped: int = 0
    """Sockets, pipes and devices that were left out."""


class LayerStore:
    """All layers below one state directory. Synchronous and safe to use from many threads and processes."""

    def __init__(self, layout: Layout, *, tenant: str = PUBLIC) -> None:
        """
        Args:
            tenant: whose the layers become that are added here, unless the call says otherwise.
        """
        self._root = layout.layers
        self.tenant = check_owner(tenant)
        self._verified: dict[str, _Known] = {}
        self._settled: dict[str, tuple[int, int]] = {}
        """`_mark` of each folder that is known to be on the disk."""

    def add_tree(
        self,
        path: Path | int,
        *,
        owner: Owner = trees.as_root,
        without: frozenset[str] = frozenset(),
        bytes_max: int | None = None,
        transient: bool = False,
        tenant: str | None = None,
    ) -> LayerRecord:
        """Copies a tree in.

        Args:
            path: a folder, or a descriptor of one.
            owner: translates owners; by default everything belongs to root.
            without: relative paths left out with all below them.
            bytes_max: of all files, holes counted; by default and at most `limits.TREE_BYTES_MAX`, since more is never
                read again.
            transient: whether only snapshots need it, so that `discard` may remove it; it is nobody's until `claim`ed.
            tenant: whose it is; the store's by default.

        Raises:
            CallerError: no readable folder, or past the limits `TREE_*`.
            UnavailableError: no room. Nothing is left behind.
        """
        bytes_max = limits.TREE_BYTES_MAX if bytes_max is None else min(bytes_max, limits.TREE_BYTES_MAX)
        with staging_folder(self._root, "layer") as staging:
            tree = trees.copy(path, staging / "tree", owner=owner, without=without, bytes_max=bytes_max)
            return self._keep(staging, tree, transient=transient, tenant=tenant)

    def add_files(
        self, files: Mapping[str, bytes], *, modes: Mapping[str, int] | None = None, tenant: str | None = None
    ) -> LayerRecord:
        """A layer of these files. Names are absolute paths inside, without the leading slash; mode 0644 by default.

        Folders on the way belong to root with mode 0755, times are zero, so that equal files make equal layers.

        Raises:
            CallerError: a name that is absolute, leaves the tree, or is a folder of another one.
            UnavailableError: no room. Nothing is left behind.
        """
        with staging_folder(self._root, "layer") as staging:
            source = staging / "source"
            source.mkdir()
            for name, data in files.items():
                place = source / _place(name)
                try:
                    place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
                    place.write_bytes(data)
                except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
                    raise CallerError(f"{name!r} is a file and a folder at once.") from error
                place.chmod((modes or {}).get(name, 0o644) & 0o777)
            for folder, names, members in os.walk(source, topdown=False):
                for member in (*names, *members):
                    os.utime(Path(folder, member), (0, 0))
                Path(folder).chmod(0o755)
            return self._keep(staging, trees.copy(source, staging / "tree"), tenant=tenant)

    def add_made(
        self,
        make: Callable[[Path], Tree],
        *,
        transient: bool = False,
        tenant: str | None = None,
        durable: bool = True,
    ) -> LayerRecord:
        """A layer that `make` builds in place: it is given the path of a folder to make and returns what it made.

        `transient` and `tenant` as in `add_tree`; without `durable` the caller `settle`s it.

        Raises:
            CallerError: past the limits `TREE_*`.
            UnavailableError: no room. Nothing is left behind.
        """
        with staging_folder(self._root, "layer") as staging:
            return self._keep(staging, make(staging / "tree"), transient=transient, tenant=tenant, durable=durable)

    def is_usable(self, digest: str, tenant: str) -> bool:
        """Whether a tenant may mount that layer. False also where there is none: nobody learns what others have."""
        if not _DIGEST.fullmatch(digest):
            return False
        folder = self._root / digest
        return any((folder / _TENANTS / name).exists() for name in (tenant, PUBLIC)) or (
            folder.is_dir() and not (folder / _TENANTS).exists()
        )

    def check_usable(self, digests: Iterable[str], tenant: str) -> None:
        """Returns if a tenant may mount all these layers.

        Raises:
            CallerError: one is not there, or not this tenant's; the message is the same.
        """
        for digest in digests:
            if not self.is_usable(digest, tenant):
                raise _unknown(digest)

    def claim(self, digest: str, tenant: str) -> None:
        """Makes a layer that tenant's too; `public`: everybody's. Whoever calls has seen its bytes come from there.

        Raises:
            CallerError: there is no such layer.
        """
        with self._locked():
            _note_tenant(self.path(digest).parent, check_owner(tenant))

    def entries(self, digest: str) -> tuple[TreeEntry, ...]:
        """A layer's members, in order.

        Raises:
            CallerError: there is no such layer.
            IntegrityError: the manifest was changed.
        """
        manifest = (self.path(digest).parent / "manifest").read_bytes()
        if hashlib.sha256(manifest).hexdigest() != digest:
            raise IntegrityError(f"The manifest of layer {digest[:12]}… was changed.")
        return tuple(msgspec.json.decode(line, type=TreeEntry) for line in manifest.splitlines())

    def path(self, digest: str) -> Path:
        """The folder to mount.

        Raises:
            CallerError: there is no such layer.
        """
        if not _DIGEST.fullmatch(digest) or not (folder := self._root / digest).is_dir():
            raise _unknown(digest)
        return folder / "tree"

    def record(self, digest: str) -> LayerRecord:
        """What is known of a layer.

        Raises:
            CallerError: there is no such layer.
        """
        return decode_own((self.path(digest).parent / "record.json").read_bytes(), LayerRecord)

    def digests(self) -> set[str]:
        """Of all layers, without reading them."""
        return {entry.name for entry in self._root.iterdir() if _DIGEST.fullmatch(entry.name)}

    def records(self) -> Iterator[LayerRecord]:
        """All layers, in no order."""
        for digest in sorted(self.digests()):
            with suppress(CallerError):
                yield self.record(digest)

    def verify(self, digest: str) -> None:
        """Reads every byte.

        Raises:
            CallerError: there is no such layer.
            IntegrityError: something was changed, added or lost. The message names the first such path.
        """
        tree = self.path(digest)
        try:
            before = _fingerprint(tree)
            manifest = (tree.parent / "manifest").read_bytes()
            # Without root there is one owner on disk, who stands for root.
            found = trees.describe(tree, owner=trees.as_is if privilege.is_root() else trees.as_root)
        except (OSError, RopewalkError) as error:
            raise IntegrityError(f"Layer {digest[:12]}… cannot be read: {error}.") from error
        if hashlib.sha256(manifest).hexdigest() != digest or found.manifest != manifest:
            raise IntegrityError(
                f"Layer {digest[:12]}… was changed after it was stored: {_first_difference(manifest, found.manifest)}.",
                next_step="remove it and build it again; do not trust what was made from it.",
            )
        self._know(digest, tree, len(found.entries), before)

    def _know(self, digest: str, tree: Path, members: int, whole: tuple[int, ...]) -> None:
        known = self._verified.get(digest)
        self._verified[digest] = _Known(
            members, _fingerprint(tree, members), whole, is_touched=known is not None and known.whole != whole
        )

    def check_unchanged(self, digests: Iterable[str]) -> None:
        """Returns if nothing moved in these layers since this process first used them; those that it did not use pass.

        `check` lets large layers through between two uses. This looks over every member (10 ms for 2,500 of them), and
        sees what was changed and put back as well: change times cannot be put back. For whoever is about to vouch for
        what came out of sandboxes.

        Raises:
            IntegrityError: something moved.
        """
        for digest in digests:
            known = self._verified.get(digest)
            if known is not None and (known.is_touched or known.whole != _fingerprint(self.path(digest))):
                raise IntegrityError(
                    f"Layer {digest[:12]}… was touched while sandboxes stood on it.",
                    next_step="find out who writes below the state directory; what ran meanwhile is worth nothing.",
                )

    def check(self, digest: str) -> Path:
        """The folder to mount, verified as far as every use can afford.

        The first time in this process every byte is read. After that a small layer (at most 512 members) is looked
        over for change times, sizes and members, and read again where something moved; of a large one only the
        first folder and the manifest are looked at. Whoever fears a patient attacker on the host calls `verify`.

        Raises:
            CallerError: there is no such layer.
            IntegrityError: it was changed.
        """
        tree = self.path(digest)
        known = self._verified.get(digest)
        if known is None or known.quick != _fingerprint(tree, known.members):
            self.verify(digest)
        return tree

    def settle(self, digests: Iterable[str]) -> None:
        """Returns when these would survive power loss: before anything that does speaks of them.

        Raises:
            CallerError: there is no such layer.
            UnavailableError: the disk does not take it.
        """
        found = {digest: _mark(self.path(digest).parent) for digest in digests}
        if found.items() - self._settled.items():
            self._sync()
            self._settled |= found

    def _sync(self) -> None:
        try:
            sync_filesystem(self._root)
        except OSError as error:
            raise UnavailableError(
                f"{self._root} cannot be written: {error.strerror}.", next_step=NEXT_STEP
            ) from error  # fmt: skip

    def is_quick(self, digests: Sequence[str]) -> bool:
        """Whether `check`ing all of these takes less time than handing the work to a thread."""
        looks = 0
        for digest in digests:
            known = self._verified.get(digest)
            if known is None:
                return False
            looks += known.members if known.members <= _WATCHED_MEMBERS else 1
        return looks <= _QUICK_LOOKS

    def remove(self, digest: str) -> None:
        """Forgets a layer; nothing where it is gone. Running sandboxes keep what they mounted only in parts:
        remove what no sandbox and no snapshot uses."""
        if _DIGEST.fullmatch(digest):
            with self._locked():
                grave = self._bury(digest)
            if grave is not None:
                trees.remove(grave)

    def transient(self) -> set[str]:
        """Digests of those that snapshots made and nobody else keeps."""
        return {digest for digest in self.digests() if (self._root / digest / _TRANSIENT).exists()}

    def discard(self, digest: str) -> None:
        """Removes a transient layer; nothing where it is gone, or somebody keeps it by now."""
        if _DIGEST.fullmatch(digest):
            with self._locked():
                grave = self._bury(digest) if (self._root / digest / _TRANSIENT).exists() else None
            if grave is not None:
                trees.remove(grave)

    def _bury(self, digest: str) -> Path | None:
        self._verified.pop(digest, None)
        grave = self._root / f".removed-{secrets.token_hex(8)}"
        try:
            return (self._root / digest).rename(grave)
        except FileNotFoundError:
            return None

    def sweep(self) -> int:
        """Removes what interrupted work left behind; returns how many such folders."""
        removed = list(self._root.glob(".removed-*"))
        for folder in removed:
            trees.remove(folder)
        return len(removed) + sweep(self._root)

    def _locked(self) -> AbstractContextManager[None]:
        """Appearing and going, one at a time: who keeps a layer keeps it from being discarded."""
        return locked(self._root / ".lock")

    def _keep(
        self, staging: Path, tree: Tree, *, transient: bool = False, tenant: str | None = None, durable: bool = True
    ) -> LayerRecord:
        if tree.size > limits.TREE_BYTES_MAX or len(tree.entries) > limits.TREE_MEMBERS_MAX:
            raise CallerError(  # `verify` would take it for a damaged one
                f"A layer of {tree.size} bytes and {len(tree.entries)} members; {limits.TREE_BYTES_MAX} and "
                f"{limits.TREE_MEMBERS_MAX} are allowed."
            )
        manifest = tree.manifest
        digest = hashlib.sha256(manifest).hexdigest()
        record = LayerRecord(digest=digest, bytes=tree.size, files=len(tree.entries), skipped=tree.skipped)
        folder = staging / "layer"
        folder.mkdir(mode=0o700)
        (staging / "tree").rename(folder / "tree")
        (folder / "manifest").write_bytes(manifest)
        (folder / "record.json").write_bytes(canonical_bytes(record))
        (folder / _TENANTS).mkdir(mode=0o700)
        if transient:
            (folder / _TRANSIENT).touch()
        else:
            (folder / _TENANTS / check_owner(tenant or self.tenant)).touch()
        place, grave = self._root / digest, None
        damaged = self._damaged(digest)
        durable = durable and not transient
        if durable and (damaged or not place.is_dir() or (place / _TRANSIENT).exists()):
            self._sync()
        with self._locked():
            if damaged and place.is_dir() and _mark(place) == damaged:
                log.warning("layer %s… was damaged on the disk; what was stored now takes its place", digest[:12])
                _carry_tenants(place, folder)
                grave = self._bury(digest)
            if place.is_dir():
                if not transient:
                    _note_tenant(place, tenant or self.tenant)
                    (place / _TRANSIENT).unlink(missing_ok=True)
            else:
                folder.rename(place)
                self._know(digest, place / "tree", len(tree.entries), _fingerprint(place / "tree"))
            if durable:
                sync_folder(self._root)
        if grave is not None:
            trees.remove(grave)
        return record

    def _damaged(self, digest: str) -> tuple[int, int] | None:
        """`_mark` of a stored layer's folder that is not what its digest says; None: it is, or there is none.

        Power loss leaves such ones. Nobody could use them, and equal content could never be stored again.
        """
        try:
            mark = _mark(self._root / digest)
            self.check(digest)
            self.record(digest)
        except IntegrityError:
            return mark
        except (OSError, CallerError):
            pass
        return None


def _unknown(digest: str) -> CallerError:
    return CallerError(f"There is no layer {digest!r}.", next_step="build or import it first.")


def _carry_tenants(old: Path, new: Path) -> None:
    """Whoever could use a damaged layer can use what takes its place."""
    known = old / _TENANTS
    for name in [file.name for file in known.iterdir()] if known.is_dir() else [PUBLIC]:
        (new / _TENANTS / name).touch()


def _note_tenant(folder: Path, tenant: str) -> None:
    """One without the folder is public already."""
    with suppress(FileNotFoundError):
        (folder / _TENANTS / tenant).touch()


def _place(name: str) -> PurePosixPath:
    parts = parts_below(name)
    if not parts:
        raise CallerError(f"{name!r} is not a path inside a layer.", next_step="give a relative one without '..'.")
    return PurePosixPath(*parts)


def _mark(folder: Path) -> tuple[int, int]:
    """Tells a layer's folder from a later one in its place, which may have its inode."""
    found = folder.stat()
    return found.st_ino, found.st_ctime_ns


def _fingerprint(tree: Path, members: int = 0) -> tuple[int, ...]:
    """Changes when a small tree does; of one with many members, when its uppermost folder or its manifest does."""
    marks: list[int] = []
    for path in (tree, tree.parent / "manifest"):
        with suppress(OSError):
            found = path.stat()
            marks += (found.st_ino, found.st_size, found.st_ctime_ns)
    folders = [str(tree)] if members <= _WATCHED_MEMBERS else []
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    marks += (found.st_ino, found.st_size, found.st_ctime_ns, found.st_mode)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            marks.append(-1)
    return tuple(marks)


def _first_difference(expected: bytes, found: bytes) -> str:
    before, after = expected.splitlines(), found.splitlines()
    for line in sorted({*before} ^ {*after}):
        return f"{'lost or changed' if line in before else 'added or changed'}: {line[:200].decode('utf-8', 'replace')}"
    return "order of members"
