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
from ropewalk.machinery.files import replace_whole

if TYPE_CHECKING:
    from ropewalk.benchmarks.promises import Measurement

app = verb(
    "bench",
    examples=[
        "ropewalk bench",
        "ropewalk bench sandbox_latency --out out/benchmarks",
        "ropewalk bench command_line install_size --json",
        "ropewalk bench --record src/ropewalk/benchmarks/specification.toml --page docs/reference/measured.md",
    ],
)


@app.default
def bench(
    *names: str,
    out: Path | None = None,
    record: Path | None = None,
    page: Path | None = None,
    machine: str = "",
    gate: bool = False,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Measures what `specification.toml` promises, each beside its peers in the same run.

    Benchmarks use states of their own; on a machine that others use too, absolute times move.

    Args:
        names: Benchmarks to run; all by default.
        out: Folder for one JSON file per benchmark.
        record: Specification to write the values into, beside their promises. Others keep what they have.
        page: Markdown file for the table of the recorded values (docs/reference/measured.md is made so).
        machine: More about this machine, to record: "nothing else at work".
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
        if record is not None:  # each at once: a later one may fail
            _record(record, measurements, machine)
    if page is not None:
        _show_recorded(page, record)
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


def _record(specification: Path, found: Sequence[Measurement], more: str) -> None:
    from ropewalk.benchmarks.recorded import record

    machine = ", ".join([*(f"{name} {value}" for name, value in _machine().items()), *([more] if more else [])])
    text = specification.read_text(encoding="utf-8")
    replace_whole(specification, record(text, found, on=date.today().isoformat(), machine=machine).encode())


def _show_recorded(page: Path, specification: Path | None) -> None:
    from ropewalk.benchmarks import recorded

    source = specification or Path(recorded.__file__).with_name("specification.toml")
    replace_whole(page, recorded.page(source.read_text(encoding="utf-8")).encode())


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
