"""How long `ropewalk --help` takes, beside an empty Python process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from anyio.to_thread import run_sync

from ropewalk.benchmarks.promises import Measurement, measured

ROUNDS = 15


def _timed_ms(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`cli.help`."""
    progress(f"ropewalk --help, {ROUNDS} times")

    def rounds() -> tuple[list[float], list[float]]:
        ours, empty = [], []
        for _ in range(ROUNDS):
            ours.append(_timed_ms([sys.executable, "-m", "ropewalk.cli", "--help"]))
            empty.append(_timed_ms([sys.executable, "-c", "pass"]))
        return ours, empty

    ours, empty = await run_sync(rounds)
    peers: dict[str, float | None] = {"python -c pass": statistics.median(empty)}
    return [measured("cli.help", statistics.median(ours), samples=ours, peers=peers)]
