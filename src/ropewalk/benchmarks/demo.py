"""The demo from a fresh state directory to the verified run, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from anyio.to_thread import run_sync

from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.core.errors import UnavailableError


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`demo.seconds`. The sources come from the package index, so that its pace counts too.

    Raises:
        UnavailableError: the demo failed.
    """
    progress("ropewalk demo, on a fresh state")
    took_s, told = await run_sync(_demo)
    rewards = told["summary"]["episodes"]
    status = told["verification"]["status"]
    return [measured("demo.seconds", took_s, note=f"{len(rewards)} rewards, {status}")]


def _demo() -> tuple[float, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as state:
        start = time.perf_counter()
        command = [sys.executable, "-m", "ropewalk.cli", "demo", "--json", "--state", state]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        took_s = time.perf_counter() - start
    if done.returncode:
        raise UnavailableError(f"The demo ended with {done.returncode}: {done.stderr[-500:]}")
    return took_s, json.loads(done.stdout)
