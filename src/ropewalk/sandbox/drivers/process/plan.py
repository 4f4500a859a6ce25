"""From a specification to what the spawner is asked to do."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tempfile
import uuid
from pathlib import Path
from typing import Any

from ropewalk.core.errors import CallerError
from ropewalk.sandbox import agent, privilege
from ropewalk.sandbox.contract import Lease, SandboxRecord, SandboxSpec
from ropewalk.sandbox.drivers.process import bubblewrap, cgroups
from ropewalk.sandbox.drivers.process.folders import Folder, Folders
from ropewalk.sandbox.drivers.process.spawner import CONFIGURATION_FD, LISTEN_FD
from ropewalk.sandbox.images import PATH_VARIABLE, ImageRecord, ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.security.tenants import check_tenant
from ropewalk.store.layout import Layout

CONFIGURATION_BYTES_MAX = 96 * 1024
OPEN_FILES_MAX = 4096
PENDING_SIGNALS_MAX = 1024
MESSAGE_QUEUES_BYTES_MAX = 800 * 1024
"""The kernel's own default, mq_overview(7); none where all sandboxes draw on the allowance of one user."""
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_spec(spec: SandboxSpec) -> None:
    """Raises:
    CallerError: a field that no sandbox can have. The message names it.
    """
    check_tenant(spec.tenant)
    workdir = Path(spec.workdir)
    if not workdir.is_absolute() or ".." in workdir.parts or "\0" in spec.workdir:
        raise CallerError(f"workdir {spec.workdir!r} is not an absolute path without '..'.")
    if not _HOSTNAME.fullmatch(spec.hostname):
        raise CallerError(f"hostname {spec.hostname!r} is not one: letters, digits and '-', at most 63.")
    for name, least in (("memory_bytes", 16 << 20), ("disk_bytes", 1 << 20), ("processes_max", 4)):
        if getattr(spec, name) < least:
            raise CallerError(f"{name} is {getattr(spec, name)}; the least is {least}.")
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if spec.memory_bytes > there:
        raise CallerError(
            f"memory_bytes is {spec.memory_bytes} ({spec.memory_bytes >> 20} MiB); this machine has {there >> 20} MiB.",
            next_step="give less.",
        )
    if not 0.01 <= spec.cpus <= 1024:
        raise CallerError(f"cpus is {spec.cpus}; give 0.01 to 1024.")
    if not spec.idle_timeout_s > 0:
        raise CallerError(f"idle_timeout_s is {spec.idle_timeout_s}; give more than 0.")
    for name, value in spec.env.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise CallerError(f"{name!r} is not the name of a variable, or its value holds a zero byte.")


def group_parents(layout: Layout) -> cgroups.Groups:
    """Where the control groups of this state directory's sandboxes go. Made on the way; empty: nowhere."""
    mark = hashlib.sha256(os.fsencode(layout.root)).hexdigest()[:12]
    return cgroups.parents(f"ropewalk-{mark}")


