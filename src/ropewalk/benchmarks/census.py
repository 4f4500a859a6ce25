"""What a run could leave behind on this machine, counted: processes, namespaces, mounts, cgroups, files."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ropewalk.core.records import Record
from ropewalk.store.layout import Layout

_NAMESPACES = ("pid", "mnt", "net", "user", "ipc", "uts")
_HALF_MADE = re.compile(r"\.(?!([a-z]+\.)?lock$).*|.*\.part\d*|.*\.partial")
"""Names of what is being written, removed or unpacked; lock files stay where they are."""
_INCOMING = "incoming"
"""Folder of blobs that are being written."""


class Census(Record):
    """Taken at one instant. Elements are comparable between two instants of one boot."""

    processes: frozenset[str]
    """Processes in another pid namespace than ours, as pid and start time."""
    namespaces: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]
    """In the state directory outside its stores, half-made ones inside them, and temporary ones of the machine."""

    def left_since(self, before: Census) -> tuple[str, ...]:
        """What is here now and was not before, one line each."""
        return tuple(
            f"{kind}: {name}"
            for kind in Census.__struct_fields__
            for name in sorted(getattr(self, kind) - getattr(before, kind))
        )


def take(layout: Layout) -> Census:
    """The census of this machine and one state directory. On a shared machine, others' sandboxes count too."""
    own = Path("/proc/self/ns/pid").readlink()
    processes, namespaces = set[str](), set[str]()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found = {kind: str((process / "ns" / kind).readlink()) for kind in _NAMESPACES}
            started = (process / "stat").read_text().rsplit(")", 1)[1].split()[19]
        except OSError:
            continue  # gone meanwhile, or another user's
        namespaces.update(found.values())
        if found["pid"] != str(own):
            processes.add(f"{process.name}@{started}")
    return Census(
        processes=frozenset(processes),
        namespaces=frozenset(namespaces),
        mounts=frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=frozenset(
            str(path) for path in _below(Path("/sys/fs/cgroup")) if "ropewalk" in path.name and path.is_dir()
        ),
        files=files(layout),
    )


def files(layout: Layout) -> frozenset[str]:
    """What `Census.files` says."""
    return frozenset(map(str, (*_left_in(layout), *Path(tempfile.gettempdir()).glob("ropewalk-*"))))


def _left_in(layout: Layout) -> Iterator[Path]:
    for place in layout.root.iterdir() if layout.root.is_dir() else ():
        if place in layout.stores:
            yield from _half_made(place, trees=place == layout.layers)
        else:
            if place != layout.sandboxes:
                yield place
            yield from _below(place)


def _below(place: Path) -> Iterator[Path]:
    """All in a folder. With `os.walk`, and not `rglob`: what is removed meanwhile is no error."""
    return (Path(folder) / name for folder, names, others in os.walk(place) for name in (*names, *others))


def _half_made(store: Path, *, trees: bool) -> Iterator[Path]:
    """`trees`: its folders hold others' files under whatever names; only what lies beside them is looked at."""
    for folder, names, others in os.walk(store):
        here = Path(folder)
        yield from (here / name for name in (*names, *others) if here.name == _INCOMING or _HALF_MADE.fullmatch(name))
        if trees and here != store:
            names.clear()
