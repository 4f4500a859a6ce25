"""`ropewalk catalogue`: which tasks are worth keeping."""

from __future__ import annotations

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.opening import chosen_run, custody
from ropewalk.cli.output import print_json
from ropewalk.cli.run_view import print_catalogue

app = noun("catalogue", "Which tasks to keep, watch, retire or repair, from what was measured.")


@command(app, "ls", examples=["ropewalk catalogue ls", "ropewalk catalogue ls run:01JDY… --json"])
def ls(run: str | None = None, *, json: bool = False, place: Place = HERE) -> int:
    """Lists the call on each task of a run, with its reason.

    Args:
        run: Its id. Default: the newest.
        json: Print JSON.
    """
    from ropewalk.app.reporting import summary_of

    with custody(place) as kept:
        summary = summary_of(kept, chosen_run(kept.journal, run))
    print_json(list(summary.catalogue)) if json else print_catalogue(summary)
    return 0
