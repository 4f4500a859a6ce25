"""The fleet of one machine: waiting, cancelling, measuring."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.core.clock import ManualClock
from ropewalk.core.errors import CallerError
from ropewalk.core.limits import GIB
from ropewalk.orchestration import Fleet, NeverFitsError, Placement, QueueFullError, ResourceRequest, open_fleet, placed
from ropewalk.orchestration.drivers.local import LocalFleet, LocalFleetConfig
from ropewalk.orchestration.machine import Machine, measure

MACHINE = Machine(cpus=2, memory_bytes=8 * GIB, notes=())
ONE = ResourceRequest(cpus=1, memory_bytes=GIB)


def make(clock: ManualClock | None = None, *, waiting_max: int = 100) -> LocalFleet:
    config = LocalFleetConfig(cpu_overcommit=2, memory_reserve_bytes=GIB, waiting_max=waiting_max)
    return LocalFleet(config, machine=MACHINE, clock=clock or ManualClock())


def idle(fleet: LocalFleet) -> bool:
    capacity, queue = fleet.capacity(), fleet.queue()
    return (capacity.cpus_free, capacity.memory_bytes_free, queue.placed, queue.waiting) == (
        capacity.cpus, capacity.memory_bytes, 0, 0,
    )  # fmt: skip


async def settle() -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


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


async def test_a_group_is_placed_at_once_and_released_by_the_block() -> None:
    fleet = make()
    async with placed(fleet, [ONE] * 3, tenant="acme") as placements:
        assert len({placement.id for placement in placements}) == 3
        assert all((p.tenant, p.request, p.waited_s) == ("acme", ONE, 0.0) for p in placements)
        assert fleet.capacity().cpus_free == 1
        assert fleet.queue().placed_by_tenant == {"acme": 3}
        fleet.release(placements[0].id)
        fleet.release(placements[0].id)
        assert fleet.capacity().cpus_free == 2
    assert idle(fleet)
    fleet.release("placement:unknown")


async def test_who_waits_is_woken_by_the_release_it_needs() -> None:
    clock = ManualClock()
    fleet = make(clock)
    first = await fleet.acquire([ONE] * 3, tenant="a")
    done: list[tuple[Placement, ...]] = []

    async def wait() -> None:
        done.append(await fleet.acquire([ONE] * 4, tenant="b"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await settle()
        clock.advance(5)
        queue = fleet.queue()
        assert (queue.waiting, queue.waiting_by_tenant, queue.oldest_wait_s) == (4, {"b": 4}, 5)
        for placement in first[:2]:
            fleet.release(placement.id)
        await settle()
        assert not done
        fleet.release(first[2].id)
    assert done[0][0].waited_s == 5
    for placement in done[0]:
        fleet.release(placement.id)
    assert idle(fleet)


async def test_a_cancelled_wait_leaves_nothing_and_lets_others_on() -> None:
    fleet = make()
    held = await fleet.acquire([ONE] * 3, tenant="a")
    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(0.01) as scope:
            await fleet.acquire([ONE] * 4, tenant="b")
        assert scope.cancelled_caught
        # The place in the queue is free again: whoever fits is served.
        tasks.start_soon(_acquire_and_release, fleet, 1)
    assert fleet.queue().waiting == 0
    for placement in held:
        fleet.release(placement.id)
    assert idle(fleet)


@pytest.mark.parametrize("how", ["scope", "task"])
async def test_cancelled_in_the_instant_of_the_grant_leaves_nothing(how: str) -> None:
    fleet = make()
    held = await fleet.acquire([ONE] * 4, tenant="a")
    scope = anyio.CancelScope()

    async def wait() -> None:
        with scope:
            async with placed(fleet, [ONE] * 2, tenant="b"):
                await anyio.sleep_forever()

    task = asyncio.create_task(wait())
    await settle()
    for placement in held:
        fleet.release(placement.id)
    # Granted, but the task has not run since.
    assert fleet.capacity().cpus_free == 2
    scope.cancel() if how == "scope" else task.cancel()
    await asyncio.wait([task])
    assert idle(fleet)


async def test_an_error_in_the_block_gives_the_room_back() -> None:
    fleet = make()
    with pytest.raises(RuntimeError):
        async with placed(fleet, [ONE], tenant="a"):
            raise RuntimeError
    assert idle(fleet)


async def test_refusals_are_typed_and_say_when_to_come_back() -> None:
    clock = ManualClock()
    fleet = make(clock, waiting_max=2)
    with pytest.raises(NeverFitsError):
        await fleet.acquire([ONE] * 5, tenant="a")
    held = await fleet.acquire([ONE] * 4, tenant="a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_acquire_and_release, fleet, 2)
        await settle()
        with pytest.raises(QueueFullError) as caught:
            await fleet.acquire([ONE], tenant="b")
        assert caught.value.retry_after_s is not None and 0 < caught.value.retry_after_s <= 300
        for placement in held:
            fleet.release(placement.id)
    assert idle(fleet)


async def _acquire_and_release(fleet: Fleet, count: int) -> None:
    async with placed(fleet, [ONE] * count, tenant="w"):
        await anyio.lowlevel.checkpoint()


plans = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=20)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans)
def test_any_crowd_is_served_within_the_bounds_and_leaves_nothing(plan: list[tuple[str, int, int, bool]]) -> None:
    async def crowd() -> None:
        fleet = make()
        used = served = 0

        async def one(tenant: str, count: int, rounds: int, give_up: bool) -> None:
            nonlocal used, served
            with anyio.CancelScope() as scope:
                if give_up:
                    scope.cancel()
                async with placed(fleet, [ONE] * count, tenant=tenant):
                    used += count
                    assert used <= 4
                    for _ in range(rounds):
                        await anyio.lowlevel.checkpoint()
                    used -= count
                    served += 1

        async with anyio.create_task_group() as tasks:
            for who in plan:
                tasks.start_soon(one, *who)
        assert served == sum(not give_up for *_, give_up in plan)
        assert idle(fleet)

    anyio.run(crowd)


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
