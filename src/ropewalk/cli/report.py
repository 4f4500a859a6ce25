"""`ropewalk report`: a run's report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ropewalk.cli.apps import HERE, Place, verb
from ropewalk.cli.opening import chosen_run, custody
from ropewalk.cli.output import print_json, say
from ropewalk.cli.run_view import print_catalogue, print_cost, print_summary, print_where, state_line

app = verb(
    "report",
    examples=[
        "ropewalk report run:01JDY…",
        "ropewalk report run:01JDY… --html report.html --anchor /mnt/usb",
        "ropewalk report run:01JDY… --set utilisation=0.3 --set capex_usd=20000",
    ],
)


@app.default
def report(
    run: str | None = None,
    *,
    html: Path | None = None,
    prices: Path | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set")] = None,
    anchor: Path | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Prints a run's table and writes its HTML report, one file that needs nothing else.

    Args:
        run: Its id. Default: the newest.
        html: Where to write the HTML file. Default: in the run's folder.
        prices: Price file, instead of the plan's.
        set: A single price as key=value; may be repeated.
        anchor: Folder with pinned keys and checkpoint, as `ropewalk provenance anchor` writes it.
        json: Print the summary as JSON.
    """
    from ropewalk.app.costs import cost_of_run
    from ropewalk.app.custody import anchors_from
    from ropewalk.app.reporting import loaded_run, write_report
    from ropewalk.rollout.summarise import summary_of

    anchors = anchors_from(anchor) if anchor else None
    with custody(place) as kept:
        chosen = chosen_run(kept.journal, run)
        loaded = loaded_run(kept, chosen)
        path = write_report(kept, loaded, html, anchors=anchors, price_file=prices, prices=tuple(set or ()))
    summary = summary_of(loaded)
    if json:
        print_json(summary)
        return 0
    print_summary(summary)
    say()
    print_where(summary)
    print_cost(cost_of_run(summary, loaded.plan.price, file=prices, over=tuple(set or ())))
    say()
    print_catalogue(summary)
    say()
    say(state_line(summary), style="yellow" if summary.state == "open" else "")
    say(f"Report   {path}")
    return 0
