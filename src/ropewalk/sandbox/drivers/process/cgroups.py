# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH120, PTH123
# pathlib would double the time that the spawner takes to start.
"""Control groups of one sandbox: limits, accounting, freezing. Version 2 where it is delegated, 1 where writable.

Standard library only, since the spawner imports it without site-packages. A `Groups` value is plain data (paths by
role), so that it can be written down and used by another process after a crash.

Roles: `memory` (limit, peak, kills), `pids` (limit), `cpu` (quota), `cpuacct` (CPU time), `freezer`, and `unified`
(version 2: whatever of these the kernel put there; without any controller it still accounts CPU time, pressure and
freezes). One role's folder may serve several roles. What no writable hierarchy offers is missing, and the driver
declares so.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress

from ropewalk.sandbox import privilege
from ropewalk.sandbox.drivers.process import kernel

Groups = dict[str, str]

_PERIOD_US = 100_000
_LIMIT_MARGIN_BYTES = 2 << 20
"""The kernel charges in batches for each CPU, and a huge page at once."""
_V1 = ("memory", "pids", "cpu", "cpuacct", "freezer")
_V2 = ("memory", "pids", "cpu")


def parents(name: str) -> Groups:
    """The folders, by role, under which groups can be made; made on the way, named `name`. Empty: none."""
    own = _own()
    mounts = _mounts()
    found: Groups = {}
    if root := mounts.pop("unified", None):
        path = _make(root, own.get("", "/"), name, "unified")
        if path and not _enable(path) and privilege.is_root():
            # Where processes live no controller can be handed on, but for the root of the hierarchy.
            top = _make(root, "/", name, "unified")
            path = top if top and _enable(top) else path
        if path:
            # Version 2 accounts CPU time and freezes without a controller.
            found = dict.fromkeys(("unified", "cpuacct", "freezer", *_enable(path)), path)
    for role, root in mounts.items():
        if role not in found and (path := _make(root, own.get(role, "/"), name, role)):
            found[role] = path
    return found


def create(under: Groups, name: str, *, memory_bytes: int, processes: int, cpus: float) -> Groups:
    """A sandbox's own groups with their limits.

    Raises:
        OSError: the machine is out of groups, or forbids it.
    """
    groups = {role: f"{path}/{name}" for role, path in under.items()}
    try:
        for path in set(groups.values()):
            try:
                os.mkdir(path, 0o755)
            except FileNotFoundError:  # another process was the last to leave, and tidied up
                parents(path.split("/")[-2])
                os.mkdir(path, 0o755)
        for role, files in _limits(groups, memory_bytes, processes, cpus).items():
            for file, value in files.items():
                kernel.write(f"{groups[role]}/{file}", value)
    except OSError:
        remove(groups)
        raise
    return groups


def tidy(under: Groups) -> None:
    """Removes the folders of `parents` where no sandbox is left in them."""
    for path in set(under.values()):
        with suppress(OSError):
            os.rmdir(path)


def fork(groups: Groups) -> int:
    """Forks a child that is a member of the groups: 0 in the child, its pid in the parent. For one thread only.

    In the common way, by writing to `cgroup.procs`, the kernel waits for all CPUs, which takes some 20 ms. A child
    born in a version 2 group, or a thread that moves itself by a version 1 `tasks` file, need not wait.

    Raises:
        OSError: out of processes. In the child: it could not be moved.
    """
    unified = groups.get("unified")
    pid = -1
    if unified is not None:
        fd = os.open(unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        pid = kernel.fork_into(fd)
        os.close(fd)
    born_inside = pid >= 0
    if not born_inside:
        pid = os.fork()
    if pid == 0:
        for path in sorted(set(groups.values())):
            if path != unified:
                kernel.write(f"{path}/tasks", "0")
            elif not born_inside:
                kernel.write(f"{path}/cgroup.procs", "0")
    return pid


def pids(groups: Groups) -> list[int]:
    """Processes inside, by the ids of the caller's namespace. Zombies may be among them."""
    for path in groups.values():
        with suppress(OSError):
            return [int(line) for line in _read(f"{path}/cgroup.procs").split()]
    return []


