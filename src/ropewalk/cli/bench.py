"""`ropewalk bench`: every promise, measured beside its peers, on this machine."""

from __future__ import annotations

import json as jsons
import os
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import date
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
def bench(
    *names: str,
    out: Path | None = None,
    page: Path | None = None,
    gate: bool = False,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Measures what `specification.toml` promises, each beside its peers in the same run.

    Benchmarks use states of their own; on a machine that others use too, absolute times move.

    Args:
        names: Benchmarks to run; all by default.
        out: Folder for one JSON file per benchmark.
        page: Markdown file for the table (docs/reference/measured.md is made so).
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
    if page is not None:
        page.write_text(_page(found))
    if json:
        print_json(found)
    else:
        _show(found)
    gated = {promise.id for promise in promises() if promise.gated}
    return int(gate and any(each.kept is False for each in found if each.promise in gated))


def _told(name: str) -> Callable[[str], None]:
    return lambda text: print(f"{name}: {text}", file=sys.stderr, flush=True)


def _machine() -> dict[str, object]:
    system = f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}"
    return {"system": system, "python": platform.python_version(), "cores": os.cpu_count()}


def _page(found: Sequence[Measurement]) -> str:
    lines = [
        "# Measured",
        "",
        "What `ropewalk bench --page docs/reference/measured.md` gave on "
        + f"{date.today().isoformat()}: {', '.join(f'{name} {value}' for name, value in _machine().items())}.",
        "The promises, with their texts, are in `src/ropewalk/benchmarks/specification.toml`.",
        "",
        "| promise | measured | goal | kept | peers in the same run | note |",
        "|---|---|---|---|---|---|",
    ]
    for each in found:
        peers = ", ".join(f"{name} {'absent' if v is None else f'{v:g}'}" for name, v in each.peers.items())
        value = "not measured" if each.value is None else f"{each.value:g} {each.unit}"
        kept = {None: "unknown", True: "yes", False: "**no**"}[each.kept]
        lines.append(f"| {each.promise} | {value} | {each.goal:g} {each.unit} | {kept} | {peers} | {each.note} |")
    return "\n".join(lines) + "\n"


def _write(file: Path, measurements: Sequence[Measurement]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(jsons.dumps({"machine": _machine(), "measurements": to_plain(measurements)}, indent=2) + "\n")


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
