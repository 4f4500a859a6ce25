"""The service above a driver: makes, finds and ends sandboxes, and keeps the records of their snapshots."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol

import anyio

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.ids import check_id, new_id
from ropewalk.core.records import canonical_bytes, decode_own
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
from ropewalk.store.layout import Layout


class MadeOfLayers(Protocol):
    """An image's record, as far as it matters here."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Digests."""
        ...


class Images(Protocol):
    """The image store, as far as it matters here."""

    def records(self) -> Iterable[MadeOfLayers]:
        """Of all images."""
        ...


class Layers(Protocol):
    """The layer store, as far as it matters here."""

    def remove(self, digest: str) -> None:
        """Removes one; no error if it is gone."""
        ...


class Sandboxes:
    """All sandboxes and snapshots of one driver and state directory. Safe to use from several processes."""

    def __init__(
        self, driver: SandboxDriver, layout: Layout, *, images: Images, layers: Layers, clock: Clock | None = None
    ) -> None:
        self.driver = driver
        self.images = images
        self.layers = layers
        self._layout = layout
        self._clock = clock or SystemClock()

    async def create(self, spec: SandboxSpec, *, id: str | None = None) -> Sandbox:
        """A running sandbox. `id` makes the call idempotent: a second one with the same spec gives the same sandbox.

        Raises:
            CallerError: the spec does not fit.
            DeniedError: this machine forbids what isolation needs.
            UnavailableError: out of some resource. Nothing is left behind.
        """
        return await self._make(lambda name: self.driver.create(spec, id=name), id)

    async def fork(self, snapshot_id: str, *, lease: Lease = Lease.ATTACHED, id: str | None = None) -> Sandbox:
        """A new sandbox in a saved state, with an identity of its own.

        Raises:
            CallerError: no such snapshot.
            IntegrityError: its stored bytes were changed.
            UnavailableError: out of some resource. Nothing is left behind.
        """
        record = self._load(snapshot_id)
        return await self._make(lambda name: self.driver.fork(record, id=name, lease=lease), id)

    async def open(self, id: str) -> Sandbox:
        """A sandbox that runs, by its id, from whatever process.

        Raises:
            SandboxGoneError: it does not run (any more).
        """
        check_id(id, "sandbox")
        for record in await self.records():
            if record.id == id:
                return Sandbox(self.driver, record, self)
        raise SandboxGoneError(f"There is no running sandbox {id}.")

    async def records(self) -> tuple[SandboxRecord, ...]:
        """All sandboxes that run, oldest first.

        Raises:
            UnavailableError: this driver's sandboxes cannot be found from outside.
        """
        return await self._reaper().records()

    async def destroy(self, id: str) -> None:
        """Ends a sandbox and removes all that belongs to it. Idempotent."""
        await self.driver.destroy(check_id(id, "sandbox"))

    async def reap(self) -> tuple[str, ...]:
        """Removes whatever no living lease owns; returns the ids."""
        return await self.driver.reap() if isinstance(self.driver, SupportsReap) else ()

    async def save(self, id: str, *, label: str = "") -> SnapshotRecord:
        """Snapshots a sandbox by its id and keeps the record; the sandbox keeps running.

        Raises:
            SandboxGoneError: it died before.
            UnavailableError: no room.
        """
        record = await self.driver.snapshot(check_id(id, "sandbox"), label=label)
        await anyio.to_thread.run_sync(self._store, record)
        return record

    def snapshot(self, id: str) -> Snapshot:
        """A snapshot by its id.

        Raises:
            CallerError: there is none.
        """
        return Snapshot(self._load(id), self)

    def snapshots(self) -> tuple[SnapshotRecord, ...]:
        """All snapshots, oldest first."""
        files = sorted(self._layout.snapshots.glob("*.json"))
        records = (decode_own(file.read_bytes(), SnapshotRecord, what=str(file)) for file in files)
        return tuple(sorted(records, key=lambda record: (record.created_s, record.id)))

    async def drop_snapshot(self, id: str) -> None:
        """Forgets a snapshot and removes the layers that nothing else needs: no image, no snapshot, no sandbox.

        Raises:
            CallerError: there is none.
        """
        dropped = self._load(id)
        running = await self.records() if isinstance(self.driver, SupportsReap) else ()
        self._file(id).unlink()
        needed = {digest for record in self.snapshots() for digest in (*record.layers, *record.spec.layers)}
        needed |= {digest for sandbox in running for digest in sandbox.spec.layers}
        needed |= {digest for image in self.images.records() for digest in image.layers}
        parents = {sandbox.snapshot for sandbox in running}
        if id not in parents:
            for digest in dropped.layers:
                if digest not in needed:
                    self.layers.remove(digest)

    async def _make(self, make: Callable[[str], Awaitable[SandboxRecord]], id: str | None) -> Sandbox:
        name = check_id(id, "sandbox") if id else new_id("sandbox", clock=self._clock)
        try:
            return Sandbox(self.driver, await make(name), self)
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
            return decode_own(file.read_bytes(), SnapshotRecord, what=str(file))
        except FileNotFoundError:
            raise CallerError(f"There is no snapshot {id}.", next_step="list them with `sandbox ls`.") from None

    def _store(self, record: SnapshotRecord) -> None:
        """Whole and on disk, or not at all."""
        file = self._file(record.id)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as target:
                target.write(canonical_bytes(record))
                target.flush()
                os.fsync(target.fileno())
            Path(temporary).replace(file)
            folder = os.open(file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
