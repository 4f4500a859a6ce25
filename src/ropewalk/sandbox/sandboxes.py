"""The service above a driver: makes, finds and ends sandboxes, and keeps the records of their snapshots."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import anyio
import msgspec

from ropewalk.core import limits
from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.ids import check_id, new_id
from ropewalk.core.records import canonical_bytes, decode_own
from ropewalk.machinery.files import read_all, replace_whole
from ropewalk.sandbox.contract import (
    Lease,
    SandboxDriver,
    SandboxGoneError,
    SandboxRecord,
    SandboxSpec,
    SnapshotRecord,
    SupportsReap,
)
from ropewalk.sandbox.sandbox import Sandbox, Snapshot
from ropewalk.security.tenants import TenantContext
from ropewalk.store.layout import Layout

LOCK_POLL_S = 0.005
Drop = Callable[[str], Awaitable[None]]


class _Lock:
    """A lock on a file that a task holds, and how many of its blocks do."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0


_held: ContextVar[Mapping[Path, _Lock]] = ContextVar("_held", default=MappingProxyType({}))
"""What this task, or one that it was started by, entered, by the folder of the locks."""


class MadeOfLayers(Protocol):
    """An image's record, as far as it matters here."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Digests."""
        ...


class Images(Protocol):
    """The image store, as far as it matters here."""

    def everybodys(self) -> Iterable[MadeOfLayers]:
        """All images of all tenants."""
        ...

    def check_usable(self, digest: str, tenant: str) -> None:
        """Returns if a tenant may start sandboxes on an image; raises `CallerError`."""
        ...

    def get(self, digest: str) -> MadeOfLayers:
        """The image of that digest; raises `CallerError`."""
        ...


class Layers(Protocol):
    """The layer store, as far as it matters here."""

    def check_usable(self, digests: Iterable[str], tenant: str) -> None:
        """Returns if a tenant may mount all these layers; raises `CallerError`."""
        ...

    def check_unchanged(self, digests: Iterable[str]) -> None:
        """Returns if these did not move since this process first used them; raises `IntegrityError`."""
        ...

    def claim(self, digest: str, tenant: str) -> None:
        """Makes a layer that tenant's."""
        ...

    def transient(self) -> set[str]:
        """Digests of those that snapshots made and nobody else keeps."""
        ...

    def discard(self, digest: str) -> None:
        """Removes a transient one; nothing where it is gone, or somebody keeps it by now."""
        ...

    def settle(self, digests: Iterable[str]) -> None:
        """Returns when these would survive power loss."""
        ...


