"""Who holds what, and whose turn it is: the arithmetic of a fleet of one host, without time or tasks.

Tenants take turns; within a tenant the first come is the first served. Nobody is passed over: while the group whose
turn it is does not fit, nobody else is served, so that it fits after finitely many releases. That costs some idle
room before large groups, and buys that nobody starves.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ropewalk.core.errors import CallerError
from ropewalk.orchestration.contract import NeverFitsError, QueueFullError, ResourceRequest


@dataclass(eq=False)
class Ticket:
    """A group's place in the queue; later its hold on room."""

    tenant: str
    requests: tuple[ResourceRequest, ...]
    number: int
    granted: bool = False
    slots: set[int] = field(default_factory=set)
    """Indices of requests whose room is still held."""


class Ledger:
    """Exact: CPUs are counted as fractions, so that no rounding ever loses or makes room."""

    def __init__(self, *, cpus: float, memory_bytes: int, waiting_max: int) -> None:
        """
        Args:
            waiting_max: placements in the queue, all tenants together.
        """
        self.cpus = Fraction(cpus)
        self.memory_bytes = memory_bytes
        self.waiting_max = waiting_max
        self.cpus_free = self.cpus
        self.memory_bytes_free = memory_bytes
        self._number = 0
        # In the order of turns; a tenant is here exactly while it waits.
        self._queues: OrderedDict[str, deque[Ticket]] = OrderedDict()

    def submit(self, tenant: str, requests: Sequence[ResourceRequest]) -> tuple[Ticket, list[Ticket]]:
        """Puts a group into the queue.

        Returns:
            Its ticket, and the tickets that were granted by this (the new one, or none).

        Raises:
            NeverFitsError, CallerError, QueueFullError: see `Fleet.acquire`.
        """
        group = tuple(requests)
        self._check(group)
        waiting = sum(len(ticket.requests) for queue in self._queues.values() for ticket in queue)
        if waiting + len(group) > self.waiting_max and not self._fits_at_once(group):
            raise QueueFullError(
                f"{waiting} placements are waiting, {self.waiting_max} may; {len(group)} more were asked for.",
                retry_after_s=1.0,
                next_step="try again later, or run fewer at once.",
            )
        self._number += 1
        ticket = Ticket(tenant=tenant, requests=group, number=self._number)
        self._queues.setdefault(tenant, deque()).append(ticket)
        return ticket, self._serve()

    def cancel(self, ticket: Ticket) -> list[Ticket]:
        """Takes a group out, wherever it stands: out of the queue, or from its room. Returns who is granted by it."""
        if ticket.granted:
            for slot in tuple(ticket.slots):
                self._give_back(ticket, slot)
        elif (queue := self._queues.get(ticket.tenant)) and ticket in queue:
            queue.remove(ticket)
            if not queue:
                del self._queues[ticket.tenant]
        return self._serve()

    def release(self, ticket: Ticket, slot: int) -> list[Ticket]:
        """Gives one request's room back. Idempotent. Returns who is granted by it."""
        self._give_back(ticket, slot)
        return self._serve()

    def waiting(self) -> dict[str, tuple[Ticket, ...]]:
        """Tickets in the queue by tenant, in the order of turns."""
        return {tenant: tuple(queue) for tenant, queue in self._queues.items()}

    def _check(self, group: tuple[ResourceRequest, ...]) -> None:
        if not group:
            raise CallerError("No room was asked for.", next_step="ask for at least one placement.")
        for request in group:
            if not 0 < request.cpus < float("inf") or request.memory_bytes <= 0:
                raise CallerError(f"Room for {request.cpus} CPUs and {request.memory_bytes} bytes cannot be asked for.")
        cpus, memory_bytes = _sum(group)
        if cpus > self.cpus or memory_bytes > self.memory_bytes:
            raise NeverFitsError(
                f"{len(group)} placements need {float(cpus):g} CPUs and {memory_bytes} bytes together; "
                f"the whole fleet has {float(self.cpus):g} and {self.memory_bytes}.",
                next_step="ask for smaller groups or sandboxes, or raise the fleet's over-commitment.",
            )

    def _fits_at_once(self, group: tuple[ResourceRequest, ...]) -> bool:
        cpus, memory_bytes = _sum(group)
        return not self._queues and cpus <= self.cpus_free and memory_bytes <= self.memory_bytes_free

    def _serve(self) -> list[Ticket]:
        granted = []
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            ticket = queue[0]
            cpus, memory_bytes = _sum(ticket.requests)
            if cpus > self.cpus_free or memory_bytes > self.memory_bytes_free:
                break
            self.cpus_free -= cpus
            self.memory_bytes_free -= memory_bytes
            ticket.granted = True
            ticket.slots = set(range(len(ticket.requests)))
            granted.append(ticket)
            queue.popleft()
            del self._queues[tenant]
            if queue:
                self._queues[tenant] = queue  # its next turn comes after everybody else's
        return granted

    def _give_back(self, ticket: Ticket, slot: int) -> None:
        if slot not in ticket.slots:
            return
        ticket.slots.remove(slot)
        self.cpus_free += Fraction(ticket.requests[slot].cpus)
        self.memory_bytes_free += ticket.requests[slot].memory_bytes


def _sum(group: tuple[ResourceRequest, ...]) -> tuple[Fraction, int]:
    return sum((Fraction(r.cpus) for r in group), Fraction(0)), sum(r.memory_bytes for r in group)
