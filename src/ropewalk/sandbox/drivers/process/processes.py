# ruff: noqa: PTH115, PTH123, PTH208
# pathlib would double the time that the spawner takes to start.
"""Processes known by id and start time, never by id alone: ids come round again.

Standard library only, since the spawner imports it without site-packages.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which a process started; None: there is none, or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def state(pid: int) -> bytes:
    """As proc(5) has it: `R`, `S`, `D`, `T` (stopped by a signal), `t` (by a tracer), `Z`; empty: there is none."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0]
    return b""


def parent(pid: int) -> int:
    """Of a process that lives.

    Raises:
        OSError: there is none of that id.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def alive(pid: int, started: int) -> bool:
    """Whether that very process still runs."""
    return pid > 0 and start_time(pid) == started


def kill(pid: int, started: int) -> None:
    """SIGKILL to that very process; nothing where it is gone."""
    if pid <= 0:
        return
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if start_time(pid) == started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def wait(pid: int, started: int, timeout_s: float) -> bool:
    """True once that very process is dead (its zombie may remain), False if it still lives after the time."""
    if not alive(pid, started):
        return True
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return not alive(pid, started) or bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(descriptor)


def inside(init_pid: int) -> list[int]:
    """All processes of the process namespace that `init_pid` is the first of, as far as /proc shows them."""
    try:
        namespace = os.readlink(f"/proc/{init_pid}/ns/pid")
    except OSError:
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    found.append(int(name))
    return found


def boot_id() -> str:
    """Changes with every start of the machine, so that ids from before it are known as such."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
