"""What a run could leave behind on this machine, counted: processes, namespaces, mounts, cgroups, files."""

from __future__ import annotations

from pathlib import Path

from ropewalk.core.records import Record
from ropewalk.store.layout import Layout

_NAMESPACES = ("pid", "mnt", "net", "user", "ipc", "uts")


class Census(Record):
    """Taken at one instant. Elements are comparable between two instants of one boot."""

    processes: frozenset[str]
    """Processes in another pid namespace than ours, as pid and start time."""
    namespaces: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]
    """Below the state directory's `sandboxes/`, and temporary ones anywhere in it."""

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
    files = {str(path) for path in layout.sandboxes.rglob("*")} if layout.sandboxes.is_dir() else set()
    files |= {str(path) for path in layout.root.rglob("*.tmp*")} if layout.root.is_dir() else set()
    return Census(
        processes=frozenset(processes),
        namespaces=frozenset(namespaces),
        mounts=frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=frozenset(str(path) for path in Path("/sys/fs/cgroup").rglob("*ropewalk*") if path.is_dir()),
        files=frozenset(files),
    )
