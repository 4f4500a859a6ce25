"""How much of this machine may be used: what the kernel grants this process, not what the board carries."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from ropewalk.core.limits import GIB
from ropewalk.core.records import Record

_CGROUPS = Path("/sys/fs/cgroup")


class Machine(Record):
    """Usable resources and where the numbers come from."""

    cpus: float
    memory_bytes: int
    notes: tuple[str, ...]

    @property
    def parallel(self) -> int:
        """Sandboxes that keep the CPUs busy: while one of them waits for us, the others work."""
        return math.ceil(self.cpus) + 1


def measure(*, cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> Machine:
    """The smaller of affinity and control groups' quota for CPUs; of physical memory and control groups' limit.

    Control groups of both versions are read from this process's group up to the root; what cannot be read does not
    count as a limit.
    """
    cpus = float(len(os.sched_getaffinity(0)))
    memory_bytes = _memory_total(proc)
    notes = [f"{cpus:g} CPUs by affinity", f"{memory_bytes / GIB:.1f} GiB of memory in the machine"]
    quota = min(_cpu_quotas(cgroups, proc), default=math.inf)
    if quota < cpus:
        cpus = quota
        notes.append(f"{quota:g} CPUs by control group")
    limit = min(_memory_limits(cgroups, proc), default=memory_bytes)
    if limit < memory_bytes:
        memory_bytes = limit
        notes.append(f"{limit / GIB:.1f} GiB of memory by control group")
    return Machine(cpus=cpus, memory_bytes=memory_bytes, notes=tuple(notes))


def _memory_total(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_quotas(cgroups: Path, proc: Path) -> Iterator[float]:
    for group in _groups(cgroups, proc, "cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (group / "cpu.max").read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota_us = int((group / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                yield quota_us / int((group / "cpu.cfs_period_us").read_text())


def _memory_limits(cgroups: Path, proc: Path) -> Iterator[int]:
    for group in _groups(cgroups, proc, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            # "max" is no number; version 1 writes a number past any memory instead.
            with contextlib.suppress(OSError, ValueError):
                yield int((group / name).read_text())


def _groups(cgroups: Path, proc: Path, controller: str) -> Iterator[Path]:
    """This process's group and its ancestors, in the hierarchies that may hold the controller."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = cgroups / controllers if controllers else cgroups
            folder = root / path.lstrip("/")
            while folder.is_relative_to(root):
                yield folder
                folder = folder.parent
