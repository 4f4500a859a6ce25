"""A tenth of all sandboxes is killed in mid-run: no fake zero, and every group is complete or a typed refusal.

The policy is `oracle`, which is right every time: whatever is paid less than 1.0 was taken from it by our side.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable

import anyio

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.benchmarks.workload import prepared, search_plan
from ropewalk.core.errors import RopewalkError
from ropewalk.rollout.plan import PolicyName

SHARE = 0.1
EVERY_S = 0.05


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`rollout.fake_zeros`, `rollout.incomplete_groups`."""
    plan = search_plan(tasks=4, group=8, policy=PolicyName.ORACLE)
    async with prepared(plan, progress) as (rw, tasks):
        killer = _Killer(rw)
        async with anyio.create_task_group() as group:
            group.start_soon(killer.work)
            progress("a run in which one sandbox in ten is killed")
            run = await rw.run(plan, tasks=tasks)
            rewards = [reward async for reward in run.rewards()]
            group.cancel_scope.cancel()
        rows = rw.custody.journal.episodes(run.id)
    fake = [reward for reward in rewards if reward.value is not None and reward.value < 1.0]
    sizes: dict[str, int] = defaultdict(int)
    for row in rows:
        sizes[row.group_id] += any(reward.episode == row.id for reward in rewards)
    incomplete = [group for group, size in sizes.items() if size != plan.run.group]
    causes = Counter(reward.cause for reward in rewards)
    note = f"{killer.killed} of {killer.seen} sandboxes killed; " + ", ".join(f"{n} × {c}" for c, n in causes.items())
    return [
        measured("rollout.fake_zeros", len(fake), note=note),
        measured("rollout.incomplete_groups", len(incomplete), note=f"{len(sizes)} groups"),
    ]


class _Killer:
    """Destroys, behind everybody's back, each sandbox that it sees for the first time with a chance of a tenth."""

    def __init__(self, rw: Ropewalk) -> None:
        self._rw = rw
        self._chance = random.Random(7)  # a schedule, not a secret
        self._known: set[str] = set()
        self.killed = 0

    @property
    def seen(self) -> int:
        """Sandboxes so far."""
        return len(self._known)

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            for record in await self._rw.sandboxes.records():
                if record.id not in self._known:
                    self._known.add(record.id)
                    if self._chance.random() < SHARE:
                        await self._kill(record.id)
            await anyio.sleep(EVERY_S)

    async def _kill(self, id: str) -> None:
        try:
            await self._rw.sandboxes.destroy(id)
            self.killed += 1
        except RopewalkError:
            pass  # it ended by itself meanwhile
