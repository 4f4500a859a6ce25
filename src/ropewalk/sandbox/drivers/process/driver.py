"""The `process` driver: sandboxes as ordinary processes in namespaces of their own, by way of bubblewrap.

Started as root, every tenant has 65,536 user ids of its own, none of them the host's root, and images are mounted
with their owners translated to these. Started as anybody else there is one user inside, who is this one outside:
`single_user`. Disk is saved and forked, memory is not. What is written above the layers lies in memory (a tmpfs of
the sandbox's disk size), and counts towards the machine's memory: a sandbox holds at most its memory plus its disk.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import ByteStream, UNIXSocketStream

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError, DeniedError, RopewalkError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.sandbox.contract import (
    Lease,
    Probe,
    SandboxGoneError,
    SandboxRecord,
    SandboxSpec,
    SandboxStats,
    SnapshotRecord,
)
from ropewalk.sandbox.drivers.process import cgroups, diagnosis, ending, figures, plan, probe, snapshots
from ropewalk.sandbox.drivers.process.client import Channel, Message, SpawnerClient
from ropewalk.sandbox.drivers.process.folders import Folder, Folders, require
from ropewalk.sandbox.drivers.process.plan import Planner
from ropewalk.sandbox.images import ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.store.layout import Layout

START_TIMEOUT_S = 20.0
POLL_S = 0.005


class _Live:
    """What this process keeps of a sandbox that it made."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.answered = False
        """Whether the spawner has said that it runs, or why not."""
        self.spare: UNIXSocketStream | None = None


