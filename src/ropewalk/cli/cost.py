"""`ropewalk cost`: what a run cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ropewalk.cli.apps import HERE, Place, verb
from ropewalk.cli.opening import chosen_run, custody
from ropewalk.cli.output import print_json, print_table

app = verb("cost", examples=["ropewalk cost", "ropewalk cost run:01JDY… --prices mine.toml --set utilisation=0.3"])


@app.default
def cost(
    run: str | None = None,
    *,
    prices: Path | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set")] = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Shows the cost per sandbox-hour and per rollout on hosts of one's own, line by line, beside list prices
    and a goal.

    Args:
        run: Its id. Default: the newest.
        prices: Price file, instead of the plan's.
        set: A single price as key=value; may be repeated.
        json: Print JSON.
    """
    from ropewalk.app.costs import cost_lines, cost_of_run
    from ropewalk.app.reporting import loaded_run
    from ropewalk.rollout.summarise import summary_of

    with custody(place) as kept:
        chosen = chosen_run(kept.journal, run)
        loaded = loaded_run(kept, chosen, elsewhere=False)
    made = cost_of_run(summary_of(loaded), loaded.plan.price, file=prices, over=set or ())
    if json:
        print_json({"run": chosen, "cost": made})
        return 0
    print_table(
        ("", ">value", "how"), ((line.label, line.value, line.derivation) for line in cost_lines(made)), empty=""
    )
    return 0
