"""Others that do the same work on this machine: a fresh `bwrap` and a fresh `runc run` of `true`."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ropewalk.sandbox.drivers.process import bubblewrap


def fresh_ms(root: Path) -> dict[str, float | None]:
    """p50 in ms of each peer over the root file system `root`; None where it is missing or does not start."""
    return {"bwrap": _bwrap_ms(root), "runc": _runc_ms(root)}


def _median_ms(run: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def _bwrap_ms(root: Path, *, rounds: int = 20) -> float | None:
    command = [bubblewrap.find().path, "--unshare-all", "--ro-bind", str(root), "/", "--dev", "/dev", "true"]

    def run() -> None:
        subprocess.run(command, check=True, capture_output=True)

    try:
        run()
    except (OSError, subprocess.CalledProcessError):
        return None
    return _median_ms(run, rounds)


def _runc_ms(root: Path, *, rounds: int = 10) -> float | None:
    runc = shutil.which("runc") or shutil.which("runc", path="/usr/sbin")
    if runc is None:
        return None
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as folder:
        bundle = Path(folder)
        try:
            subprocess.run([runc, "spec", "--bundle", folder], check=True, capture_output=True)
            config = json.loads((bundle / "config.json").read_text())
            config["process"].update(args=["true"], terminal=False)
            config["root"] = {"path": str(root), "readonly": True}
            (bundle / "config.json").write_text(json.dumps(config))
            counter = iter(range(rounds + 1))

            def run() -> None:
                name = f"ropewalk-bench-{bundle.name}-{next(counter)}"
                command = [runc, "--root", f"{folder}/state", "run", "--bundle", folder, name]
                subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)

            run()
            return _median_ms(run, rounds)
        except (OSError, subprocess.CalledProcessError):
            return None
