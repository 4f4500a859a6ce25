"""Saving a sandbox's disk: its writable layer becomes a stored one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.records import content_id
from ropewalk.sandbox import privilege
from ropewalk.sandbox.contract import Lease, SandboxGoneError, SandboxRecord, SandboxSpec, SnapshotRecord
from ropewalk.sandbox.drivers.process import cgroups, processes
from ropewalk.sandbox.drivers.process.folders import IDS, Folder, Processes
from ropewalk.sandbox.flatten import flatten
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.trees import Owner

FREEZE_TIMEOUT_S = 5.0
_UNSTOPPABLE = f"The sandbox's processes did not stop within {FREEZE_TIMEOUT_S:.0f} s."


def save(layers: LayerStore, folder: Folder, record: SandboxRecord, *, label: str, now_s: float) -> SnapshotRecord:
    """Freezes the sandbox, copies what it wrote, lets it go on, and says what came out. Keeping that is the caller's.

    Raises:
        CallerError: its disk holds what no layer may: files of more bytes than the disk has (holes), or too deep.
        SandboxGoneError: it is dead, or dies meanwhile.
        UnavailableError: no room, or it cannot be stopped.
    """
    found = folder.processes()
    if found is None or not found.alive():
        raise SandboxGoneError(f"Sandbox {record.id} is dead; its disk is gone.")
    known = layers.digests()
    with folder.saving(wait=True), _frozen(found):
        try:
            upper = os.open(f"/proc/{found.pid}/root/tmp/w/u", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxGoneError(f"Sandbox {record.id} died: {error.strerror}.") from error
        try:
            if not found.alive():
                raise SandboxGoneError(f"Sandbox {record.id} died.")
            with os.scandir(upper) as members:
                empty = next(members, None) is None
            # Files with holes may be larger than the disk they lie on; written out they would fill this machine's.
            layer = None if empty else layers.add_tree(
                upper, owner=_owner(os.fstat(upper).st_uid), bytes_max=record.spec.disk_bytes, transient=True
            )  # fmt: skip
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
    # What children get anew does not belong to the state: whoever saves it first would decide for all.
    spec = msgspec.structs.replace(
        record.spec, layers=stack, lease=Lease.ATTACHED, labels={}, idle_timeout_s=limits.SANDBOX_IDLE_TIMEOUT_S
    )
    return SnapshotRecord(
        id=_id(spec, stack), driver=record.driver, tenant=spec.tenant, parent=record.snapshot, spec=spec, layers=stack,
        memory=False, unique_bytes=unique, data_class=spec.data_class, label=label, created_s=now_s,
    )  # fmt: skip


def check(snapshot: SnapshotRecord, driver: str) -> None:
    """Raises:
    CallerError: another driver's.
    IntegrityError: not what its id says.
    """
    if snapshot.driver != driver:
        raise CallerError(f"{snapshot.id} was made by the driver {snapshot.driver!r}, not by {driver!r}.")
    if snapshot.id != _id(snapshot.spec, snapshot.layers):
        raise IntegrityError(f"{snapshot.id} does not hold the layers that its id stands for.")


def _id(spec: SandboxSpec, layers: tuple[str, ...]) -> str:
    """Equal states have equal ids: what decides a child's behaviour counts, how long it lives and labels do not."""
    plain = msgspec.to_builtins(spec)
    for name in ("lease", "labels", "layers", "idle_timeout_s"):
        del plain[name]
    if not spec.user:
        del plain["user"]  # as it was before there was one, so that older snapshots keep their ids
    return content_id("snapshot", {"spec": plain, "layers": layers})


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
            if not cgroups.freeze(found.groups, frozen=True, timeout_s=FREEZE_TIMEOUT_S):
                raise UnavailableError(_UNSTOPPABLE, retry_after_s=1.0)
            yield
        finally:
            cgroups.freeze(found.groups, frozen=False)
        return
    stopped: dict[int, int] = {}
    try:
        deadline = time.monotonic() + FREEZE_TIMEOUT_S
        while fresh := _running(found.init_pid, stopped):
            if time.monotonic() > deadline:
                raise UnavailableError(_UNSTOPPABLE, retry_after_s=1.0)
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
    """Processes inside that are not stopped yet, by start time; those that stopped themselves stay out of it.

    A parent that waits in vfork(2) for a child that was stopped before its exec cannot be stopped itself (state D), and
    runs nothing until the child goes on: it counts as stopped.
    """
    states: dict[int, tuple[bytes, int, int]] = {}
    for pid in processes.inside(init_pid):
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            states[pid] = (fields[0], int(fields[1]), int(fields[19]))
    waited_for = {parent for state, parent, _ in states.values() if state in (b"T", b"t")}
    found = {
        pid: started
        for pid, (state, _, started) in states.items()
        if state not in (b"T", b"t", b"Z", b"X") and not (state == b"D" and pid in stopped and pid in waited_for)
    }
    if any(pid in stopped for pid in found):
        time.sleep(0.0005)  # the signal is on its way
    return found
