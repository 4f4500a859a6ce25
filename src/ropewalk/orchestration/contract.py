"""What a fleet driver must do: hand out room for sandboxes, and take it back. The docstrings are the specification.

A fleet is a set of hosts with CPUs and memory. Whoever wants to make sandboxes asks for placements first: room
that is theirs until they release it. A group (a gang) gets all its placements at one instant or none, so that two
half-placed groups never wait for each other. Who comes first is served first; between tenants it goes round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import Record


class ResourceRequest(Record):
    """Room for one sandbox; the same words and units as `SandboxSpec`."""

    cpus: float = limits.SANDBOX_CPUS
    """Greater than 0."""
    memory_bytes: int = limits.SANDBOX_MEMORY_BYTES
    """Greater than 0."""


class Placement(Record):
    """Room on one host, held until it is released."""

    id: str
    """`placement:` and a ULID."""
    host: str
    tenant: str
    request: ResourceRequest
    granted_s: float
    """Wall time."""
    waited_s: float
    """In the queue."""


class Capacity(Record):
    """Of the whole fleet, in what may be promised: over-commitment is counted in."""

    cpus: float
    cpus_free: float
    memory_bytes: int
    memory_bytes_free: int
    hosts: int


class QueueState(Record):
    """Who has and who waits, in placements."""

    placed: int
    placed_by_tenant: dict[str, int]
    waiting: int
    waiting_by_tenant: dict[str, int]
    waiting_max: int
    oldest_wait_s: float
    """0 where nobody waits."""


class FleetProbe(Record):
    """What a fleet driver found."""

    driver: str
    usable: bool
    capacity: Capacity
    notes: tuple[str, ...]
    """For people: what was measured, what limits it, what would help."""


class NeverFitsError(CallerError):
    """The request is larger than the fleet with nothing else on it: waiting will not help."""


class QueueFullError(UnavailableError):
    """Too many are waiting; `retry_after_s` is an estimate from how long placements are held."""


@runtime_checkable
class Fleet(Protocol):
    """Belongs to one event loop. Nothing but `acquire` waits."""

    def probe(self) -> FleetProbe:
        """What is there. Changes nothing."""
        ...

    def capacity(self) -> Capacity:
        """Now."""
        ...

    def queue(self) -> QueueState:
        """Now."""
        ...

    async def acquire(self, requests: Sequence[ResourceRequest], *, tenant: str) -> tuple[Placement, ...]:
        """Waits for its turn, then takes room for all requests at one instant.

        Cancelled at any time, it leaves neither a place in the queue nor a placement behind.

        Returns:
            One placement a request, in order.

        Raises:
            NeverFitsError: together they are larger than the whole fleet, or one is larger than any host.
            CallerError: no request, or one that is not greater than 0.
            QueueFullError: the queue has no place for so many.
        """
        ...

    def release(self, placement_id: str) -> None:
        """Gives room back at once, and serves whoever waits. Idempotent."""
        ...
