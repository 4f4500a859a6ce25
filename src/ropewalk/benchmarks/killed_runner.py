"""A runner that ends in mid-run: Ctrl-C leaves nothing at once, `kill -9` nothing after a new start, which goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks import census
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.benchmarks.workload import search_plan
from ropewalk.core.ids import new_id
from ropewalk.core.records import canonical_bytes
from ropewalk.store.layout import Layout

_PROGRAM = """
import sys, asyncio
from pathlib import Path
from ropewalk.app.ropewalk import Ropewalk
from ropewalk.core.records import decode
from ropewalk.rollout.plan import Plan

async def main(state, plan, run):
    async with Ropewalk.open(state=Path(state)) as rw:
        started = await rw.run(decode(Path(plan).read_bytes(), Plan), run_id=run)
        async for reward in started.rewards():
            print(reward.id, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`sandbox.leaks_after_interrupt` and `sandbox.leaks_after_kill`."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as folder:
        state, plan_file, run = Path(folder) / "state", Path(folder) / "plan.json", new_id("run")
        plan = search_plan(tasks=2, group=2, steps=4)
        plan_file.write_bytes(canonical_bytes(plan))
        before = census.take(Layout(state))
        progress("a runner that is interrupted after its first reward")
        alive = await anyio.to_thread.run_sync(
            _run_and_end, [str(state), str(plan_file), new_id("run")], signal.SIGINT, before
        )
        interrupted = census.take(Layout(state)).left_since(before)
        progress("another one that is killed after its first reward")
        await anyio.to_thread.run_sync(_run_and_end, [str(state), str(plan_file), run], signal.SIGKILL, before)
        progress("a new start")
        async with Ropewalk.open(state=state) as rw:
            left = census.take(rw.custody.layout).left_since(before)
            rewards = [reward async for reward in (await rw.resume(run)).rewards()]
        left += census.take(Layout(state)).left_since(before)
    note = f"resumed to {len(rewards)} rewards; " + "; ".join(left[:5])
    seen = f"{alive} processes in sandboxes before; " + "; ".join(interrupted[:5])
    return [
        measured("sandbox.leaks_after_interrupt", len(interrupted), note=seen),
        measured("sandbox.leaks_after_kill", len(left), note=note),
    ]


def _run_and_end(arguments: list[str], number: signal.Signals, before: census.Census) -> int:
    """Ends a runner after a reward; returns how many processes its sandboxes had then."""
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as runner:
        assert runner.stdout is not None
        runner.stdout.readline()
        alive = census.take(Layout(Path(arguments[0]))).processes - before.processes
        os.kill(runner.pid, number)
    return len(alive)
