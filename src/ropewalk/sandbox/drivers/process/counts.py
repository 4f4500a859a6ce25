"""Kernel objects that Linux counts per user or per machine: for how many sandboxes at once they are enough.

Started as root, the driver has the kernel count each sandbox as a user of its own (`rootfs.Identity`). Started as
anybody else all sandboxes draw on one user's allowance, of which each gets a small part. Terminals are counted per
machine either way.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ropewalk.sandbox.drivers.process.rootfs import INOTIFY_INSTANCES_MAX, TERMINALS_MAX

_SYSTEM = Path("/proc/sys")
_SANDBOXES_MIN, _SANDBOXES_PER_CPU = 16, 4
"""At once, on a machine at work."""


def declared(*, root: bool) -> tuple[str, ...]:
    """Words of the contract."""
    if root:
        return ()
    return ("shared_counts", "no_inotify_limit") if _is_read_only() else ("shared_counts",)


def problems(*, root: bool, system: Path = _SYSTEM, cpus: int | None = None) -> tuple[str, ...]:
    """What this machine has too little of, and how to raise it.

    Args:
        root: whether the driver has root's powers.
        system: in place of /proc/sys.
        cpus: in place of this machine's.
    """
    wanted = max(_SANDBOXES_MIN, _SANDBOXES_PER_CPU * (cpus or os.cpu_count() or 1))
    found = []
    instances = _number(system / "fs/inotify/max_user_instances")
    if not root and instances is not None and instances < wanted * INOTIFY_INSTANCES_MAX:
        found.append(
            f"inotify instances of one user are enough for {instances // INOTIFY_INSTANCES_MAX} sandboxes at once: "
            f"'sysctl -w fs.inotify.max_user_instances={wanted * INOTIFY_INSTANCES_MAX}', or start as root."
        )
    terminals, reserved = _number(system / "kernel/pty/max"), _number(system / "kernel/pty/reserve") or 0
    if terminals is not None and terminals - reserved < wanted * TERMINALS_MAX:
        found.append(
            f"Terminals are enough for {max(0, terminals - reserved) // TERMINALS_MAX} sandboxes at once: "
            f"'sysctl -w kernel.pty.max={wanted * TERMINALS_MAX + reserved}'."
        )
    if not root and _is_read_only():
        found.append(
            "/proc/sys is read-only, as in a container: one sandbox can take all of a user's inotify instances."
        )
    return tuple(found)


def _is_read_only() -> bool:
    with suppress(OSError):
        return bool(os.statvfs(_SYSTEM / "user").f_flag & os.ST_RDONLY)
    return True


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None
