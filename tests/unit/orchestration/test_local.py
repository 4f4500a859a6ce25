"""The fleet of one machine: waiting, cancelling, measuring."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from ropewalk.core.errors import CallerError
from ropewalk.core.limits import GIB
from ropewalk.orchestration import Fleet, Placement, ResourceRequest, open_fleet
from ropewalk.orchestration.drivers.local import LocalFleet, LocalFleetConfig
from ropewalk.orchestration.machine import Machine, measure
from ropewalk.testing.clock import ManualClock
from ropewalk.testing.fleet import settled

MACHINE = Machine(cpus=2, memory_bytes=8 * GIB, notes=())
ONE = ResourceRequest(cpus=1, memory_bytes=GIB)


def make(clock: ManualClock | None = None) -> LocalFleet:
    config = LocalFleetConfig(cpu_overcommit=2, memory_reserve_bytes=GIB)
    return LocalFleet(config, machine=MACHINE, clock=clock or ManualClock())


def test_this_machine_is_usable_and_says_what_it_measured() -> None:
    fleet = open_fleet()
    assert isinstance(fleet, Fleet)
    probe = fleet.probe()
    assert probe.usable and probe.capacity.cpus > 0 and probe.capacity.memory_bytes > 0 and probe.notes


@pytest.mark.parametrize("uri", ["", "slurm:", "local:x", "local://host"])
def test_other_fleets_are_refused_with_the_known_ones(uri: str) -> None:
    with pytest.raises(CallerError, match="local"):
        open_fleet(uri)


def test_over_commitment_and_reserve_decide_what_is_promised() -> None:
    capacity = make().capacity()
    assert (capacity.cpus, capacity.memory_bytes, capacity.hosts) == (4, 7 * GIB, 1)
    small = LocalFleet(machine=Machine(cpus=1, memory_bytes=GIB, notes=()))
    assert small.capacity().memory_bytes == GIB // 2
    for bad in ({"cpu_overcommit": 0.0}, {"memory_overcommit": -1.0}, {"memory_reserve_bytes": -1}):
        with pytest.raises(CallerError):
            LocalFleet(LocalFleetConfig(**bad), machine=MACHINE)


async def test_waits_are_measured() -> None:
    clock = ManualClock()
    fleet = make(clock)
    first = await fleet.acquire([ONE] * 4, tenant="a")
    done: list[tuple[Placement, ...]] = []

    async def wait() -> None:
        done.append(await fleet.acquire([ONE], tenant="b"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await settled()
        clock.advance(5)
        assert fleet.queue().oldest_wait_s == 5
        fleet.release(first[0].id)
    assert (first[0].waited_s, done[0][0].waited_s, fleet.queue().oldest_wait_s) == (0, 5, 0)


def machine(root: Path, files: dict[str, str]) -> Machine:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return measure(cgroups=root / "cg", proc=root / "proc")


def test_control_groups_of_both_versions_limit(tmp_path: Path) -> None:
    total = 16384000 * 1024
    assert machine(tmp_path / "0", {}).memory_bytes == total
    two = machine(tmp_path / "2", {
        "proc/self/cgroup": "0::/a/b\n", "cg/a/cpu.max": "50000 100000\n", "cg/a/b/cpu.max": "max 100000\n",
        "cg/a/b/memory.max": "max\n", "cg/memory.max": f"{GIB}\n",
    })  # fmt: skip
    assert (two.cpus, two.memory_bytes) == (0.5, GIB)
    one = machine(tmp_path / "1", {
        "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/x\n0::/\n", "cg/cpu,cpuacct/x/cpu.cfs_quota_us": "25000\n",
        "cg/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n", "cg/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cg/memory/x/memory.limit_in_bytes": f"{2 * GIB}\n", "cg/memory/memory.limit_in_bytes": "9223372036854771712\n",
    })  # fmt: skip
    assert (one.cpus, one.memory_bytes) == (0.25, 2 * GIB)
    broken = machine(
        tmp_path / "3", {"proc/self/cgroup": "0::/../../x\n", "cg/cpu.max": "garbage\n", "cg/memory.max": ""}
    )
    assert broken.memory_bytes == total


async def test_a_wall_clock_that_is_set_says_nothing_of_how_long_placements_are_held() -> None:
    class Stepped(ManualClock):
        """Whose wall time somebody set by an hour."""

        step_s = 0.0

        def now_s(self) -> float:
            return super().now_s() + self.step_s

    for step_s in (3_600.0, -3_600.0):
        plain, clock = make(), Stepped()
        fleet = make(clock)
        for each in (plain, fleet):
            (placement,) = await each.acquire((ONE,), tenant="a")
            clock.step_s = step_s
            each.release(placement.id)
        assert fleet._hold_s_mean == plain._hold_s_mean
