"""Saving a sandbox's disk: its writable layer becomes a stored one."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.records import canonical_bytes, content_id, decode_own
from ropewalk.sandbox import privilege
from ropewalk.sandbox.contract import Lease, SandboxGoneError, SandboxRecord, SandboxSpec, SnapshotRecord
from ropewalk.sandbox.drivers.process import cgroups, processes
from ropewalk.sandbox.drivers.process.folders import IDS, Folder, Processes
from ropewalk.sandbox.flatten import flatten
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.trees import Owner
from ropewalk.store.layout import Layout


def save(
    layout: Layout, layers: LayerStore, folder: Folder, record: SandboxRecord, *, label: str, now_s: float
) -> SnapshotRecord:
    """Freezes the sandbox, copies what it wrote, lets it go on, and records the outcome.

    Raises:
        SandboxGoneError: it is dead, or dies meanwhile.
        UnavailableError: no room.
    """
    found = folder.processes()
    if found is None or not found.alive():
        raise SandboxGoneError(f"Sandbox {record.id} is dead; its disk is gone.")
    known = layers.digests()
    with _frozen(found):
        try:
            upper = os.open(f"/proc/{found.pid}/root/tmp/w/u", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxGoneError(f"Sandbox {record.id} died: {error.strerror}.") from error
        try:
            if not found.alive():
                raise SandboxGoneError(f"Sandbox {record.id} died.")
            with os.scandir(upper) as members:
                empty = next(members, None) is None
            layer = None if empty else layers.add_tree(upper, owner=_owner(os.fstat(upper).st_uid))
        finally:
            os.close(upper)
    stack = record.spec.layers
    unique = 0
    if layer is not None:
        stack = (*stack, layer.digest)
        unique = 0 if layer.digest in known else layer.bytes
    if len(stack) > limits.SNAPSHOT_LAYERS_MAX:
        merged = flatten(layers, stack)
        stack, unique = (merged.digest,), merged.bytes
    return _keep(layout, record, stack, unique_bytes=unique, label=label, now_s=now_s)


def check(layout: Layout, snapshot: SnapshotRecord, driver: str) -> None:
    """Raises:
    CallerError: another driver's, or not stored here.
    IntegrityError: not what its id says.
    """
    if snapshot.driver != driver:
        raise CallerError(f"{snapshot.id} was made by the driver {snapshot.driver!r}, not by {driver!r}.")
    stored = load(layout, snapshot.id)
    if stored.layers != snapshot.layers or snapshot.id != _id(snapshot.spec, snapshot.layers):
        raise IntegrityError(f"{snapshot.id} does not hold the layers that its id stands for.")


def load(layout: Layout, id: str) -> SnapshotRecord:
    """A stored record.

    Raises:
        CallerError: there is none.
        IntegrityError: it is damaged.
    """
    try:
        return decode_own(_path(layout, id).read_bytes(), SnapshotRecord)
    except FileNotFoundError:
        raise CallerError(f"There is no snapshot {id!r}.", next_step="see `ropewalk sandbox ls`.") from None


def _path(layout: Layout, id: str) -> Path:
    if not re.fullmatch(r"snapshot:[0-9a-f]{32}", id):
        raise CallerError(f"{id!r} is not the id of a snapshot.")
    return layout.snapshots / f"{id.partition(':')[2]}.json"


def _id(spec: SandboxSpec, layers: tuple[str, ...]) -> str:
    """Equal states have equal ids: what decides a child's behaviour counts, how long it lives and labels do not."""
    plain = msgspec.to_builtins(spec)
    for name in ("lease", "labels", "layers", "idle_timeout_s"):
        del plain[name]
    return content_id("snapshot", {"spec": plain, "layers": layers})


def _keep(
    layout: Layout, record: SandboxRecord, layers: tuple[str, ...], *, unique_bytes: int, label: str, now_s: float
) -> SnapshotRecord:
    spec = msgspec.structs.replace(record.spec, layers=layers, lease=Lease.ATTACHED)
    id = _id(spec, layers)
    path = _path(layout, id)
    if path.exists():
        return msgspec.structs.replace(load(layout, id), label=label)
    saved = SnapshotRecord(
        id=id, driver=record.driver, tenant=spec.tenant, parent=record.snapshot, spec=spec, layers=layers, memory=False,
        unique_bytes=unique_bytes, data_class=spec.data_class, label=label, created_s=now_s,
    )  # fmt: skip
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        fresh.write_bytes(canonical_bytes(saved))
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise UnavailableError(f"The snapshot cannot be recorded at {path}: {error.strerror}.") from error
    return saved


def _owner(base: int) -> Owner:
    """From the host's ids back to those inside; without root there is only one."""
    if not privilege.is_root():
        return lambda uid, gid: (0, 0)

    def shifted(uid: int, gid: int) -> tuple[int, int]:
        return (uid - base if 0 <= uid - base < IDS else 65534, gid - base if 0 <= gid - base < IDS else 65534)

    return shifted


@contextmanager
def _frozen(found: Processes) -> Iterator[None]:
    """Nothing inside runs meanwhile."""
    if "freezer" in found.groups:
        try:
            if not cgroups.freeze(found.groups, frozen=True):
                raise SandboxGoneError("The sandbox could not be frozen.")
            yield
        finally:
            cgroups.freeze(found.groups, frozen=False)
        return
    stopped: dict[int, int] = {}
    try:
        while fresh := _running(found.init_pid, stopped):
            for pid, started in fresh.items():
                with suppress(OSError):
                    os.kill(pid, signal.SIGSTOP)
                stopped[pid] = started
        yield
    finally:
        for pid, started in stopped.items():
            if processes.start_time(pid) == started:
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)


def _running(init_pid: int, stopped: dict[int, int]) -> dict[int, int]:
    """Processes inside that are not stopped yet, by start time; those that stopped themselves stay out of it."""
    found = {}
    for pid in processes.inside(init_pid):
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"T", b"t", b"Z", b"X") and pid not in stopped:
                found[pid] = int(fields[19])
            elif pid in stopped and fields[0] not in (b"T", b"t", b"Z", b"X"):
                time.sleep(0.0005)  # the signal is on its way
                found[pid] = int(fields[19])
    return found
