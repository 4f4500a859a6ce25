"""The main job with a progress view, and what is said when it is through. Shared by `run` and `demo`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from ropewalk.cli.apps import on_interrupt
from ropewalk.cli.board import Board
from ropewalk.cli.calling import program
from ropewalk.cli.output import counted, say
from ropewalk.cli.run_view import (
    RunWatch,
    print_catalogue,
    print_cost,
    print_findings,
    print_summary,
    print_where,
    state_line,
)
from ropewalk.cli.task import BuildWatch
from ropewalk.core.errors import RopewalkError, leaves

if TYPE_CHECKING:
    from ropewalk.app.custody import Custody
    from ropewalk.app.ropewalk import Ropewalk
    from ropewalk.interface.task import Task
    from ropewalk.provenance.verification import Verification
    from ropewalk.rollout.loaded import LoadedRun
    from ropewalk.rollout.plan import Plan
    from ropewalk.rollout.summary import RunSummary

FINDINGS_SHOWN = 5


def check_report(report: Path | None) -> None:
    """Returns if the report can be written where it is wanted: better known before a run than after it.

    Raises:
        CallerError, UnavailableError: it cannot.
    """
    from ropewalk.machinery.files import check_out

    if report is not None:
        check_out(report)


async def prepare_tasks(rw: Ropewalk, plan: Plan, *, quiet: bool = False) -> Sequence[Task]:
    """The tasks that a plan names or builds, with progress.

    Raises:
        CallerError: no task was admitted.
    """
    from ropewalk.app.plan_checks import check_plan

    check_plan(plan, rw.profile)
    if plan.tasks.ids:
        return await rw.tasks_of(plan)

    with Board(quiet=quiet) as board:
        watch = BuildWatch(board)
        try:
            async with anyio.create_task_group() as group:
                # The first time, the default image is built while sources are fetched; who needs it waits for it.
                group.start_soon(partial(rw.machines.image, progress=board.note))
                tasks = await rw.tasks_of(plan, on_ingest=watch.ingested, on_build=watch.observe)
        except* RopewalkError as errors:
            raise next(leaves(errors)) from None
        board.end(counted(len(tasks), "task"))
    if not quiet:
        watch.print_attested()
        watch.print_notes()
    return tasks


async def conduct(
    rw: Ropewalk, *, plan: Plan | None = None, tasks: Sequence[Task] = (), resume: str = "", quiet: bool = False
) -> LoadedRun:
    """Starts or resumes a run, shows it, waits until it is through, and loads what came of it.

    Raises:
        RopewalkError: whatever ended the run early.
    """
    from ropewalk.app.reporting import loaded_run

    with Board(quiet=quiet) as board:
        watch = RunWatch(board)
        if plan is not None:
            run = await rw.run(plan, tasks=tasks, observe=watch.observe)
        else:
            run = await rw.resume(resume, observe=watch.observe)
        on_interrupt(f"{program()} run --resume {run.id}")
        await run.wait()
    return await anyio.to_thread.run_sync(loaded_run, rw.custody, run.id)


def finish(
    custody: Custody,
    loaded: LoadedRun,
    *,
    report: Path | None = None,
    json: bool = False,
    verification: Verification | None = None,
) -> tuple[RunSummary, Path]:
    """Writes the report, prints the outcome and what to do next (nothing with `json`). Returns the summary and the
    report's path. `verification`: of this very run, where it was verified just now; else the report's own is made."""
    from ropewalk.app.costs import cost_of_run
    from ropewalk.app.reporting import write_report
    from ropewalk.rollout.diagnose import findings_of
    from ropewalk.rollout.findings import FindingKind
    from ropewalk.rollout.summarise import summary_of

    summary = summary_of(loaded)
    found = [] if json else list(findings_of(loaded))
    if not json:
        print_summary(summary)
        say()
        print_where(summary)
        say()
        print_catalogue(summary)
        if found:
            say()
            print_findings(found[:FINDINGS_SHOWN], everything=f"{program()} diagnose {summary.run} --full")
        say()
        say(state_line(summary), style="bold")
    try:
        path = write_report(custody, loaded, report, verification=verification)
    except RopewalkError:
        say(f"{summary.run} is {summary.state}, and its rewards are signed; its report was not written.", error=True)
        raise
    if json:
        return summary, path
    say(f"Report   {path}")
    print_cost(cost_of_run(summary, loaded.plan.price))
    next_commands(summary, flat=any(finding.kind is FindingKind.NO_ADVANTAGE for finding in found))
    return summary, path


def next_commands(summary: RunSummary, *, flat: bool = False) -> None:
    """The exact commands to type next, with this run's ids. `flat`: there are groups whose rewards are all equal."""
    from ropewalk.reward.catalogue import CONTROLS

    called = program()
    sealed = [line for line in summary.episodes if line.reward]
    paid = next((line for line in sealed if (line.value or 0) > 0), None)
    unpaid = [line for line in sealed if not (line.value or 0) > 0]
    unpaid.sort(key=lambda line: (line.policy.startswith(CONTROLS), not line.steps))
    shown = paid or next((line for line in unpaid if line.value is not None), None)
    why = "why rewards are flat" if flat else "what stands out, and where the time went"
    commands = [(f"{called} diagnose {summary.run}", why)]
    trace = [(f"{called} trace {shown.reward}", "back to the raw file and its licence")] if shown else []
    commands = [*commands, *trace] if flat or not shown else [*trace, *commands]
    commands += [(f"{called} verify {summary.run}", "every signature, digest and the log")]
    if unpaid:
        commands += [
            (f"{called} episode show {unpaid[0].episode}", "what an unpaid episode did"),
            (f"{called} episode attach {unpaid[0].episode}", "a shell in its sandbox, as it was"),
        ]
    missing = any(line.reward is None for line in summary.episodes)
    if missing:
        commands.append((f"{called} run --resume {summary.run}", "go on with what is missing"))
    width = max(len(command) for command, _ in commands)
    say()
    say("Next:")
    for command, why in commands:
        say(f"  {command:<{width}}  # {why}")
    if summary.state != "complete" and not missing:
        say("Every episode of this run is decided; what is unscored stays so. Mend the cause and start a new run.")
