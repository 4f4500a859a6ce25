"""A sandbox driver with no isolation at all: the real agent, started as a process of this machine.

For tests of what lies above the driver, and of the agent itself. A "sandbox" here is a folder and an agent whose
workdir it is; absolute paths are this machine's. Snapshots copy the folder. Never for code that is not trusted.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream

from ropewalk.core.clock import SystemClock
from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import content_id
from ropewalk.sandbox.agent import program
from ropewalk.sandbox.contract import (
    Lease,
    Probe,
    SandboxGoneError,
    SandboxRecord,
    SandboxSpec,
    SandboxStats,
    SnapshotRecord,
)
from ropewalk.sandbox.sandboxes import MadeOfLayers, Sandboxes
from ropewalk.store.layout import Layout

NAMESPACE = (
    "unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    "--pid", "--fork", "--kill-child", "--mount-proc", "--mount",
)  # fmt: skip
"""As `prefix`: the agent is process 1 of a process namespace of its own, as in a real sandbox. Root inside."""


def namespaces_work() -> bool:
    """Whether this machine lets us make what NAMESPACE asks for."""
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


class NoImages:
    """An image store without images."""

    def everybodys(self) -> tuple[MadeOfLayers, ...]:
        return ()

    def check_usable(self, digest: str, tenant: str) -> None:
        return

    def get(self, digest: str) -> MadeOfLayers:
        raise CallerError(f"There is no image {digest!r}.")


class NoLayers:
    """A layer store without layers."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def check_usable(self, digests: Iterable[str], tenant: str) -> None:
        return

    def check_unchanged(self, digests: Iterable[str]) -> None:
        return

    def claim(self, digest: str, tenant: str) -> None:
        return

    def transient(self) -> set[str]:
        return set()

    def settle(self, digests: Iterable[str]) -> None:
        pass

    def discard(self, digest: str) -> None:
        self.removed.append(digest)


def unsandboxed_service(root: Path, *, prefix: tuple[str, ...] = NAMESPACE) -> Sandboxes:
    """A service with no isolation below `root`, whose path should be short (it holds sockets)."""
    folder = root / "s"
    folder.mkdir(parents=True)
    driver = UnsandboxedDriver(folder, prefix=prefix)
    return Sandboxes(driver, Layout(root / "state").ensure(), images=NoImages(), layers=NoLayers())


def unsandboxed_spec(**fields: Any) -> SandboxSpec:
    """A spec that the driver takes."""
    return SandboxSpec(**{"tenant": "tests", "image": "0" * 64, **fields})


class UnsandboxedDriver:
    """Keeps everything under `root`; the agents die with this process's `destroy` calls, or idle out."""

    def __init__(self, root: Path, *, prefix: tuple[str, ...] = ()) -> None:
        self.root = root
        self.out_of_memory_kills = 0
        """What `stats` reports: tests raise it."""
        self.figures: Callable[[], dict[str, Any]] = dict
        """More of what `stats` reports."""
        self._prefix = prefix
        self._agents: dict[str, tuple[SandboxRecord, subprocess.Popen[bytes]]] = {}
        self._program = program()

    def probe(self) -> Probe:
        return Probe(
            driver="unsandboxed", usable=True, version="1", isolation="none", declares=("no_isolation",), problems=()
        )

    def workdir(self, id: str) -> Path:
        """The folder that stands for a sandbox's disk."""
        return self.root / id.partition(":")[2]

    def process(self, id: str) -> subprocess.Popen[bytes]:
        """The agent, or what was put before it."""
        return self._agents[id][1]

    async def create(self, spec: SandboxSpec, *, id: str) -> SandboxRecord:
        return self._start(spec, id, None)

    async def snapshot(self, id: str, *, label: str = "") -> SnapshotRecord:
        record = self._alive(id)
        snapshot = SnapshotRecord(
            id=content_id("snapshot", [id, label]), driver="unsandboxed", tenant=record.spec.tenant,
            parent=record.snapshot, spec=record.spec, layers=(), memory=False, unique_bytes=0,
            data_class=record.spec.data_class, label=label, created_s=SystemClock().now_s(),
        )  # fmt: skip
        shutil.copytree(self.workdir(id), self.workdir(snapshot.id), symlinks=True, dirs_exist_ok=True)
        return snapshot

    async def fork(self, snapshot: SnapshotRecord, *, id: str, lease: Lease = Lease.ATTACHED) -> SandboxRecord:
        if not self.workdir(snapshot.id).is_dir():
            raise CallerError(f"There is no snapshot {snapshot.id}.")
        shutil.copytree(self.workdir(snapshot.id), self.workdir(id), symlinks=True)
        return self._start(snapshot.spec, id, snapshot.id)

    async def destroy(self, id: str) -> None:
        if found := self._agents.pop(id, None):
            process = found[1]
            if process.poll() is None:
                process.send_signal(signal.SIGTERM if not self._prefix else signal.SIGKILL)
                process.send_signal(signal.SIGCONT)  # tests stop agents
            await asyncio.to_thread(process.wait)
        shutil.rmtree(self.workdir(id), ignore_errors=True)
        self._socket(id).unlink(missing_ok=True)

    async def stats(self, id: str) -> SandboxStats:
        if id not in self._agents:
            raise SandboxGoneError(f"There is no sandbox {id}.", termination=Termination.EVICTED)
        blank = dict.fromkeys(SandboxStats.__struct_fields__)
        return SandboxStats(**{**blank, "out_of_memory_kills": self.out_of_memory_kills, **self.figures()})

    async def stream(self, id: str) -> ByteStream:
        self._alive(id)
        try:
            return await anyio.connect_unix(self._socket(id))
        except OSError as error:
            raise SandboxGoneError(f"The agent of {id} does not answer: {error}.") from error

    async def records(self) -> tuple[SandboxRecord, ...]:
        return tuple(record for record, process in self._agents.values() if process.poll() is None)

    async def record(self, id: str) -> SandboxRecord | None:
        return self._agents[id][0] if id in self._agents else None

    async def reap(self) -> tuple[str, ...]:
        return ()

    def _socket(self, id: str) -> Path:
        return self.root / f"{id.partition(':')[2][-8:]}.sock"

    def _alive(self, id: str) -> SandboxRecord:
        if id not in self._agents or self._agents[id][1].poll() is not None:
            raise SandboxGoneError(f"There is no sandbox {id}.")
        return self._agents[id][0]

    def _start(self, spec: SandboxSpec, id: str, snapshot: str | None) -> SandboxRecord:
        if id in self._agents:
            return self._agents[id][0]
        self.workdir(id).mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._socket(id)))
            listener.listen(64)
            config = {
                "listen_fd": listener.fileno(), "lease": spec.lease, "idle_timeout_s": spec.idle_timeout_s,
                "workdir": str(self.workdir(id)), "env": spec.env, "hostname": spec.hostname,
            }  # fmt: skip
            process = subprocess.Popen(
                [*self._prefix, str(self._program), json.dumps(config)], pass_fds=[listener.fileno()]
            )
        record = SandboxRecord(
            id=id, driver="unsandboxed", spec=spec, snapshot=snapshot, created_s=SystemClock().now_s()
        )
        self._agents[id] = (record, process)
        return record