def freeze(groups: Groups, *, frozen: bool, timeout_s: float = 1.0) -> bool:
    """Stops or continues everything inside; True once it is so, False where it cannot be done in time."""
    path = groups.get("freezer")
    if path is None:
        return False
    deadline = time.monotonic() + timeout_s
    v2 = os.path.exists(f"{path}/cgroup.freeze")
    with suppress(OSError):
        if v2:
            kernel.write(f"{path}/cgroup.freeze", "1" if frozen else "0")
        else:
            kernel.write(f"{path}/freezer.state", "FROZEN" if frozen else "THAWED")
        while time.monotonic() < deadline:
            if v2:
                reached = f"frozen {int(frozen)}" in _read(f"{path}/cgroup.events")
            else:
                reached = _read(f"{path}/freezer.state").strip() == ("FROZEN" if frozen else "THAWED")
            if reached:
                return True
            time.sleep(0.0005)
    return False


def is_frozen(groups: Groups) -> bool:
    """Whether somebody stopped everything inside."""
    path = groups.get("freezer", "")
    with suppress(OSError):
        if os.path.exists(f"{path}/cgroup.freeze"):
            return _read(f"{path}/cgroup.freeze").strip() == "1" or "frozen 1" in _read(f"{path}/cgroup.events")
        return _read(f"{path}/freezer.state").strip() != "THAWED"
    return False


def measure(groups: Groups) -> dict[str, int | float | None]:
    """`cpu_s`, `cpu_wait_s`, `memory_bytes_peak`, `memory_bytes`, `out_of_memory_kills`, `machine_kills`; None where
    not accounted."""
    values: dict[str, int | float | None] = dict.fromkeys(
        ("cpu_s", "cpu_wait_s", "memory_bytes_peak", "memory_bytes", "out_of_memory_kills", "machine_kills")
    )
    if path := groups.get("cpuacct"):
        with suppress(OSError, ValueError):
            if os.path.exists(f"{path}/cpu.stat") and "unified" in groups:
                values["cpu_s"] = _keys(f"{path}/cpu.stat")["usage_usec"] / 1e6
            else:
                values["cpu_s"] = int(_read(f"{path}/cpuacct.usage")) / 1e9
    if path := groups.get("unified"):
        with suppress(OSError, ValueError):
            values["cpu_wait_s"] = int(_read(f"{path}/cpu.pressure").split()[4].partition("=")[2]) / 1e6
    if path := groups.get("memory"):
        v2 = os.path.exists(f"{path}/memory.max")
        peak, now, events = (
            ("memory.peak", "memory.current", "memory.events")
            if v2
            else ("memory.max_usage_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
        )
        for key, file in (("memory_bytes_peak", peak), ("memory_bytes", now)):
            with suppress(OSError, ValueError):
                values[key] = int(_read(f"{path}/{file}"))
        with suppress(OSError, KeyError, ValueError):
            counts = _keys(f"{path}/{events}")
            own = counts["oom"] > 0 if v2 else _limit_was_hit(path, values["memory_bytes_peak"])
            values["out_of_memory_kills"] = counts["oom_kill"] if own else 0
            values["machine_kills"] = 0 if own else counts["oom_kill"]
    return values


def _limit_was_hit(path: str, peak_bytes: int | float | None) -> bool:
    """Version 1 counts kills by whatever killer, like version 2, but not how often the group itself was out of memory,
    and `memory.failcnt` stays 0 in newer kernels (seen in 6.18). What came up to its limit once, be it with files that
    could have been dropped again, is taken for out of memory: else a candidate could pass its own greed for ours."""
    return (peak_bytes or 0) >= int(_read(f"{path}/memory.limit_in_bytes")) - _LIMIT_MARGIN_BYTES


def remove(groups: Groups, *, timeout_s: float = 2.0) -> bool:
    """Kills what is inside and removes the groups; True when all are gone."""
    deadline = time.monotonic() + timeout_s
    left = set(groups.values())
    while True:
        for path in sorted(left):
            try:
                os.rmdir(path)
                left.discard(path)
            except FileNotFoundError:
                left.discard(path)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
        if not left or time.monotonic() > deadline:
            return not left
        freeze(groups, frozen=False, timeout_s=0)
        for pid in pids(groups):
            with suppress(OSError):
                os.kill(pid, 9)
        time.sleep(0.002)


def children(under: Groups) -> dict[str, Groups]:
    """Every sandbox's groups below the parents, by name: what a crash may have left."""
    found: dict[str, Groups] = {}
    for role, path in under.items():
        with suppress(OSError):
            for entry in os.scandir(path):
                if entry.is_dir(follow_symlinks=False):
                    found.setdefault(entry.name, {})[role] = entry.path
    return found


def _limits(groups: Groups, memory_bytes: int, processes: int, cpus: float) -> dict[str, dict[str, str]]:
    v2 = groups.get("unified")
    quota = str(max(1000, int(cpus * _PERIOD_US)))
    files: dict[str, dict[str, str]] = {}
    if path := groups.get("memory"):
        if path == v2:
            files["memory"] = {"memory.max": str(memory_bytes)}
            if os.path.exists(f"{path}/memory.swap.max"):
                files["memory"]["memory.swap.max"] = "0"
        else:
            files["memory"] = {"memory.limit_in_bytes": str(memory_bytes)}
            if os.path.exists(f"{path}/memory.memsw.limit_in_bytes"):
                files["memory"]["memory.memsw.limit_in_bytes"] = str(memory_bytes)
    if groups.get("pids"):
        files["pids"] = {"pids.max": str(processes)}
    if (path := groups.get("cpu")) and cpus < (os.cpu_count() or 1):
        if path == v2:
            files["cpu"] = {"cpu.max": f"{quota} {_PERIOD_US}"}
        else:
            files["cpu"] = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}
    return files


