"""What every fleet driver must keep, as tests to inherit:

    class TestMine(FleetConformance):
        def make_fleet(self): return MyFleet(…)

Collected by pytest; the asynchronous ones need anyio's plugin (`anyio_mode = "auto"`).
"""

from __future__ import annotations

import asyncio
import random

import anyio
import anyio.lowlevel
import pytest

from ropewalk.core.errors import CallerError
from ropewalk.core.limits import GIB
from ropewalk.orchestration.contract import Fleet, NeverFitsError, Placement, QueueFullError, ResourceRequest
from ropewalk.orchestration.fleet import placed

FITS = 4
"""Of `FleetConformance.ONE`, on the fleet that is tested."""


def is_idle(fleet: Fleet) -> bool:
    """Whether nobody has anything or waits."""
    capacity, queue = fleet.capacity(), fleet.queue()
    return (capacity.cpus_free, capacity.memory_bytes_free, queue.placed, queue.waiting) == (
        capacity.cpus, capacity.memory_bytes, 0, 0,
    )  # fmt: skip


async def settled() -> None:
    """Lets every task run that can."""
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


async def _held_for_a_turn(fleet: Fleet, request: ResourceRequest, count: int) -> None:
    async with placed(fleet, [request] * count, tenant="w"):
        await anyio.lowlevel.checkpoint()


