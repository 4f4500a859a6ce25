"""A tenth of all sandboxes is killed in mid-run: no fake zero, and every group is complete or a typed refusal.

The policy is `oracle`, which is right every time: whatever is paid less than 1.0 was taken from it by our side.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import anyio

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.benchmarks.workload import prepared, search_plan
from ropewalk.core.errors import RopewalkError
from ropewalk.reward.verdict import Reward
from ropewalk.rollout.plan import PolicyName
from ropewalk.rollout.rows import EpisodeRow, GroupRow

SHARE = 0.1
EVERY_S = 0.05


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`rollout.fake_zeros`, `rollout.incomplete_groups`, `rollout.refused_groups`."""
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
        groups = rw.custody.journal.groups(run.id)
    fake = [reward for reward in rewards if reward.value is not None and reward.value < 1.0]
    incomplete, refused = tally(groups, rows, rewards, size=plan.run.group)
    causes = Counter(reward.cause for reward in rewards)
    note = f"{killer.killed} of {killer.seen} sandboxes killed; " + ", ".join(f"{n} × {c}" for c, n in causes.items())
    return [
        measured("rollout.fake_zeros", len(fake), note=note),
        measured("rollout.incomplete_groups", len(incomplete), note=f"{len(groups)} groups"),
        measured("rollout.refused_groups", len(refused), note=", ".join(sorted({group.cause for group in refused}))),
    ]


def tally(
    groups: Sequence[GroupRow], rows: Sequence[EpisodeRow], rewards: Sequence[Reward], *, size: int
) -> tuple[list[GroupRow], list[GroupRow]]:
    """Groups that are neither whole nor typed refusals, and those that are such refusals.

    Whole is a group with `size` rewards that have a value: an unscored one is no member.
    """
    group_of = {row.id: row.group_id for row in rows}
    valued = Counter(group_of[reward.episode] for reward in rewards if reward.value is not None)
    refused = [group for group in groups if group.state == "refused" and group.cause]
    whole = [group for group in groups if group.state == "complete" and valued[group.id] == size]
    return [group for group in groups if group not in refused and group not in whole], refused


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
