"""Opens a fleet by URI, and holds placements for as long as a block runs, whatever ends it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record
from ropewalk.machinery.drivers import load, scheme_of
from ropewalk.orchestration.contract import Fleet, Placement, ResourceRequest
from ropewalk.orchestration.drivers import DRIVERS


def open_fleet(uri: str = "local:", *, config: Record | None = None) -> Fleet:
    """A fleet that is ready for use.

    Args:
        uri: `local:`.
        config: the driver's configuration record (`LocalFleetConfig` for `local:`).

    Raises:
        CallerError: an unknown scheme.
    """
    driver = load("fleet", DRIVERS, uri)
    if uri != f"{scheme_of(uri)}:":
        raise CallerError(f"{uri!r} says more than the fleet driver takes.", next_step=f"write '{scheme_of(uri)}:'.")
    fleet: Fleet = driver(config)
    return fleet


@contextlib.asynccontextmanager
async def room(fleet: Fleet, memory_bytes: int, *, tenant: str) -> AsyncIterator[Placement]:
    """Room for sandboxes that have so much memory together, held while the block runs. On a fleet that has less: all of
    it.

    Raises what `Fleet.acquire` raises.
    """
    wanted = min(memory_bytes, fleet.capacity().memory_bytes)
    async with placed(fleet, [ResourceRequest(memory_bytes=wanted)], tenant=tenant) as (placement,):
        yield placement


@contextlib.asynccontextmanager
async def placed(
    fleet: Fleet, requests: Sequence[ResourceRequest], *, tenant: str
) -> AsyncIterator[tuple[Placement, ...]]:
    """Placements for all requests at once, held while the block runs; released also when it is cancelled.

    Raises what `Fleet.acquire` raises.
    """
    placements = await fleet.acquire(requests, tenant=tenant)
    try:
        yield placements
    finally:
        for placement in placements:
            fleet.release(placement.id)
