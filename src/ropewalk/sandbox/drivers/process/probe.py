"""What this machine lets the driver do. It makes a small sandbox rather than look for files."""

from __future__ import annotations

import json
import os
import select
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.core.errors import UnavailableError
from ropewalk.sandbox import privilege
from ropewalk.sandbox.contract import Probe
from ropewalk.sandbox.drivers.process import bubblewrap, cgroups, counts, diagnosis
from ropewalk.sandbox.drivers.process.client import Channel, SpawnerClient
from ropewalk.sandbox.drivers.process.folders import IDS
from ropewalk.store.layout import Layout

TIMEOUT_S = 2.0
_BASE = 4_000_000_000
"""Of ids that no tenant gets."""
_ROOT = (
    "namespaces, a system call filter, 65,536 user ids per tenant of which none is the host's root; one shared kernel"
)
_ROOTLESS = "namespaces, a system call filter, one user inside, who is you outside; one shared kernel"


def probe(layout: Layout) -> Probe:
    """See the contract."""
    root = privilege.is_root()
    isolation = _ROOT if root else _ROOTLESS
    try:
        program = bubblewrap.find()
        version = bubblewrap.version(program)
    except UnavailableError as error:
        return Probe(
            driver="process", usable=False, version="", isolation=isolation, declares=(), problems=(str(error),)
        )
    parents = cgroups.parents(f"ropewalk-probe-{os.getpid()}")
    for path in set(parents.values()):
        with suppress(OSError):
            Path(path).rmdir()
    declares, problems = _restrictions(parents, root=root)
    refusals = _try(layout, program)
    return Probe(
        driver="process", usable=not refusals, version=version, isolation=isolation, declares=declares,
        problems=(*refusals, *problems),
    )  # fmt: skip


def _restrictions(parents: cgroups.Groups, *, root: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    declares = ["disk_in_memory"] if root else ["disk_in_memory", "single_user"]
    declares += counts.declared(root=root)
    missing = [role for role in ("memory", "pids", "cpu") if role not in parents]
    declares += [
        {"memory": "no_memory_limit", "pids": "no_processes_limit", "cpu": "no_cpu_limit"}[role] for role in missing
    ]
    problems = []
    if missing:
        problems.append(
            f"No control groups for {', '.join(missing)}: limits are per process instead. "
            + (
                "Mount them writable."
                if root
                else "Start with 'systemd-run --user --scope -p Delegate=yes …', or as root."
            )
        )
    return tuple(declares), (*problems, *counts.problems(root=root))


def _try(layout: Layout, program: bubblewrap.Program) -> tuple[str, ...]:
    """Makes a sandbox that runs `true`; what stood in the way."""
    place = next(path for path in (layout.root, *layout.root.parents) if path.is_dir() and os.access(path, os.W_OK))
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=place) as scratch:
        layer = Path(scratch, "layer")
        layer.mkdir()
        line = bubblewrap.arguments(program, ("/bin/true",), hostname="probe", attached=True)
        at = line.index("/tmp/m")
        line[at - 1 : at + 2] = ["--ro-bind", "/", "/", "--bind", "/tmp/m", "/tmp"]
        message: dict[str, Any] = {
            "name": "probe", "folder": scratch, "attached": True, "base": _BASE if privilege.is_root() else None,
            "parents": {}, "limits": {}, "rlimits": {}, "boot_id": "probe\n", "configuration": "",
            "program": program.inside, "argv": line,
            "plan": {"layers": [str(layer)], "binds": program.binds, "inside": {}, "disk_bytes": 1 << 20,
                     "upper_mode": 0o755, "owner": _BASE if privilege.is_root() else 0},
        }  # fmt: skip
        return _outcome(message)


def _outcome(message: dict[str, Any]) -> tuple[str, ...]:
    client = SpawnerClient()
    channel: Channel | None = None
    try:
        with socket.socket(socket.AF_UNIX) as unused:
            channel = client.request(message, unused)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            ready, _, _ = select.select([channel.socket], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return (f"A trial sandbox did not end within {TIMEOUT_S:.0f} s.",)
            answer = channel.now()
            if answer is None:
                return ("The sandbox spawner ended; run it again to see its message.",)
            if answer["event"] == "ended" and answer["status"] == 0:
                return ()
            if answer["event"] in ("failed", "ended"):
                text = str(answer.get("error") or answer.get("stderr") or json.dumps(answer))
                return (text, *diagnosis.reasons(text, int(answer.get("errno") or 0)))
    except UnavailableError as error:
        return (str(error),)
    finally:
        if channel is not None:
            channel.close()
        client.close()


assert _BASE + IDS < 2**32
