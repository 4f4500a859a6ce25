"""A tenth of all sandboxes is killed or stopped in mid-run: no fake zero, and every group is whole or a typed refusal.

The same run goes undisturbed first. Seeds are the same, so whatever is paid less in the second was taken from it by
our side.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import anyio

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.benchmarks.workload import prepared, search_plan
from ropewalk.interface.task import Task
from ropewalk.reward.verdict import Reward
from ropewalk.rollout.plan import Plan, PolicyName
from ropewalk.rollout.plan_file import plan_from_settings
from ropewalk.rollout.rows import EpisodeRow, GroupRow
from ropewalk.sandbox.drivers.process import cgroups, processes
from ropewalk.sandbox.drivers.process.folders import Folders, Processes

SHARE: Final = 0.1
EVERY_S: Final = 0.02
WAYS: Final = ("init", "bubblewrap", "stopped", "init", "bubblewrap", "frozen", "init", "spawner")
"""In turn. SIGKILL to the sandbox's first process, to bubblewrap outside of it, or to the spawner, which takes all
that live with it; SIGSTOP to the first process, or its control group frozen: it neither answers nor ends."""


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`rollout.fake_zeros`, `rollout.incomplete_groups`, `rollout.refused_groups`."""
    plan = _with_policies(search_plan(tasks=3, group=4, steps=4), PolicyName.ORACLE, PolicyName.SEARCH)
    async with prepared(plan, progress) as (rw, tasks):
        progress("a run that nobody disturbs")
        expected = await _values(rw, plan, tasks)
        killer = Killer(rw)
        progress("the same, in which one sandbox in ten is killed or stopped")
        async with anyio.create_task_group() as group:
            group.start_soon(killer.work)
            run = await rw.run(plan, tasks=tasks)
            rewards = [reward async for reward in run.rewards()]
            group.cancel_scope.cancel()
        rows = rw.custody.journal.episodes(run.id)
        groups = rw.custody.journal.groups(run.id)
    fake = underpaid(rows, rewards, expected)
    incomplete, refused = tally(groups, rows, rewards, size=plan.run.group)
    causes = Counter(reward.cause for reward in rewards)
    ways = ", ".join(f"{count} × {way}" for way, count in killer.done.items())
    note = f"of {killer.seen} sandboxes {ways}; rewards: " + ", ".join(f"{n} × {c}" for c, n in causes.items())
    return [
        measured("rollout.fake_zeros", len(fake), note=note),
        measured("rollout.incomplete_groups", len(incomplete), note=f"{len(groups)} groups"),
        measured("rollout.refused_groups", len(refused), note=", ".join(sorted({group.cause for group in refused}))),
    ]


def _with_policies(plan: Plan, *policies: PolicyName) -> Plan:
    return plan_from_settings({"run.policies": policies}, base=plan)


Place = tuple[str, str, int]
"""Task, policy and position in the group: what decides an episode's seed."""


async def _values(rw: Ropewalk, plan: Plan, tasks: Sequence[Task]) -> dict[Place, float | None]:
    run = await rw.run(plan, tasks=tasks)
    rewards = [reward async for reward in run.rewards()]
    return values(rw.custody.journal.episodes(run.id), rewards)


def values(rows: Sequence[EpisodeRow], rewards: Sequence[Reward]) -> dict[Place, float | None]:
    """What each episode was paid."""
    places = {row.id: (row.task, row.policy, row.position) for row in rows}
    return {places[reward.episode]: reward.value for reward in rewards}


def underpaid(
    rows: Sequence[EpisodeRow], rewards: Sequence[Reward], expected: Mapping[Place, float | None]
) -> list[Place]:
    """Episodes that were scored, and lower than undisturbed. An oracle's are worth 1 in any case."""
    found = []
    for place, value in values(rows, rewards).items():
        due = 1.0 if place[1] == PolicyName.ORACLE else expected.get(place)
        if value is not None and due is not None and value < due:
            found.append(place)
    return found


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


class Killer:
    """Takes each sandbox that it sees for the first time, with a chance of a tenth, from behind everybody's back."""

    def __init__(self, rw: Ropewalk, *, ways: Sequence[str] = WAYS, share: float = SHARE) -> None:
        self._rw = rw
        self._folders = Folders(rw.custody.layout)
        self._chance = random.Random(7)  # a schedule, not a secret
        self._share = share
        self._ways: Iterator[str] = itertools.cycle(ways)
        self._known: set[str] = set()
        self.done: Counter[str] = Counter()

    @property
    def seen(self) -> int:
        """Sandboxes so far."""
        return len(self._known)

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            for record in await self._rw.sandboxes.records():
                found = self._folders.of(record.id).processes()
                if record.id not in self._known and found is not None and found.init_alive():
                    self._known.add(record.id)
                    if self._chance.random() < self._share:
                        way = next(self._ways)
                        with suppress(OSError):  # it ended by itself meanwhile
                            end(found, way)
                            self.done[way] += 1
            await anyio.sleep(EVERY_S)


def end(found: Processes, way: str) -> None:
    """Kills or stops a sandbox, from outside.

    Raises:
        OSError: it is not there any more.
    """
    if way == "frozen" and "freezer" in found.groups:
        cgroups.freeze(found.groups, frozen=True, timeout_s=0.0)
    elif way in ("stopped", "frozen"):
        os.kill(found.init_pid, signal.SIGSTOP)
    elif way == "spawner":
        os.kill(processes.parent(found.pid), signal.SIGKILL)
    else:
        os.kill(found.init_pid if way == "init" else found.pid, signal.SIGKILL)