class ProcessDriver:
    """See the contract (`ropewalk.sandbox.contract`). Close it to end what is attached to it."""

    name = "process"

    def __init__(
        self,
        layout: Layout,
        *,
        layers: LayerStore | None = None,
        images: ImageStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.layers = layers or LayerStore(layout)
        self.images = images or ImageStore(layout, self.layers)
        self._layout = layout
        self._clock = clock or SystemClock()
        self._folders = Folders(layout)
        self._planner = Planner(layout, self.layers, self.images, self._folders)
        self._spawner = SpawnerClient()
        self._live: dict[str, _Live] = {}
        self._making: dict[str, anyio.Event] = {}

    def probe(self) -> Probe:
        """See the contract."""
        return probe.probe(self._layout)

    async def create(self, spec: SandboxSpec, *, id: str) -> SandboxRecord:
        """See the contract."""
        return await self._make(
            SandboxRecord(id=id, driver=self.name, spec=spec, snapshot=None, created_s=self._clock.now_s())
        )

    async def fork(self, snapshot: SnapshotRecord, *, id: str, lease: Lease = Lease.ATTACHED) -> SandboxRecord:
        """See the contract."""
        snapshots.check(snapshot, self.name)
        spec = msgspec.structs.replace(snapshot.spec, layers=snapshot.layers, lease=lease)
        return await self._make(
            SandboxRecord(id=id, driver=self.name, spec=spec, snapshot=snapshot.id, created_s=self._clock.now_s())
        )

    async def snapshot(self, id: str, *, label: str = "") -> SnapshotRecord:
        """See the contract."""
        folder = self._folders.of(id)
        record = require(folder, id)
        try:
            return await anyio.to_thread.run_sync(
                lambda: snapshots.save(self.layers, folder, record, label=label, now_s=self._clock.now_s())
            )
        except SandboxGoneError as error:
            raise await self._gone(id, error) from error

    async def destroy(self, id: str) -> None:
        """See the contract."""
        folder = self._folders.of(id)
        live = self._live.pop(id, None)
        with anyio.CancelScope(shield=True):
            if live is not None and live.spare is not None:
                await live.spare.aclose()
            if live is not None and not live.answered:
                # Before its processes are known they cannot be ended. It takes some milliseconds.
                with anyio.move_on_after(START_TIMEOUT_S):
                    await live.channel.next()
            if live is not None:
                live.channel.disregard()
            found = ending.kill(folder)
            if live is not None and found is not None:
                with anyio.move_on_after(5.0):
                    while await live.channel.next() is not None:
                        pass
            if live is not None:
                live.channel.close()
            if live is not None and live.channel.ended is not None and (found is None or not found.init_alive()):
                folder.remove()  # the spawner has seen to the rest; a thread would take longer than this
            else:
                await anyio.to_thread.run_sync(ending.finish, folder, found)

    async def stats(self, id: str) -> SandboxStats:
        """See the contract."""
        folder = self._folders.of(id)
        require(folder, id)
        return await anyio.to_thread.run_sync(figures.of, folder)

    async def stream(self, id: str) -> ByteStream:
        """See the contract."""
        live = self._live.get(id)
        if live is not None and live.spare is not None:
            spare, live.spare = live.spare, None
            if not _hung_up(spare):
                return spare
            await spare.aclose()
        try:
            return await UNIXSocketStream.from_socket(self._folders.of(id).connect())
        except SandboxGoneError as error:
            raise await self._gone(id, error) from error

    async def reap(self) -> tuple[str, ...]:
        """See the contract. Also removes what a crash left of layers and control groups."""
        return await anyio.to_thread.run_sync(self._reap)

    async def records(self) -> tuple[SandboxRecord, ...]:
        """See the contract."""
        found = []
        for folder in self._folders.all():
            processes = folder.processes()
            if processes is not None and processes.alive() and (record := folder.record()) is not None:
                found.append(record)
        return tuple(sorted(found, key=lambda record: (record.created_s, record.id)))

    async def record(self, id: str) -> SandboxRecord | None:
        """See the contract."""
        return self._folders.of(id).record()

    def close(self) -> None:
        """Ends every attached sandbox of this driver and forgets the detached ones, which go on."""
        for id, live in self._live.items():
            self._folders.of(id).disown()
            live.channel.close()
            if live.spare is not None:
                with suppress(OSError):
                    os.close(live.spare.extra(anyio.abc.SocketAttribute.raw_socket).detach())
        self._live.clear()
        self._spawner.close()
        cgroups.tidy(plan.group_parents(self._layout))

    def _reap(self) -> tuple[str, ...]:
        self.layers.sweep()
        return ending.reap(self._folders, plan.group_parents(self._layout))

    async def _make(self, record: SandboxRecord) -> SandboxRecord:
        id = record.id
        plan.check_spec(record.spec)
        folder = self._folders.of(id)
        while id in self._making:
            await self._making[id].wait()
        if (existing := folder.record()) is not None:
            return await self._existing(folder, existing, record)
        self._making[id] = anyio.Event()
        try:
            if self._planner.is_quick(record.spec):
                message = self._planner.message(record, folder)
            else:
                message = await anyio.to_thread.run_sync(self._planner.message, record, folder)
            if self._folders.make(record) is None:  # another process was faster
                return await self._existing(folder, folder.record() or record, record)
            try:
                return await self._start(folder, record, message)
            except BaseException:
                await self.destroy(id)
                raise
        finally:
            self._making.pop(id).set()

    async def _existing(self, folder: Folder, existing: SandboxRecord, wanted: SandboxRecord) -> SandboxRecord:
        """The record of a sandbox that is there, once its agent can be reached."""
        if existing.spec != wanted.spec or existing.snapshot != wanted.snapshot:
            raise CallerError(f"{wanted.id} is another sandbox already.", next_step="take a fresh id.")
        with anyio.move_on_after(START_TIMEOUT_S):
            while (found := folder.processes()) is None or not found.init_pid:
                if (owner := folder.owner()) is None or not owner.alive():
                    break  # its maker died on the way
                await anyio.sleep(POLL_S)  # another process is making it
            if found is not None and found.alive():
                return existing
        raise UnavailableError(
            f"{wanted.id} was made before and is dead.", next_step="destroy it, or take a fresh id.", retry_after_s=1.0
        )

    async def _start(self, folder: Folder, record: SandboxRecord, message: Message) -> SandboxRecord:
        listener = folder.listen()
        try:
            live = _Live(self._spawner.request(message, listener))
        finally:
            listener.close()
        self._live[record.id] = live
        with anyio.move_on_after(START_TIMEOUT_S):
            answer = await live.channel.answer()
            live.answered = True
            if answer is None or answer["event"] != "started":
                raise _refused(answer)
            live.spare = await self._greeted(folder, live)
            return record
        raise UnavailableError(f"Sandbox {record.id} did not start within {START_TIMEOUT_S:.0f} s.", retry_after_s=5.0)

    async def _greeted(self, folder: Folder, live: _Live) -> UNIXSocketStream:
        """A connection on which the agent has said its hello; kept for the first caller of `stream`."""
        try:
            connection = folder.connect()
        except SandboxGoneError as error:
            raise _refused(await live.channel.answer()) from error
        try:
            await anyio.wait_readable(connection)
            greeting = b""
            with suppress(OSError):  # it died before it took the connection
                greeting = connection.recv(1, _PEEK)
            if not greeting:
                raise _refused(await live.channel.answer())
            return await UNIXSocketStream.from_socket(connection)
        except BaseException:
            connection.close()
            raise

    async def _gone(self, id: str, error: SandboxGoneError) -> SandboxGoneError:
        """The same, with the reason of the end where it is known."""
        live = self._live.get(id)
        while live is not None and live.channel.now() is not None:
            pass
        end = await anyio.to_thread.run_sync(figures.end_of, self._folders.of(id))
        if end is not None and end.out_of_memory_kills:
            return SandboxGoneError(f"Sandbox {id} ran out of memory.", termination=Termination.OUT_OF_MEMORY)
        if end is not None and end.machine_kills:
            return SandboxGoneError(f"The machine ran out of memory and ended processes of sandbox {id}.")
        return error


def _hung_up(stream: UNIXSocketStream) -> bool:
    """Whether the other end is gone, though what it said may still be unread."""
    poll = select.poll()
    poll.register(stream.extra(anyio.abc.SocketAttribute.raw_socket), select.POLLRDHUP)
    return bool(poll.poll(0))


def _refused(answer: Message | None) -> RopewalkError:
    """Why a sandbox did not come up."""
    if answer is None:
        return UnavailableError("The sandbox spawner died.", retry_after_s=1.0, next_step="try again.")
    text = str(answer.get("error") or answer.get("stderr") or "the agent ended at once")
    if reasons := diagnosis.reasons(text, int(answer.get("errno") or 0)):
        return DeniedError(
            f"This machine does not let a sandbox be made: {text}.", rule="isolation", next_step=" ".join(reasons)
        )
    return UnavailableError(f"A sandbox could not be started: {text}.", retry_after_s=1.0)


_PEEK = 2
"""MSG_PEEK."""
