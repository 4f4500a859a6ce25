"""Latency of creating, forking and commanding sandboxes, and what a fork costs in CPU time."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks import peers
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.sandbox import Sandbox, Snapshot

ROUNDS = 40
WARM_UP = 5

OpenSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`sandbox.create_to_first_exec`, `.fork_to_first_exec`, `.exec_round_trip`, `.cpu_per_fork`."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as folder:
        return await _measure(Path(folder), progress)


async def _measure(state: Path, progress: Callable[[str], None]) -> list[Measurement]:
    async with Ropewalk.open(state=state) as rw:
        progress("building the default image")
        image = await rw.machines.image()
        progress("peers: a fresh bwrap, a fresh runc")
        fresh = peers.fresh_ms(rw.machines.layers.path(image.layers[0]))
        progress(f"create to first exec, {ROUNDS} times")
        create = await _first_exec_ms(rw.sandbox)
        async with rw.sandbox() as sandbox:
            await sandbox.write("/work/state.txt", "x" * 100_000)
            progress("exec round trips")
            execs = await _round_trips_ms(sandbox)
            snapshot = await sandbox.snapshot(label="bench")
        try:
            progress(f"fork to first exec, {ROUNDS} times")
            fork = await _first_exec_ms(lambda: _forked(snapshot))
            cpu_ms = await _cpu_per_fork_ms(snapshot)
        finally:
            await rw.sandboxes.drop_snapshot(snapshot.id)
    note = "all processes of this machine, the command's own cost included; others at work here count too"
    return [
        measured("sandbox.create_to_first_exec", statistics.median(create), samples=create, peers=fresh),
        measured("sandbox.fork_to_first_exec", statistics.median(fork), samples=fork, peers=fresh),
        measured("sandbox.exec_round_trip", statistics.median(execs), samples=execs, peers=fresh),
        measured("sandbox.cpu_per_fork", statistics.median(cpu_ms), samples=cpu_ms, note=note),
    ]


@asynccontextmanager
async def _forked(snapshot: Snapshot) -> AsyncIterator[Sandbox]:
    async with snapshot.fork(1) as (child,):
        yield child


async def _first_exec_ms(open_sandbox: OpenSandbox) -> list[float]:
    times = []
    for _ in range(WARM_UP + ROUNDS):
        start = time.perf_counter()
        async with open_sandbox() as sandbox:
            await sandbox.exec(["true"])
            times.append((time.perf_counter() - start) * 1000)
    return times[WARM_UP:]


async def _round_trips_ms(sandbox: Sandbox) -> list[float]:
    times = []
    for _ in range(220):
        start = time.perf_counter()
        await sandbox.exec(["true"])
        times.append((time.perf_counter() - start) * 1000)
    return times[20:]


async def _cpu_per_fork_ms(snapshot: Snapshot) -> list[float]:
    """CPU time of the whole machine per fork, command and destruction: in five batches, since ticks are coarse."""
    per_fork = []
    for _ in range(5):
        before = _machine_cpu_s()
        for _ in range(20):
            async with snapshot.fork(1) as (child,):
                await child.exec(["true"])
        per_fork.append((_machine_cpu_s() - before) * 1000 / 20)
    return per_fork


def _machine_cpu_s() -> float:
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    idle_and_wait = (3, 4)
    busy = sum(int(ticks) for place, ticks in enumerate(fields) if place not in idle_and_wait)
    return busy / os.sysconf("SC_CLK_TCK")