class Sandboxes:
    """All sandboxes and snapshots of one driver and state directory. Safe to use from several processes.

    Made for a tenant it shows and touches that tenant's alone; without one, everything (the machine's administrator).
    """

    def __init__(
        self,
        driver: SandboxDriver,
        layout: Layout,
        *,
        images: Images,
        layers: Layers,
        tenant: TenantContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.driver = driver
        self._tenant = tenant
        self.images = images
        self.layers = layers
        self._made: set[str] = set()
        """Ids of those made here, which need no looking up."""
        self._layout = layout
        self._clock = clock or SystemClock()

    async def create(self, spec: SandboxSpec, *, id: str | None = None) -> Sandbox:
        """A running sandbox. `id` makes the call idempotent: a second one with the same spec gives the same sandbox.

        Raises:
            CallerError: the spec does not fit, or its image or a layer is not there or not its tenant's.
            DeniedError: this machine forbids what isolation needs, or it is to be another tenant's.
            UnavailableError: out of some resource. Nothing is left behind.
        """
        self._check_owns(spec.tenant, "sandboxes of others")
        async with self.keeping():  # until it is listed as running nobody would know what it stands on
            self.images.check_usable(spec.image, spec.tenant)
            self.layers.check_usable(spec.layers, spec.tenant)
            return await self._make(lambda name: self.driver.create(spec, id=name), id)

    async def fork(
        self,
        snapshot_id: str,
        *,
        lease: Lease = Lease.ATTACHED,
        id: str | None = None,
        idle_timeout_s: float = limits.SANDBOX_IDLE_TIMEOUT_S,
        labels: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """A new sandbox in a saved state, with an identity of its own.

        Raises:
            CallerError: no such snapshot, or its image or a layer is not its tenant's any more.
            DeniedError: it is another tenant's.
            IntegrityError: its stored bytes were changed.
            UnavailableError: out of some resource. Nothing is left behind.
        """
        async with self.keeping():
            record = self._load(snapshot_id)
            self.images.check_usable(record.spec.image, record.tenant)
            self.layers.check_usable(record.layers, record.tenant)
            own = msgspec.structs.replace(record.spec, idle_timeout_s=idle_timeout_s, labels=dict(labels or {}))
            record = msgspec.structs.replace(record, spec=own)
            return await self._make(lambda name: self.driver.fork(record, id=name, lease=lease), id)

    def check_unchanged(self, image: str, layers: Sequence[str]) -> None:
        """Returns if what sandboxes of this image and these layers stand on did not move since this process first
        used it; see `LayerStore.check_unchanged`.

        Raises:
            CallerError: no such image.
            IntegrityError: something moved.
        """
        self.layers.check_unchanged((*self.images.get(image).layers, *layers))

    async def open(self, id: str) -> Sandbox:
        """A sandbox that runs, by its id, from whatever process.

        Raises:
            SandboxGoneError: it does not run (any more).
        """
        check_id(id, "sandbox")
        for record in await self.records():
            if record.id == id:
                return Sandbox(self.driver, record, self)
        raise SandboxGoneError(f"There is no running sandbox {id}.", next_step="see `ropewalk sandbox ls`.")

    async def records(self) -> tuple[SandboxRecord, ...]:
        """All sandboxes that run, oldest first.

        Raises:
            UnavailableError: this driver's sandboxes cannot be found from outside.
        """
        return tuple(record for record in await self._all() if self._owns(record.spec.tenant))

    async def standing(self) -> tuple[tuple[SandboxRecord, ...], tuple[SnapshotRecord, ...]]:
        """Sandboxes that run and snapshots, of all tenants: for whoever takes away what they may stand on.

        Raises:
            UnavailableError: this driver's sandboxes cannot be found from outside.
        """
        return await self._all(), self._stored()

    async def destroy(self, id: str) -> None:
        """Ends a sandbox and removes all that belongs to it. Idempotent.

        Raises:
            DeniedError: it is another tenant's.
        """
        if await self._may_touch(check_id(id, "sandbox")):
            self._made.discard(id)
            await self.driver.destroy(id)

    async def reap(self) -> tuple[str, ...]:
        """Removes whatever no living lease owns; returns the ids."""
        return await self.driver.reap() if isinstance(self.driver, SupportsReap) else ()

    async def save(self, id: str, *, label: str = "", durable: bool = True) -> SnapshotRecord:
        """Snapshots a sandbox by its id and keeps the record; the sandbox keeps running.

        Equal states are one snapshot: whoever saves it again gets the first one's record. Not `durable`: the state
        survives this process's death, but maybe not power loss; some 10 ms sooner.

        Raises:
            DeniedError: it is another tenant's.
            SandboxGoneError: it died before.
            UnavailableError: no room.
        """
        if not await self._may_touch(check_id(id, "sandbox")):
            raise SandboxGoneError(f"There is no sandbox {id}.")
        async with self.keeping():
            record = await self.driver.snapshot(id, label=label)
            return await anyio.to_thread.run_sync(lambda: self._store(record, durable=durable))

    def snapshot(self, id: str) -> Snapshot:
        """A snapshot by its id.

        Raises:
            CallerError: there is none.
            DeniedError: it is another tenant's.
        """
        return Snapshot(self._load(id), self)

    def snapshots(self) -> tuple[SnapshotRecord, ...]:
        """All snapshots, oldest first."""
        return tuple(record for record in self._stored() if self._owns(record.tenant))

    async def drop_snapshot(self, id: str) -> None:
        """Forgets a snapshot and removes what only it needed: layers that snapshots made and that no other snapshot and
        no running sandbox stands on. Layers that were there before (images', tasks', graders') stay.

        Raises:
            CallerError: there is none.
            DeniedError: it is another tenant's.
        """
        async with self.dropping() as drop:
            await drop(id)

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """While this is entered no process drops a snapshot: between a `save` and the note of who needs it, and
        until a sandbox runs that stands on one.

        Any number may be entered at once, also one within another.
        """
        held = _held.get()
        lock = held.get(self._layout.snapshots)
        if lock is None or not lock.users:
            # Within another one it is not asked for again: somebody who wants to drop would be waited for, who waits.
            lock = _Lock(await self._locked(fcntl.LOCK_SH))
            _held.set({**held, self._layout.snapshots: lock})
        lock.users += 1
        try:
            yield
        finally:
            lock.users -= 1
            if not lock.users:
                os.close(lock.descriptor)

    @asynccontextmanager
    async def dropping(self) -> AsyncIterator[Drop]:
        """Gives what `drop_snapshot` does, while no process saves a snapshot, notes that it needs one or starts a
        sandbox: so that what was looked up inside (who else needs it?) still holds. Never within `keeping` or another
        one.
        """
        lock = await self._locked(fcntl.LOCK_EX)
        try:
            yield self._drop
        finally:
            os.close(lock)

    async def _locked(self, kind: int) -> int:
        """The locked file. Who wants it alone closes the gate first and waits then: whoever comes later waits at the
        gate, so that those who are inside become fewer."""
        gate, lock = (
            os.open(self._layout.snapshots / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for name in (".gate", ".lock")
        )
        try:
            await _flock(gate, kind)
            await _flock(lock, kind)
            return lock
        except BaseException:
            os.close(lock)
            raise
        finally:
            os.close(gate)

    async def _drop(self, id: str) -> None:
        self._load(id)
        running = await self._all() if isinstance(self.driver, SupportsReap) else ()
        await anyio.to_thread.run_sync(self._forget, id, running)

    def _forget(self, id: str, running: tuple[SandboxRecord, ...]) -> None:
        self._file(id).unlink(missing_ok=True)
        needed = {digest for record in self._stored() for digest in (*record.layers, *record.spec.layers)}
        needed |= {digest for sandbox in running for digest in sandbox.spec.layers}
        needed |= {digest for image in self.images.everybodys() for digest in image.layers}
        for digest in self.layers.transient() - needed:
            self.layers.discard(digest)

    def _stored(self) -> tuple[SnapshotRecord, ...]:
        found = read_all(self._layout.snapshots.glob("[0-9a-f]*.json"))
        records = (decode_own(data, SnapshotRecord, what=str(file)) for file, data in found)
        return tuple(sorted(records, key=lambda record: (record.created_s, record.id)))

    async def _may_touch(self, id: str) -> bool:
        """Whether a sandbox is ours; False: nobody knows of it, so that it may become anybody's.

        Raises:
            DeniedError: it is another tenant's, be it alive, half made or dead.
        """
        if self._tenant is None or id in self._made or not isinstance(self.driver, SupportsReap):
            return True
        record = await self.driver.record(id)
        if record is not None:
            self._check_owns(record.spec.tenant, f"sandbox {id}")
        return record is not None

    async def _all(self) -> tuple[SandboxRecord, ...]:
        return await self._reaper().records()

    def _owns(self, tenant: str) -> bool:
        return self._tenant is None or self._tenant.tenant == tenant

    def _check_owns(self, tenant: str, what: str) -> None:
        if self._tenant is not None:
            self._tenant.check_owns(tenant, what=what)

    async def _make(self, make: Callable[[str], Awaitable[SandboxRecord]], id: str | None) -> Sandbox:
        name = check_id(id, "sandbox") if id else new_id("sandbox", clock=self._clock)
        try:
            made = Sandbox(self.driver, await make(name), self, fresh=id is None)
            self._made.add(name)
            return made
        except BaseException:
            if id is None:  # a given id may be another caller's living sandbox
                with anyio.CancelScope(shield=True):
                    await self.driver.destroy(name)
            raise

    def _reaper(self) -> SupportsReap:
        if not isinstance(self.driver, SupportsReap):
            raise UnavailableError("This driver does not list its sandboxes.", next_step="keep the handle you got.")
        return self.driver

    def _file(self, id: str) -> Path:
        return self._layout.snapshots / f"{check_id(id, 'snapshot').partition(':')[2]}.json"

    def _load(self, id: str) -> SnapshotRecord:
        file = self._file(id)
        try:
            record = decode_own(file.read_bytes(), SnapshotRecord, what=str(file))
        except FileNotFoundError:
            raise CallerError(f"There is no snapshot {id}.", next_step="list them with `snapshot ls`.") from None
        self._check_owns(record.tenant, f"snapshot {id}")
        return record

    def _store(self, record: SnapshotRecord, *, durable: bool = True) -> SnapshotRecord:
        """Whole and on disk, or not at all. Records never change: who comes second gets the first one's."""
        file = self._file(record.id)
        for layer in record.layers:  # what the driver made of the tenant's disk is nobody's so far
            self.layers.claim(layer, record.tenant)
        if durable:
            self.layers.settle(record.layers)
        try:
            return decode_own(file.read_bytes(), SnapshotRecord, what=str(file))
        except FileNotFoundError:
            replace_whole(file, canonical_bytes(record))
            return record


async def _flock(file: int, kind: int) -> None:
    while True:  # waited for by asking, since a waiting flock(2) cannot be cancelled
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await anyio.sleep(LOCK_POLL_S)
