"""Many layers into one, with overlayfs' meaning: upper members hide lower ones, whiteouts and opaque folders too."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ropewalk.sandbox import privilege, trees
from ropewalk.sandbox.layers import LayerRecord, LayerStore
from ropewalk.sandbox.trees import Tree, TreeEntry

Merged = dict[str, tuple[TreeEntry, int]]
"""Members by path, each with the index of the layer that it is from."""


def flatten(layers: LayerStore, digests: Sequence[str]) -> LayerRecord:
    """One layer that stands for all of these, lowest first, above whatever lies below them.

    Whiteouts and opaque marks are kept, since what they hide may lie in an image further down. Files of layers that
    snapshots made are not copied but linked, where the file system can: layers never change. A link would change a
    file's times, by which somebody else's hand in a layer that is kept is told (`LayerStore.check_unchanged`).

    Raises:
        CallerError: there is no such layer, or the result is past the limits `TREE_*`.
        IntegrityError: a layer's manifest is not what its digest says.
        UnavailableError: no room. Nothing is left behind.
    """
    transient = layers.transient()
    sources = [(layers.path(digest), digest in transient) for digest in digests]
    merged = merge([layers.entries(digest) for digest in digests])
    return layers.add_made(lambda target: _make(merged, sources, target), transient=True)


def merge(stack: Sequence[Sequence[TreeEntry]]) -> Merged:
    """What the stack shows, lowest first."""
    merged: Merged = {}
    for index, entries in enumerate(stack):
        for entry in entries:
            below = merged.get(entry.path)
            if entry.kind != "directory" or entry.opaque:
                _forget_below(merged, entry.path)
            elif below is not None and (below[0].kind != "directory" or below[0].opaque):
                # Nothing under a file, a whiteout or an opaque folder shows through, here no more than there.
                entry = msgspec.structs.replace(entry, opaque=True)
            merged[entry.path] = (entry, index)
    return _without_lost_links(merged, stack)


def _forget_below(merged: Merged, path: str) -> None:
    prefix = f"{path}/" if path else ""
    for inner in [inner for inner in merged if inner.startswith(prefix) and inner != path]:
        del merged[inner]


def _without_lost_links(merged: Merged, stack: Sequence[Sequence[TreeEntry]]) -> Merged:
    """A second name of a file whose first name is hidden by now becomes the file."""
    files: dict[tuple[int, str], TreeEntry] = {}
    for index, entries in enumerate(stack):
        files.update({(index, entry.path): entry for entry in entries if entry.kind == "file"})
    first: dict[tuple[int, str], str] = {}
    result: Merged = {}
    for path in sorted(merged, key=lambda path: path.split("/")):
        entry, index = merged[path]
        if entry.kind in ("file", "hardlink"):
            key = (index, path if entry.kind == "file" else entry.target)
            if key in first:
                entry = TreeEntry(path=path, kind="hardlink", target=first[key])
            else:
                first[key] = path
                entry = msgspec.structs.replace(files[key], path=path)
        result[path] = (entry, index)
    return result


def _make(merged: Merged, sources: Sequence[tuple[Path, bool]], target: Path) -> Tree:
    """Builds the merged tree. The sources' times, owners and modes go along."""
    size = 0
    folders = []
    for path, (entry, index) in merged.items():
        name = trees.file_name(path)
        tree, is_linked = sources[index]
        source, place = tree / name, target / name
        if entry.kind == "directory":
            place.mkdir(mode=0o700)
            folders.append((source, place, entry))
        elif entry.kind == "hardlink":
            os.link(target / trees.file_name(entry.target), place, follow_symlinks=False)
        elif entry.kind == "whiteout":
            os.mknod(place, stat.S_IFCHR, 0)
        elif entry.kind == "link":
            place.symlink_to(source.readlink())
            _settle(source, place)
        else:
            size += entry.size
            _share(source, place, is_linked=is_linked)
    for source, place, entry in reversed(folders):
        if entry.opaque:
            fd = os.open(place, trees.FOLDER)
            try:
                trees.mark_opaque(fd)
            finally:
                os.close(fd)
        for attribute, value in trees.attribute_values(entry).items():
            os.setxattr(place, attribute, value)
        _settle(source, place)
    return Tree(entries=tuple(entry for entry, _ in merged.values()), size=size, skipped=0)


def _share(source: Path, place: Path, *, is_linked: bool) -> None:
    if is_linked:
        try:
            os.link(source, place, follow_symlinks=False)
            return
        except OSError as error:
            if error.errno not in (errno.EMLINK, errno.EPERM, errno.EXDEV):
                raise
    shutil.copy2(source, place, follow_symlinks=False)
    _settle(source, place)


def _settle(source: Path, place: Path) -> None:
    found = source.stat(follow_symlinks=False)
    if privilege.is_root():
        os.chown(place, found.st_uid, found.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        place.chmod(stat.S_IMODE(found.st_mode))
    os.utime(place, ns=(found.st_mtime_ns, found.st_mtime_ns), follow_symlinks=False)
