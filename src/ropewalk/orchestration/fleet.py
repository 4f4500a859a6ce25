"""Opens a fleet by URI, and holds placements for as long as a block runs, whatever ends it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator, Sequence

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record
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
    scheme = uri.partition(":")[0]
    if scheme not in DRIVERS or uri not in (scheme, f"{scheme}:"):
        known = ", ".join(f"{name}: ({line})" for name, (_, _, line) in sorted(DRIVERS.items()))
        raise CallerError(f"No fleet driver answers to {uri!r}.", next_step=f"use one of: {known}.")
    module, _, name = DRIVERS[scheme][0].partition(":")
    fleet: Fleet = getattr(importlib.import_module(module), name)(config)
    return fleet


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