class FleetConformance:
    """Inherit, and override `make_fleet`."""

    ONE = ResourceRequest(cpus=1, memory_bytes=GIB)

    def make_fleet(self, *, waiting_max: int = 100) -> Fleet:
        """An idle fleet with room for exactly `FITS` of `ONE`, and with so many places in its queue."""
        raise NotImplementedError

    def test_probe_says_what_is_there(self) -> None:
        fleet = self.make_fleet()
        assert isinstance(fleet, Fleet)
        probe = fleet.probe()
        assert probe.usable and probe.driver and probe.capacity == fleet.capacity()
        assert probe.capacity.hosts >= 1 and probe.capacity.cpus >= FITS * self.ONE.cpus
        assert is_idle(fleet)

    async def test_a_group_is_placed_at_once_and_released_by_the_block(self) -> None:
        fleet = self.make_fleet()
        async with placed(fleet, [self.ONE] * 3, tenant="acme") as placements:
            assert len({placement.id for placement in placements}) == 3
            assert all((p.tenant, p.request) == ("acme", self.ONE) and p.host for p in placements)
            assert fleet.queue().placed_by_tenant == {"acme": 3}
            free = fleet.capacity().cpus_free
            fleet.release(placements[0].id)
            fleet.release(placements[0].id)
            assert fleet.capacity().cpus_free == free + self.ONE.cpus
        assert is_idle(fleet)
        fleet.release("placement:unknown")
        assert is_idle(fleet)

    async def test_a_group_waits_until_all_of_it_fits(self) -> None:
        fleet = self.make_fleet()
        first = await fleet.acquire([self.ONE] * 3, tenant="a")
        done: list[tuple[Placement, ...]] = []

        async def wait() -> None:
            done.append(await fleet.acquire([self.ONE] * FITS, tenant="b"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await settled()
            queue = fleet.queue()
            assert (queue.waiting, queue.waiting_by_tenant) == (FITS, {"b": FITS})
            for placement in first[:2]:
                fleet.release(placement.id)
            await settled()
            assert not done
            fleet.release(first[2].id)
        for placement in done[0]:
            fleet.release(placement.id)
        assert is_idle(fleet)

    async def test_who_came_first_is_not_passed_by_who_is_smaller(self) -> None:
        fleet = self.make_fleet()
        held = await fleet.acquire([self.ONE] * 3, tenant="a")
        order: list[int] = []

        async def wait(count: int) -> None:
            async with placed(fleet, [self.ONE] * count, tenant="a"):
                order.append(count)

        async with anyio.create_task_group() as tasks:
            for count in (FITS, 1):
                tasks.start_soon(wait, count)
                await settled()
            assert not order
            for placement in held:
                fleet.release(placement.id)
        assert order == [FITS, 1]

    async def test_between_tenants_it_goes_round(self) -> None:
        fleet = self.make_fleet()
        held = await fleet.acquire([self.ONE] * FITS, tenant="z")
        order: list[str] = []

        async def wait(tenant: str) -> None:
            async with placed(fleet, [self.ONE] * FITS, tenant=tenant):
                order.append(tenant)

        async with anyio.create_task_group() as tasks:
            for tenant in ("a", "a", "a", "b"):
                tasks.start_soon(wait, tenant)
                await settled()
            for placement in held:
                fleet.release(placement.id)
        assert order.index("b") <= 1, order

    async def test_a_cancelled_wait_leaves_nothing_and_lets_others_on(self) -> None:
        fleet = self.make_fleet()
        held = await fleet.acquire([self.ONE] * 3, tenant="a")
        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(0.01) as scope:
                await fleet.acquire([self.ONE] * FITS, tenant="b")
            assert scope.cancelled_caught
            # The place in the queue is free again: whoever fits is served.
            tasks.start_soon(_held_for_a_turn, fleet, self.ONE, 1)
        assert fleet.queue().waiting == 0
        for placement in held:
            fleet.release(placement.id)
        assert is_idle(fleet)

    @pytest.mark.parametrize("how", ["scope", "task"])
    async def test_cancelled_in_the_instant_of_the_grant_leaves_nothing(self, how: str) -> None:
        fleet = self.make_fleet()
        held = await fleet.acquire([self.ONE] * FITS, tenant="a")
        scope = anyio.CancelScope()

        async def wait() -> None:
            with scope:
                async with placed(fleet, [self.ONE] * 2, tenant="b"):
                    await anyio.sleep_forever()

        task = asyncio.create_task(wait())
        await settled()
        for placement in held:
            fleet.release(placement.id)
        # Maybe granted, but the task has not run since.
        scope.cancel() if how == "scope" else task.cancel()
        await asyncio.wait([task])
        assert is_idle(fleet)

    async def test_an_error_in_the_block_gives_the_room_back(self) -> None:
        fleet = self.make_fleet()
        with pytest.raises(RuntimeError):
            async with placed(fleet, [self.ONE], tenant="a"):
                raise RuntimeError
        assert is_idle(fleet)

    async def test_what_never_fits_and_what_is_none_is_refused_at_once(self) -> None:
        fleet = self.make_fleet()
        whole = fleet.capacity()
        for many in (
            [self.ONE] * (FITS + 1),
            [ResourceRequest(cpus=2 * whole.cpus, memory_bytes=1)],
            [ResourceRequest(cpus=self.ONE.cpus, memory_bytes=2 * whole.memory_bytes)],
        ):
            with pytest.raises(NeverFitsError):
                await fleet.acquire(many, tenant="a")
        for wrong in (
            [],
            [ResourceRequest(cpus=0, memory_bytes=1)],
            [self.ONE, ResourceRequest(cpus=1, memory_bytes=-1)],
        ):
            with pytest.raises(CallerError):
                await fleet.acquire(wrong, tenant="a")
        assert is_idle(fleet)

    async def test_a_full_queue_says_when_to_come_back(self) -> None:
        fleet = self.make_fleet(waiting_max=2)
        held = await fleet.acquire([self.ONE] * FITS, tenant="a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_held_for_a_turn, fleet, self.ONE, 2)
            await settled()
            with pytest.raises(QueueFullError) as caught:
                await fleet.acquire([self.ONE], tenant="b")
            assert caught.value.retry_after_s is not None and caught.value.retry_after_s > 0
            for placement in held:
                fleet.release(placement.id)
        assert is_idle(fleet)

    @pytest.mark.parametrize("seed", range(40))
    async def test_any_crowd_is_served_within_the_bounds_and_leaves_nothing(self, seed: int) -> None:
        chance = random.Random(seed)
        fleet = self.make_fleet()
        used = served = 0

        async def one(tenant: str, count: int, turns: int, gives_up: bool) -> None:
            nonlocal used, served
            with anyio.CancelScope() as scope:
                if gives_up:
                    scope.cancel()
                async with placed(fleet, [self.ONE] * count, tenant=tenant):
                    used += count
                    assert used <= FITS
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    used -= count
                    served += 1

        crowd = [
            (chance.choice("abc"), chance.randint(1, FITS), chance.randint(0, 3), chance.random() < 0.5)
            for _ in range(chance.randint(0, 20))
        ]
        async with anyio.create_task_group() as tasks:
            for who in crowd:
                tasks.start_soon(one, *who)
        assert served == sum(not gives_up for *_, gives_up in crowd)
        assert is_idle(fleet)
