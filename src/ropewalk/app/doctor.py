"""What this machine can do, check by check, and how to get the rest. Changes nothing but makes the state directory."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from ropewalk.core.errors import RopewalkError
from ropewalk.core.limits import GIB
from ropewalk.core.records import Record
from ropewalk.lake.index import index_url
from ropewalk.machinery.profile import Profile
from ropewalk.orchestration.contract import FleetProbe
from ropewalk.sandbox.contract import Probe
from ropewalk.store.layout import Layout

DISK_BYTES_WANTED: Final = 2 * GIB
MEMORY_BYTES_WANTED: Final = 2 * GIB
KERNEL_WANTED: Final = (5, 12)
"""Idmapped mounts (mount_setattr) came with Linux 5.12, overlayfs in user namespaces with 5.11."""
CONNECT_TIMEOUT_S: Final = 3.0
_NEEDED: Final = ("machine", "sandbox", "fleet", "state")
"""What the main job cannot run without."""
_LIMITING: Final = ("cpu", "memory", "pids")
"""Control group controllers that bound a sandbox."""
_IN_WORDS: Final = {
    "disk_in_memory": "what sandboxes write is held in memory, not on disk",
    "single_user": "a sandbox has one user, who is you outside",
    "no_memory_limit": "memory is limited per process, not per sandbox",
    "no_processes_limit": "the number of processes is not limited per sandbox",
    "no_cpu_limit": "CPU time is shared, not limited per sandbox",
    "no_cpu_accounting": "CPU time of a sandbox is not counted",
    "shared_counts": "what the kernel counts per user (inotify instances above all) is your own user's, in small parts",
    "no_inotify_limit": "one sandbox can take all inotify instances of your user",
    "memory_fork": "forks keep running processes",
    "no_isolation": "sandboxes are plain processes, and nothing keeps them from the rest of this machine",
}
"""What drivers say of themselves (`sandbox.contract.Probe.declares`), for people."""


class Check(Record):
    """One thing looked at."""

    area: str
    name: str
    state: Literal["ok", "limited", "missing"]
    """`limited`: works with less; `missing`: something will not work."""
    detail: str
    next_step: str = ""


class Diagnosis(Record):
    """All checks, and whether the main job can run here."""

    ready: bool
    checks: tuple[Check, ...]
    probes: tuple[Probe, ...]


def examine(
    profile: Profile,
    layout: Layout,
    *,
    probe: Callable[[], Probe],
    fleet: Callable[[], FleetProbe],
    network: bool = True,
) -> Diagnosis:
    """Looks at everything. What cannot be looked at is a check of its own, and ends nothing.

    Args:
        profile: decides whether the network is asked at all.
        layout: of the state directory.
        probe: of the profile's sandbox driver.
        fleet: of its fleet driver.
        network: whether to try to reach the package index.
    """
    checks = [*_looked("machine", _system), *_looked("state", partial(_state, layout))]
    probes: list[Probe] = []
    try:
        probes.append(probe())
        checks += _driver(probes[0])
    except (RopewalkError, OSError) as error:
        said = error if isinstance(error, RopewalkError) else RopewalkError(str(error))
        checks.append(
            Check(area="sandbox", name="driver", state="missing", detail=said.message, next_step=said.next_step)
        )
    checks += _looked("fleet", lambda: _fleet(fleet()))
    checks += _looked("kernel", _kernel_settings)
    if network:
        checks += _looked("network", partial(_index, profile))
    checks += _looked("keys", partial(_keys, layout))
    blocking = [check for check in checks if check.state == "missing" and check.area in _NEEDED]
    return Diagnosis(ready=not blocking, checks=tuple(checks), probes=tuple(probes))


def _looked(area: str, look: Callable[[], Iterator[Check]]) -> list[Check]:
    """What was found, and where that broke off, why: whoever needs a diagnosis has something that does not work."""
    found: list[Check] = []
    try:
        found.extend(look())
    except (RopewalkError, OSError) as error:
        said = error.message if isinstance(error, RopewalkError) else str(error)
        found.append(
            Check(
                area=area, name="not looked at", state="limited", detail=said,
                next_step=getattr(error, "next_step", "") or "try as the user whom that belongs to.",
            )
        )  # fmt: skip
    return found


def _check(
    area: str, name: str, *, good: bool, detail: str, otherwise: str, worse: Literal["limited", "missing"] = "limited"
) -> Check:
    """`otherwise` is what to do where it is not good."""
    state: Literal["ok", "limited", "missing"] = "ok" if good else worse
    return Check(area=area, name=name, state=state, detail=detail, next_step="" if good else otherwise)


def _system() -> Iterator[Check]:
    yield _check(
        "machine",
        "Python",
        good=sys.version_info >= (3, 11),
        detail=f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}",
        otherwise="install Python 3.11 or later.",
        worse="missing",
    )
    has_venv = importlib.util.find_spec("venv") is not None and importlib.util.find_spec("ensurepip") is not None
    yield _check(
        "machine",
        "venv",
        good=has_venv,
        detail="can make virtual environments" if has_venv else "ensurepip is not there",
        otherwise="apt install python3-venv (Debian, Ubuntu).",
    )
    release = platform.release()
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    yield _check(
        "machine",
        "kernel",
        good=sys.platform == "linux" and version >= KERNEL_WANTED,
        detail=f"{platform.system()} {release}",
        otherwise=f"Linux {'.'.join(map(str, KERNEL_WANTED))} or later is needed.",
        worse="missing",
    )
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield _check(
        "machine",
        "memory",
        good=memory_bytes >= MEMORY_BYTES_WANTED,
        detail=f"{memory_bytes / GIB:.1f} GiB, {os.cpu_count()} CPUs",
        otherwise="run fewer episodes at once (run.concurrency).",
    )


def _state(layout: Layout) -> Iterator[Check]:
    try:
        layout.ensure()
        with tempfile.NamedTemporaryFile(dir=layout.root):
            pass
    except (RopewalkError, OSError) as error:
        detail = error.message if isinstance(error, RopewalkError) else f"{layout.root}: {error.strerror}"
        otherwise = "set ROPEWALK_STATE to a folder you may write to."
        yield _check("state", "state directory", good=False, detail=detail, otherwise=otherwise, worse="missing")
        return
    yield _check("state", "state directory", good=True, detail=str(layout.root), otherwise="")
    free = shutil.disk_usage(layout.root).free
    yield _check(
        "state",
        "disk",
        good=free >= DISK_BYTES_WANTED,
        detail=f"{free / GIB:.1f} GiB free",
        otherwise="make room, or set ROPEWALK_STATE elsewhere.",
    )


def _driver(probe: Probe) -> Iterator[Check]:
    state: Literal["ok", "limited", "missing"] = (
        "missing" if not probe.usable else "limited" if probe.problems else "ok"
    )
    yield Check(
        area="sandbox", name=f"driver {probe.driver}", state=state, detail=f"{probe.version}; {probe.isolation}",
        next_step=" ".join(probe.problems),
    )  # fmt: skip
    if probe.declares:
        said = "; ".join(_IN_WORDS.get(word, word.replace("_", " ")) for word in probe.declares)
        yield Check(area="sandbox", name="good to know", state="ok", detail=said)


def _fleet(probe: FleetProbe) -> Iterator[Check]:
    room, notes = probe.capacity, "; ".join(probe.notes)
    detail = f"room for sandboxes of {room.cpus:g} CPUs and {room.memory_bytes / GIB:.1f} GiB together; {notes}"
    if probe.usable:
        yield Check(area="fleet", name=f"driver {probe.driver}", state="ok", detail=detail)
    else:
        yield Check(area="fleet", name=f"driver {probe.driver}", state="missing", detail="not usable", next_step=notes)


def _keys(layout: Layout) -> Iterator[Check]:
    try:
        there = (layout.keys / "keys.json").exists()
    except PermissionError:
        yield Check(
            area="keys", name="signing keys", state="limited",
            detail=f"{layout.keys} belongs to another user, and you may not read it",
            next_step="run as that user, or set ROPEWALK_STATE to a folder of your own.",
        )  # fmt: skip
        return
    yield _check(
        "keys",
        "signing keys",
        good=there,
        detail="there" if there else "none yet; the first run makes them",
        otherwise="`ropewalk keys init --passphrase env:NAME` makes encrypted ones now.",
    )


def _kernel_settings() -> Iterator[Check]:
    switched_off = _read("/proc/sys/user/max_user_namespaces") == "0"
    closed = _read("/proc/sys/kernel/unprivileged_userns_clone") == "0"
    restricted = _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1"
    if switched_off:
        detail, otherwise = "switched off for everybody", "sysctl user.max_user_namespaces=15000"
    elif os.geteuid() != 0 and (closed or restricted):
        setting = (
            "kernel.apparmor_restrict_unprivileged_userns=0" if restricted else "kernel.unprivileged_userns_clone=1"
        )
        detail, otherwise = "forbidden to users who are not root", f"sysctl {setting}, or start as root."
    else:
        detail, otherwise = "allowed", ""
    yield _check("kernel", "user namespaces", good=not otherwise, detail=detail, otherwise=otherwise, worse="missing")
    controllers = _read("/sys/fs/cgroup/cgroup.controllers")
    old = _old_controllers() if controllers is None else {}
    if old and all(os.access(folder, os.W_OK) for folder in old.values()) and len(old) == len(_LIMITING):
        detail, otherwise = f"v1 ({' '.join(sorted(old))})", ""
    elif old:
        detail = f"v1 ({' '.join(sorted(old))}), not wholly ours; rlimits are used for the rest"
        otherwise = "start as root, or boot with systemd.unified_cgroup_hierarchy=1 and delegate."
    elif controllers is None:
        detail = "no cgroup v2 at /sys/fs/cgroup; rlimits are used instead"
        otherwise = "boot with systemd.unified_cgroup_hierarchy=1 for limits and accounting by cgroup."
    elif not os.access("/sys/fs/cgroup", os.W_OK):
        detail = f"v2 ({controllers}), not delegated; rlimits are used instead"
        otherwise = "run under `systemd-run --user --scope -p Delegate=yes`."
    else:
        detail, otherwise = f"v2 ({controllers})", ""
    yield _check("kernel", "cgroups", good=not otherwise, detail=detail, otherwise=otherwise)


def _old_controllers() -> dict[str, str]:
    """Mount points of the version 1 controllers that limit sandboxes. cgroups(7), proc_pid_mountinfo(5)."""
    found: dict[str, str] = {}
    for line in (_read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        names = options.rpartition(" ")[2].split(",") if kind == "cgroup" else []
        found |= {name: left.split(" ")[4] for name in names if name in _LIMITING}
    return found


def _index(profile: Profile) -> Iterator[Check]:
    try:
        profile.allow_source("pypi")
    except RopewalkError as error:
        yield Check(area="network", name="package index", state="ok", detail=f"not asked: {error.message}")
        return
    parts = urlsplit(index_url(None))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    answers = False
    with suppress(OSError):
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_TIMEOUT_S).close()
        answers = True
    yield _check(
        "network", "package index", good=answers,
        detail=f"{parts.hostname} {'answers' if answers else 'does not answer'}",
        otherwise="name local directories or archives as sources, or set PIP_INDEX_URL.",
    )  # fmt: skip


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None
