"""`ropewalk diagnose`: why is the reward flat?"""

from __future__ import annotations

from ropewalk.cli.apps import HERE, Place, verb
from ropewalk.cli.calling import program
from ropewalk.cli.opening import chosen_run, custody
from ropewalk.cli.output import print_json, print_table, say
from ropewalk.cli.run_view import print_findings

app = verb(
    "diagnose", examples=["ropewalk diagnose run:01JDY…", "ropewalk diagnose --full", "ropewalk diagnose --json"]
)


@app.default
def diagnose(run: str | None = None, *, full: bool = False, json: bool = False, place: Place = HERE) -> int:
    """Says why the reward is as it is: groups without advantage, truncations, failures of ours, time per stage.

    Args:
        run: Its id. Default: the newest.
        full: Name every task, group or episode that a finding speaks of, not only the first few.
        json: Print JSON.
    """
    from ropewalk.app.reporting import loaded_run
    from ropewalk.rollout.diagnose import findings_of
    from ropewalk.rollout.summarise import summary_of

    with custody(place) as kept:
        chosen = chosen_run(kept.journal, run)
        loaded = loaded_run(kept, chosen, elsewhere=False)
    found, summary = findings_of(loaded), summary_of(loaded)
    if json:
        print_json({"run": chosen, "findings": list(found), "time_s": summary.time_s})
        return 0
    print_findings(found, full=full, everything=f"{program()} diagnose {chosen} --full")
    say()
    total = sum(summary.time_s.values()) or 1.0
    print_table(
        ("stage", ">seconds", ">share"),
        (
            (name, f"{value:.1f}", f"{value / total:.0%}")
            for name, value in sorted(summary.time_s.items(), key=_largest)
        ),
        empty="",
    )
    return 0


def _largest(item: tuple[str, float]) -> float:
    return -item[1]
