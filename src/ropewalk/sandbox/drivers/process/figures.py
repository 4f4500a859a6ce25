"""What a sandbox uses and used: from its control groups, from /proc where there are none, from `end.json` once dead."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from ropewalk.sandbox.contract import Held, SandboxStats
from ropewalk.sandbox.drivers.process import cgroups, processes
from ropewalk.sandbox.drivers.process.folders import End, Folder, Processes

_TICKS = os.sysconf("SC_CLK_TCK")
END_WAIT_S = 1.0


def of(folder: Folder) -> SandboxStats:
    """Now, or at the end."""
    found = folder.processes()
    if found is None or not found.alive():
        return _last(folder)
    measured = cgroups.measure(found.groups)
    inside = processes.inside(found.init_pid)
    cpu_s = measured["cpu_s"] if measured["cpu_s"] is not None else _cpu_s(inside)
    wait_s = measured["cpu_wait_s"] if measured["cpu_wait_s"] is not None else _wait_s(inside)
    disk = _disk_bytes(found)
    return SandboxStats(
        cpu_s=cpu_s,
        cpu_wait_s=wait_s,
        memory_bytes_peak=_whole(measured["memory_bytes_peak"]),
        memory_bytes_unique=sum(map(_unique_bytes, inside)) + (disk or 0),
        disk_bytes=disk,
        processes=len(inside),
        out_of_memory_kills=_whole(measured["out_of_memory_kills"]),
        machine_kills=_whole(measured["machine_kills"]),
        held=_held(folder, found),
    )


def end_of(folder: Folder) -> End | None:
    """The last figures of a sandbox that has just died: the spawner writes them some moments later, and nobody may take
    their absence for a death without a reason. None: nobody saw it end, or it never started."""
    deadline = time.monotonic() + END_WAIT_S
    while (end := folder.end()) is None and time.monotonic() < deadline:
        found = folder.processes()
        if found is None or found.alive():
            break
        time.sleep(0.005)
    return end


def _last(folder: Folder) -> SandboxStats:
    end = end_of(folder)
    return SandboxStats(
        cpu_s=end.cpu_s if end else None,
        cpu_wait_s=end.cpu_wait_s if end else None,
        memory_bytes_peak=end.memory_bytes_peak if end else None,
        memory_bytes_unique=None,
        disk_bytes=None,
        processes=0,
        out_of_memory_kills=end.out_of_memory_kills if end else None,
        machine_kills=end.machine_kills if end else None,
    )


def _held(folder: Folder, found: Processes) -> Held | None:
    """Stops from outside: nobody inside can freeze a group or stop the first process of its own namespace."""
    if not cgroups.is_frozen(found.groups) and processes.state(found.init_pid) != b"T":
        return None
    with folder.saving(wait=False) as alone:
        return Held.STOPPED if alone else Held.SAVED


def _whole(value: int | float | None) -> int | None:
    return None if value is None else int(value)


def _disk_bytes(found: Processes) -> int | None:
    with suppress(OSError):
        space = os.statvfs(f"/proc/{found.pid}/root/tmp/w")
        return (space.f_blocks - space.f_bfree) * space.f_frsize
    return None


def _cpu_s(pids: list[int]) -> float:
    """Of the living and of the dead that were waited for."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / _TICKS


def _wait_s(pids: list[int]) -> float:
    """Time on a run queue; of living tasks only."""
    nanoseconds = 0
    for pid in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                nanoseconds += int((task / "schedstat").read_bytes().split()[1])
    return nanoseconds / 1e9


def _unique_bytes(pid: int) -> int:
    total = 0
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith((b"Private_Clean:", b"Private_Dirty:")):
                total += int(line.split()[1]) * 1024
    return total
