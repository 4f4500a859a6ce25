"""A fleet of one machine: slots from its CPUs and memory, a queue in this process."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from typing import Final

import anyio
import anyio.lowlevel

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError
from ropewalk.core.ids import new_id
from ropewalk.core.limits import GIB
from ropewalk.core.records import Record
from ropewalk.orchestration.contract import (
    Capacity,
    FleetProbe,
    Placement,
    QueueFullError,
    QueueState,
    ResourceRequest,
)
from ropewalk.orchestration.ledger import Ledger, Ticket
from ropewalk.orchestration.machine import Machine, measure

_HOLD_WEIGHT: Final = 0.2
"""Of the newest holding time in the running average."""
_RETRY_MIN_S: Final = 0.1
_RETRY_MAX_S: Final = 300.0


class LocalFleetConfig(Record):
    """How much of the machine may be promised."""

    cpu_overcommit: float = 4.0
    """Promised over real CPUs. Sandboxes of agents wait for a model most of the time; see `cost`."""
    memory_overcommit: float = 1.0
    memory_reserve_bytes: int = 1 * GIB
    """Kept for the system and for ourselves, at most half the machine."""
    waiting_max: int = 10_000
    """Placements in the queue."""


class LocalFleet:
    """See `Fleet`."""

    def __init__(
        self, config: LocalFleetConfig | None = None, *, machine: Machine | None = None, clock: Clock | None = None
    ) -> None:
        """
        Raises:
            CallerError: a factor that is not greater than 0, or a negative reserve.
        """
        config = config or LocalFleetConfig()
        if min(config.cpu_overcommit, config.memory_overcommit) <= 0 or config.memory_reserve_bytes < 0:
            raise CallerError("Over-commitment must be greater than 0, and the reserve not negative.")
        self._config = config
        self._machine = machine or measure()
        self._clock = clock or SystemClock()
        reserve = min(config.memory_reserve_bytes, self._machine.memory_bytes // 2)
        self._ledger = Ledger(
            cpus=self._machine.cpus * config.cpu_overcommit,
            memory_bytes=int((self._machine.memory_bytes - reserve) * config.memory_overcommit),
            waiting_max=config.waiting_max,
        )
        self._host = socket.gethostname()
        self._held: dict[str, tuple[Ticket, int, Placement, float]] = {}
        """By placement id; the float is when it was granted, on the monotonic clock."""
        self._waits: dict[Ticket, tuple[anyio.Event, float]] = {}
        self._hold_s_mean = 1.0

    def probe(self) -> FleetProbe:
        """See `Fleet.probe`."""
        config = self._config
        notes = (
            *self._machine.notes,
            f"CPUs promised {config.cpu_overcommit:g} times, memory {config.memory_overcommit:g} times "
            f"but for {config.memory_reserve_bytes} bytes",
        )
        return FleetProbe(driver="local", usable=True, capacity=self.capacity(), notes=notes)

    def capacity(self) -> Capacity:
        """See `Fleet.capacity`."""
        ledger = self._ledger
        return Capacity(
            cpus=float(ledger.cpus), cpus_free=float(ledger.cpus_free), memory_bytes=ledger.memory_bytes,
            memory_bytes_free=ledger.memory_bytes_free, hosts=1,
        )  # fmt: skip

    def queue(self) -> QueueState:
        """See `Fleet.queue`."""
        waiting = {
            tenant: sum(len(ticket.requests) for ticket in tickets)
            for tenant, tickets in self._ledger.waiting().items()
        }
        now_s = self._clock.monotonic_s()
        queued = {ticket for tickets in self._ledger.waiting().values() for ticket in tickets}
        return QueueState(
            placed=len(self._held),
            placed_by_tenant=dict(Counter(placement.tenant for _, _, placement, _ in self._held.values())),
            waiting=sum(waiting.values()), waiting_by_tenant=waiting, waiting_max=self._ledger.waiting_max,
            oldest_wait_s=max((now_s - since for t, (_, since) in self._waits.items() if t in queued), default=0.0),
        )  # fmt: skip

    async def acquire(self, requests: Sequence[ResourceRequest], *, tenant: str) -> tuple[Placement, ...]:
        """See `Fleet.acquire`."""
        started_s = self._clock.monotonic_s()
        try:
            ticket, granted = self._ledger.submit(tenant, requests)
        except QueueFullError as error:
            raise QueueFullError(error.message, retry_after_s=self._retry_s(), next_step=error.next_step) from None
        event = anyio.Event()
        self._waits[ticket] = (event, started_s)
        self._wake(granted)
        try:
            # Also when it was granted at once: every acquire is a point where it may be cancelled.
            await anyio.lowlevel.checkpoint()
            await event.wait()
        except BaseException:
            # Cancelled before or after it was granted: either way nothing of it may stay.
            self._wake(self._ledger.cancel(ticket))
            raise
        finally:
            del self._waits[ticket]
        now_s, granted_s = self._clock.now_s(), self._clock.monotonic_s()
        waited_s = granted_s - started_s
        placements = []
        for slot, request in enumerate(ticket.requests):
            placement = Placement(
                id=new_id("placement", clock=self._clock), host=self._host, tenant=tenant, request=request,
                granted_s=now_s, waited_s=waited_s,
            )  # fmt: skip
            self._held[placement.id] = (ticket, slot, placement, granted_s)
            placements.append(placement)
        return tuple(placements)

    def release(self, placement_id: str) -> None:
        """See `Fleet.release`."""
        if (held := self._held.pop(placement_id, None)) is None:
            return
        ticket, slot, _, granted_s = held
        held_s = self._clock.monotonic_s() - granted_s  # a wall clock that is set meanwhile says nothing of this
        self._hold_s_mean += _HOLD_WEIGHT * (held_s - self._hold_s_mean)
        self._wake(self._ledger.release(ticket, slot))

    def _wake(self, granted: list[Ticket]) -> None:
        for ticket in granted:
            self._waits[ticket][0].set()

    def _retry_s(self) -> float:
        """When about half of the queue will have been served, if placements are held as long as lately."""
        rounds = self.queue().waiting / max(1, len(self._held)) / 2
        return min(_RETRY_MAX_S, max(_RETRY_MIN_S, self._hold_s_mean * rounds))
