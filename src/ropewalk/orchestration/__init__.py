"""Fleet contract, placement, cost."""

from __future__ import annotations

from ropewalk.orchestration.contract import (
    Capacity,
    Fleet,
    FleetProbe,
    NeverFitsError,
    Placement,
    QueueFullError,
    QueueState,
    ResourceRequest,
)
from ropewalk.orchestration.cost import AnchorComparison, Cost, Line, Usage, cost_of
from ropewalk.orchestration.fleet import open_fleet, placed
from ropewalk.orchestration.prices import Price, Prices, load_prices

__all__ = [
    "AnchorComparison",
    "Capacity",
    "Cost",
    "Fleet",
    "FleetProbe",
    "Line",
    "NeverFitsError",
    "Placement",
    "Price",
    "Prices",
    "QueueFullError",
    "QueueState",
    "ResourceRequest",
    "Usage",
    "cost_of",
    "load_prices",
    "open_fleet",
    "placed",
]
