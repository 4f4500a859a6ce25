"""`ropewalk bench`: every promise, measured beside its peers, on this machine."""

from __future__ import annotations

import json as jsons
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from ropewalk.cli.apps import HERE, Place, verb
from ropewalk.cli.output import print_json, print_table
from ropewalk.core.records import to_plain

if TYPE_CHECKING:
    from ropewalk.benchmarks.promises import Measurement

app = verb(
    "bench",
    examples=[
        "ropewalk bench",
        "ropewalk bench sandbox_latency --out out/benchmarks",
        "ropewalk bench command_line install_size --json",
    ],
)


@app.default
def bench(*names: str, out: Path | None = None, gate: bool = False, json: bool = False, place: Place = HERE) -> int:
    """Measures what `specification.toml` promises, each beside its peers in the same run.

    Benchmarks use states of their own; on a machine that others use too, absolute times move.

    Args:
        names: Benchmarks to run; all by default.
        out: Folder for one JSON file per benchmark.
        gate: Exit with 1 where a gated promise (a count or a ratio) is not kept.
        json: Print JSON.
    """
    from ropewalk.benchmarks.promises import benchmark, promises

    chosen = names or tuple(dict.fromkeys(promise.benchmark for promise in promises()))
    ready = {name: benchmark(name) for name in chosen}
    found: list[Measurement] = []
    for name, measure in ready.items():
        measurements = anyio.run(measure, _told(name))
        found += measurements
        if out is not None:
            _write(out / f"{name}.json", measurements)
    if json:
        print_json(found)
    else:
        _show(found)
    gated = {promise.id for promise in promises() if promise.gated}
    return int(gate and any(each.kept is False for each in found if each.promise in gated))


def _told(name: str) -> Callable[[str], None]:
    return lambda text: print(f"{name}: {text}", file=sys.stderr, flush=True)


def _write(file: Path, measurements: Sequence[Measurement]) -> None:
    machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(jsons.dumps({"machine": machine, "measurements": to_plain(measurements)}, indent=2) + "\n")


def _show(found: Sequence[Measurement]) -> None:
    print_table(
        ("promise", ">measured", ">goal", "unit", "kept", "peers", "note"),
        (
            (
                each.promise,
                "—" if each.value is None else f"{each.value:g}",
                f"{each.goal:g}",
                each.unit,
                {None: "unknown", True: "yes", False: "no"}[each.kept],
                ", ".join(f"{name} {'absent' if v is None else f'{v:g}'}" for name, v in each.peers.items()),
                each.note,
            )
            for each in found
        ),
        empty="Nothing was measured.",
    )
