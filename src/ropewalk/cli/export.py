"""`ropewalk export`: trajectories and rewards for a trainer."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ropewalk.cli.apps import HERE, Place, verb
from ropewalk.cli.opening import chosen_run, custody
from ropewalk.cli.output import counted, print_json, say

app = verb(
    "export",
    examples=[
        "ropewalk export run:01JDY… --format jsonl --out trajectories.jsonl",
        "ropewalk export run:01JDY… --format atif --out trajectories/",
        "ropewalk export run:01JDY… | head -1 | python3 -m json.tool",
    ],
)


@app.default
def export(
    run: str | None = None,
    *,
    format: Literal["jsonl", "atif"] = "jsonl",
    out: Path | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Writes messages, actions, rewards and masks of all signed rewards of a run.

    Rewards that are None stay null, and the mask says why; a trainer that reads them as 0 trains on noise.

    Args:
        run: Its id. Default: the newest.
        format: jsonl: one line per episode; atif: one Harbor trajectory document per episode.
        out: A file for jsonl, a folder for atif. Default: standard output, one document per line.
        json: Print what was written as JSON (needs --out).
    """
    from ropewalk.app.exporting import exported, write_export

    with custody(place) as kept:
        chosen = chosen_run(kept.journal, run)
        row = kept.journal.run(chosen)
        if row.state == "open":
            print(f"note: {chosen} is open: what has no signed reward yet is not in it.", file=sys.stderr)
            print(f" next: ropewalk run --resume {chosen}", file=sys.stderr)
        if out is None:
            _write_lines(line for _, line in exported(kept, chosen, format))
            return 0
        count = write_export(kept, chosen, format, out)
    if json:
        print_json({"run": chosen, "state": row.state, "format": format, "out": str(out), "episodes": count})
    else:
        say(f"{counted(count, 'episode')} in {out}")
    return 0


def _write_lines(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line.rstrip(b"\n") + b"\n")
    sys.stdout.buffer.flush()
