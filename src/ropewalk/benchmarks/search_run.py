"""64 episodes of `search`, 8 steps each: time, our own memory, what is left behind, and how long `verify` takes."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from ropewalk.app.reporting import loaded_run
from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks import census
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.benchmarks.workload import STEPS, prepared, search_plan, sized
from ropewalk.interface.task import Task
from ropewalk.reward.verdict import Reward
from ropewalk.rollout.plan import Plan
from ropewalk.rollout.plan_file import plan_from_settings

SAMPLE_S = 0.5
EPISODES = 64


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`rollout.search_64_episodes`, `rollout.memory_of_ours`, `provenance.verify_run`, `sandbox.leaks_after_run`.

    An episode that is solved ends before its last step, so there are more episodes than promised: as many runs as it
    takes to make all the promised steps. All of their time counts.
    """
    plan = search_plan()
    async with prepared(plan, progress) as (rw, tasks):
        plan = sized(plan, tasks, EPISODES)
        before = census.take(rw.custody.layout)
        peak = _Peak()
        done = _Done()
        async with anyio.create_task_group() as group:
            group.start_soon(peak.watch)
            while done.steps < EPISODES * STEPS:
                progress(f"{len(tasks)} tasks × {plan.run.group} episodes of search; {done.steps} steps so far")
                run = await _timed(rw, plan, tasks, done)
                plan = _reseeded(plan)
            group.cancel_scope.cancel()
        left = census.take(rw.custody.layout).left_since(before)
        progress("verify")
        verify_s, status = await _verify_s(rw, run)
    return [
        measured("rollout.search_64_episodes", done.took_s, note=done.note()),
        measured("rollout.memory_of_ours", peak.bytes / 1e6, note="this process and its spawners, sampled"),
        measured("provenance.verify_run", statistics.median(verify_s), samples=verify_s, note=f"status {status}"),
        measured("sandbox.leaks_after_run", len(left), note="; ".join(left[:5])),
    ]


@dataclass
class _Done:
    """What the runs made so far."""

    took_s: float = 0.0
    steps: int = 0
    rewards: list[Reward] = field(default_factory=list)

    def note(self) -> str:
        values = Counter("unscored" if reward.value is None else f"{reward.value:g}" for reward in self.rewards)
        told = ", ".join(f"{count} × {value}" for value, count in sorted(values.items()))
        return f"{len(self.rewards)} episodes, {self.steps} steps; rewards {told}"


async def _timed(rw: Ropewalk, plan: Plan, tasks: Sequence[Task], done: _Done) -> str:
    start = time.perf_counter()
    run = await rw.run(plan, tasks=tasks)
    done.rewards += [reward async for reward in run.rewards()]
    done.took_s += time.perf_counter() - start
    loaded = await anyio.to_thread.run_sync(partial(loaded_run, rw.custody, run.id, elsewhere=False))
    done.steps += sum(len(episode.record.steps) for episode in loaded.episodes if episode.record)
    return run.id


def _reseeded(plan: Plan) -> Plan:
    return plan_from_settings({"run.seed": plan.run.seed + 1}, base=plan)


async def _verify_s(rw: Ropewalk, run: str) -> tuple[list[float], str]:
    """Against pinned keys and a checkpoint outside, as a buyer of rewards would."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-anchor-") as folder:
        anchors = rw.custody.export_anchor(Path(folder))
        times, status = [], ""
        for _ in range(3):
            start = time.perf_counter()
            status = str((await rw.verify(run, anchors=anchors)).status)
            times.append(time.perf_counter() - start)
        return times, status


class _Peak:
    """Resident memory of this process and of its direct children that run our own programs."""

    bytes = 0

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self.bytes = max(self.bytes, sum(map(_resident_bytes, [os.getpid(), *_own_children()])))
            await anyio.sleep(SAMPLE_S)


def _own_children() -> list[int]:
    """Direct children in our own pid namespace: spawners and holders, not what runs inside sandboxes."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    return [int(child) for child in children]


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
