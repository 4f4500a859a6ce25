"""Every fleet driver keeps the contract."""

from __future__ import annotations

from ropewalk.core.limits import GIB
from ropewalk.orchestration.contract import Fleet
from ropewalk.orchestration.drivers.local import LocalFleet, LocalFleetConfig
from ropewalk.orchestration.machine import Machine
from ropewalk.testing.fleet import FleetConformance


class TestLocal(FleetConformance):
    def make_fleet(self, *, waiting_max: int = 100) -> Fleet:
        config = LocalFleetConfig(cpu_overcommit=2, memory_reserve_bytes=GIB, waiting_max=waiting_max)
        return LocalFleet(config, machine=Machine(cpus=2, memory_bytes=8 * GIB, notes=()))
