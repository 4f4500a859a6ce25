"""64 episodes of `search`, 8 steps each: time, our own memory, what is left behind, and how long `verify` takes."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks import census
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.benchmarks.workload import prepared, search_plan, sized
from ropewalk.reward.verdict import Reward

SAMPLE_S = 0.5
EPISODES = 64


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`rollout.search_64_episodes`, `rollout.memory_of_ours`, `provenance.verify_run`, `sandbox.leaks_after_run`."""
    plan = search_plan()
    async with prepared(plan, progress) as (rw, tasks):
        plan = sized(plan, tasks, EPISODES)
        before = census.take(rw.custody.layout)
        peak = _Peak()
        async with anyio.create_task_group() as group:
            group.start_soon(peak.watch)
            progress(f"{len(tasks)} tasks × {plan.run.group} episodes of search")
            start = time.perf_counter()
            run = await rw.run(plan, tasks=tasks)
            rewards = [reward async for reward in run.rewards()]
            took_s = time.perf_counter() - start
            group.cancel_scope.cancel()
        left = census.take(rw.custody.layout).left_since(before)
        progress("verify")
        verify_s, status = await _verify_s(rw, run.id)
    return [
        measured("rollout.search_64_episodes", took_s, note=_note(rewards)),
        measured("rollout.memory_of_ours", peak.bytes / 1e6, note="this process and its spawners, sampled"),
        measured("provenance.verify_run", statistics.median(verify_s), samples=verify_s, note=f"status {status}"),
        measured("sandbox.leaks_after_run", len(left), note="; ".join(left[:5])),
    ]


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


def _note(rewards: list[Reward]) -> str:
    values = Counter("unscored" if reward.value is None else f"{reward.value:g}" for reward in rewards)
    return f"{len(rewards)} rewards: " + ", ".join(f"{count} × {value}" for value, count in sorted(values.items()))


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