class Planner:
    """Makes requests; keeps what is the same for all of them."""

    def __init__(self, layout: Layout, layers: LayerStore, images: ImageStore, folders: Folders) -> None:
        self._layout = layout
        self._layers = layers
        self._images = images
        self._folders = folders
        self._program: bubblewrap.Program | None = None
        self._parents: cgroups.Groups | None = None
        self._agent: dict[str, str] = {}
        self._bottoms: dict[str, str] = {}
        self._known: dict[str, ImageRecord] = {}

    def is_quick(self, spec: SandboxSpec) -> bool:
        """Whether `message` needs no thread: everything is known, and its layers are small or were read before."""
        image, bottom = self._known.get(spec.image), self._bottoms.get(spec.workdir)
        if self._program is None or image is None or bottom is None:
            return False
        return self._layers.is_quick((bottom, *image.layers, *spec.layers))

    def message(self, record: SandboxRecord, folder: Folder) -> dict[str, Any]:
        """What to send to the spawner.

        Raises:
            CallerError: unknown image or layer.
            IntegrityError: a layer was changed.
            UnavailableError: bubblewrap is missing, or there is no room.
        """
        spec = record.spec
        image = self._image(spec.image)
        stack = [self._bottom(spec.workdir), *image.layers, *spec.layers]
        trees = [str(self._layers.check(layer)) for layer in stack]
        program = self._prepare()
        root = privilege.is_root()
        base = self._folders.base(spec.tenant) if root else None
        parents = self._parents or {}
        suffix = f"-{record.id[-8:].lower()}" if record.snapshot else ""
        attached = spec.lease is Lease.ATTACHED
        configuration = {
            "listen_fd": LISTEN_FD, "lease": str(spec.lease), "idle_timeout_s": spec.idle_timeout_s,
            "workdir": spec.workdir, "env": {"PATH": PATH_VARIABLE, **image.env, **spec.env},
            "memory_bytes": spec.memory_bytes, "token": secrets.token_hex(16),
        }  # fmt: skip
        text = json.dumps(configuration)
        if len(text) > CONFIGURATION_BYTES_MAX:
            raise CallerError(f"The sandbox's variables take {len(text)} bytes, {CONFIGURATION_BYTES_MAX} are allowed.")
        return {
            "name": folder.path.name,
            "folder": str(folder.path),
            "attached": attached,
            "base": base,
            "parents": parents,
            "limits": {
                "memory_bytes": spec.memory_bytes + spec.disk_bytes, "processes": spec.processes_max, "cpus": spec.cpus,
            },
            "rlimits": _rlimits(spec, parents),
            "boot_id": f"{uuid.uuid4()}\n",
            "configuration": text,
            "plan": {
                "layers": trees, "binds": program.binds, "inside": self._agent, "disk_bytes": spec.disk_bytes,
                "upper_mode": Path(trees[-1]).stat().st_mode & 0o1777, "owner": base or 0,
            },
            "program": program.inside,
            "argv": bubblewrap.arguments(
                program, (f"{agent.PLACE}/{agent.NAME}", f"@/proc/self/fd/{CONFIGURATION_FD}"),
                hostname=spec.hostname[: 63 - len(suffix)] + suffix, attached=attached,
            ),
        }  # fmt: skip

    def _prepare(self) -> bubblewrap.Program:
        """What the agent runs with: itself alone, whatever image the sandbox has."""
        if self._program is None:
            self._parents = group_parents(self._layout)
            program = agent.program().read_bytes()
            layer = self._layers.add_files({agent.NAME: program}, modes={agent.NAME: 0o755})
            self._agent = {agent.PLACE.lstrip("/"): str(self._layers.path(layer.digest))}
            self._program = bubblewrap.find()
        return self._program

    def _image(self, digest: str) -> ImageRecord:
        if digest not in self._known:  # records never change
            self._known[digest] = self._images.get(digest)
        return self._known[digest]

    def _bottom(self, workdir: str) -> str:
        """The lowest layer: folders that must exist, whatever the image holds."""
        if workdir not in self._bottoms:
            with tempfile.TemporaryDirectory(dir=self._layout.layers, prefix=".staging-") as scratch:
                root = Path(scratch, "root")
                for name in ("proc", "dev", "tmp", agent.PLACE.lstrip("/"), workdir.lstrip("/")):
                    (root / name).mkdir(parents=True, exist_ok=True)
                (root / "tmp").chmod(0o1777)
                self._bottoms[workdir] = self._layers.add_tree(root).digest
        return self._bottoms[workdir]


def _rlimits(spec: SandboxSpec, parents: cgroups.Groups) -> dict[str, int]:
    """Limits of each process; the coarse stand-ins for control groups where there are none."""
    rlimits = {
        "RLIMIT_CORE": 0, "RLIMIT_NOFILE": OPEN_FILES_MAX,
        "RLIMIT_MSGQUEUE": MESSAGE_QUEUES_BYTES_MAX if privilege.is_root() else 0,
        "RLIMIT_SIGPENDING": PENDING_SIGNALS_MAX,
    }  # fmt: skip
    if "memory" not in parents:
        rlimits["RLIMIT_AS"] = spec.memory_bytes
    if "pids" not in parents:
        rlimits["RLIMIT_NPROC"] = spec.processes_max
    return rlimits
