"""What runs on this machine, for tests that count it."""

from __future__ import annotations

from pathlib import Path


def below(pid: int) -> set[int]:
    """A process's descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, front = set(), {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        found |= front
    return found
