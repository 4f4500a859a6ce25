"""Which processes belong to which command, however they daemonise, and the end of them.

Each command starts with a number of its own, its marker, as hard RLIMIT_LOCKS: a limit without effect since Linux
2.4.25 (getrlimit(2)) that fork and exec hand down all the same. An unprivileged process can lower it, never raise it.
Markers go down from command to command, so that a process can at best pretend to belong to a newer command; one with
the number of no living command is nobody's, and ends with the next sweep. Unlike an environment variable it cannot be
taken off, and /proc shows it for every user's processes, alive or zombie.
"""

from __future__ import annotations

import posix
import resource

RLIMIT_LOCKS = 10
MARKER_SPAN = 1 << 32
SIGKILL, SIGSTOP = 9, 19
STOP_PASSES = 8
STRAYS = 0  # stands for the markers of no living command


def slurp(path: str) -> bytes:
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(fd, 65536)
    finally:
        posix.close(fd)


class Markers:
    """Hands out markers and reads them."""

    def __init__(self) -> None:
        start = (1 << 48) + (int.from_bytes(posix.urandom(4), "big") >> 3) * MARKER_SPAN
        _, hard = resource.getrlimit(RLIMIT_LOCKS)
        self.top = start if hard == resource.RLIM_INFINITY else min(start, hard)
        self.last = self.top

    def next(self) -> int:
        """A new marker; the agent's own limit is lowered to it, so that the next child is born with it."""
        self.last -= 1
        resource.setrlimit(RLIMIT_LOCKS, (self.last, self.last))
        return self.last

    def is_ours(self, marker: int) -> bool:
        """Whether only a command of this agent, or what it lowered itself to, can have it."""
        return 0 <= marker < self.top

    def of(self, pid: int) -> int:
        """Of a process, zombie or not; -1: none, or no such process."""
        try:
            limits = slurp(f"/proc/{pid}/limits")
        except OSError:
            return -1
        at = limits.find(b"Max file locks")
        words = limits[at + 14 : at + 80].split(None, 2)
        return int(words[1]) if at >= 0 and len(words) > 1 and words[1].isdigit() else -1


def doomed_processes(markers: Markers, doomed: set[int], living: set[int], *, strays: bool) -> dict[int, int]:
    """Process ids and the doomed marker each falls under: by its own, or by an ancestor's. Zombies are left out.

    With `strays`, whoever bears a marker that no living command has is under STRAYS.
    """
    parents: dict[int, int] = {}
    found: dict[int, int] = {}
    me = posix.getpid()
    for name in posix.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        pid = int(name)
        try:
            stat = slurp(f"/proc/{name}/stat")
        except OSError:
            continue
        state, parent = stat[stat.rindex(b")") + 2 :].split(None, 2)[:2]
        if state in (b"Z", b"X"):
            continue
        parents[pid] = int(parent)
        marker = markers.of(pid)
        if marker in doomed:
            found[pid] = marker
        elif strays and markers.is_ours(marker) and marker not in living:
            found[pid] = STRAYS
    for pid in parents:
        line: list[int] = []
        at = pid
        while at in parents and at not in found and len(line) <= len(parents):
            line.append(at)
            at = parents[at]
        if at in found:
            for descendant in line:
                found[descendant] = found[at]
    return found


def end_processes(markers: Markers, doomed: set[int], living: set[int], *, strays: bool) -> set[int]:
    """One sweep: stops everything that is doomed until nothing new turns up, then kills it.

    Stopping first takes the sting out of processes that fork faster than they are killed: a stopped one holds its
    place among the sandbox's processes and makes no more. Returns the markers of which something was still there.
    """
    stopped: set[int] = set()
    found: dict[int, int] = {}
    for _ in range(STOP_PASSES):
        found = doomed_processes(markers, doomed, living, strays=strays)
        fresh = found.keys() - stopped
        if not fresh:
            break
        for pid in fresh:
            send_signal(pid, SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        send_signal(pid, SIGKILL)
    return set(found.values())


def send_signal(pid: int, number: int) -> None:
    try:
        posix.kill(pid, number)
    except OSError:
        pass


def orphans(leaders: set[int]) -> bool:
    """Whether the agent has children besides these: what commands left behind.

    `children` may miss one while others exit (proc(5)); whoever is missed is found by the next command's end.
    """
    pid = posix.getpid()
    try:
        return any(int(child) not in leaders for child in slurp(f"/proc/{pid}/task/{pid}/children").split())
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN: look at everything
        return True