def _enable(path: str) -> list[str]:
    """Turns controllers on for the children of a version 2 group; returns those that are on."""
    parent = os.path.dirname(path)
    for folder in (parent, path):
        for controller in _V2:
            with suppress(OSError):
                kernel.write(f"{folder}/cgroup.subtree_control", f"+{controller}")
    with suppress(OSError):
        return [name for name in _read(f"{path}/cgroup.subtree_control").split() if name in _V2]
    return []


def _make(root: str, own: str, name: str, role: str) -> str | None:
    path = f"{root.rstrip('/')}{own.rstrip('/')}/{name}"
    with suppress(OSError):
        os.makedirs(path, mode=0o755, exist_ok=True)
        if os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK) and _may_move(path, role):
            return path
    return None


def _may_move(path: str, role: str) -> bool:
    """Whether a process of ours may be moved there: version 2 asks for rights on the common ancestor as well."""
    if role != "unified" or privilege.is_root():
        return True
    return os.access(f"{os.path.dirname(path)}/cgroup.procs", os.W_OK)


def _own() -> dict[str, str]:
    own: dict[str, str] = {}
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path
    return own


def _mounts() -> Groups:
    """Mount points by role. A hierarchy that shows only a part of itself (a container's) counts from that part."""
    found: Groups = {}
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        target = left.split(" ")[4]
        if kind == "cgroup2":
            found.setdefault("unified", target)
        elif kind == "cgroup":
            for controller in options.rsplit(" ", 1)[-1].split(","):
                if controller in _V1:
                    found.setdefault(controller, target)
    return found


def _keys(path: str) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split()[:2] for line in _read(path).splitlines())}


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
