"""`ropewalk task`: build tasks from releases, list and show them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ropewalk.cli.apps import HERE, Place, command, noun, on_interrupt
from ropewalk.cli.attested import attestations
from ropewalk.cli.board import Board
from ropewalk.cli.exit_codes import EXIT_INCOMPLETE
from ropewalk.cli.opening import custody, opened
from ropewalk.cli.output import counted, print_json, print_table, say

if TYPE_CHECKING:
    from ropewalk.lake.records import IngestResult
    from ropewalk.tasks.records import BuildEvent, YieldReport

app = noun("task", "Tasks: a problem, the world it starts in, and who judges it.")

NOTES_SHOWN = 4


@command(
    app,
    "build",
    examples=[
        "ropewalk task build --source catalogue:full --count 60",
        "ropewalk task build --source pypi:more-itertools --source pypi:toolz --count 40",
        "ropewalk task build --source ./mypackage --requirements requirements.txt --plugin pytest_asyncio.plugin",
    ],
)
async def build(
    *,
    source: Annotated[list[str], Parameter(name="--source")],
    count: int = 40,
    kind: Annotated[list[str] | None, Parameter(name="--kind")] = None,
    requirements: Path | None = None,
    wheelhouse: Path | None = None,
    plugin: Annotated[list[str] | None, Parameter(name="--plugin")] = None,
    pytest_ini: Annotated[list[str] | None, Parameter(name="--pytest-ini")] = None,
    licence: str | None = None,
    attested_by: str | None = None,
    data_class: str | None = None,
    seed: int = 0,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Builds tasks, and reports what the sources gave and why not more. Interrupted, it goes on where it stopped.

    Exits with 4 where no task was admitted.

    Args:
        source: pypi:NAME, pypi:NAME==VERSION, a directory, an archive, or catalogue:full (pinned releases); may be
            repeated.
        count: Of the tasks, at most.
        kind: release or mutant; may be repeated. Default: both, mutants a quarter at most. Mutants alone are a control
            only.
        requirements: Requirements file, whose wheels become an offline layer of every sandbox.
        wheelhouse: Folder of wheels to take them from, instead of the package index.
        plugin: Pytest plugin to load, by module name; may be repeated.
        pytest_ini: Setting of pytest that the tests need, as NAME=VALUE (asyncio_mode=auto); may be repeated.
        licence: SPDX expression, where a source states none. Another one than it states is refused.
        attested_by: Role or organisation that states that the sources hold no human data. Default: whom the profile
            names.
        data_class: Of the sources and all that is made of them: public, internal or restricted. Default: those of the
            stored files, public for new ones.
        seed: Of choices between equal tests and mutations.
        json: Print JSON.
    """
    from ropewalk.app.plan_checks import check_plan
    from ropewalk.rollout.plan_file import plan_from_settings
    from ropewalk.tasks.pytest_settings import parse_settings

    settings: dict[str, object] = {
        "source.uris": source,
        "source.requirements": str(requirements) if requirements else None,
        "source.wheelhouse": str(wheelhouse) if wheelhouse else None,
        "source.plugins": plugin or [],
        **{f"source.pytest_ini.{name}": value for name, value in parse_settings(pytest_ini or []).items()},
        "source.licence": licence,
        "source.attested_by": attested_by,
        "source.data_class": data_class,
        "tasks.count": count,
        "tasks.seed": seed,
    }
    if kind:
        settings["tasks.kinds"] = kind
    plan = plan_from_settings(settings)
    on_interrupt("repeat the command: what was built is kept.")
    async with opened(place) as rw:
        check_plan(plan, rw.profile)
        with Board(quiet=json) as board:
            watch = BuildWatch(board)
            built = await rw.build_tasks(plan, on_ingest=watch.ingested, on_build=watch.observe)
            board.end(f"{counted(len(built.report.tasks), 'task')} admitted")
    if json:
        report = built.report
        summary = {"reasons": report.reasons, "control_only": report.control_only, "fewer": built.fewer}
        print_json({"report": report, **summary})
    else:
        watch.print_attested()
        print_yield(built.report)
    return 0 if built.report.tasks else EXIT_INCOMPLETE


@command(app, "ls", examples=["ropewalk task ls", "ropewalk task ls --json"])
def ls(*, json: bool = False, place: Place = HERE) -> int:
    """Lists all admitted tasks.

    Args:
        json: Print JSON.
    """
    from ropewalk.app.task_store import TaskStore

    with custody(place) as kept:
        records = TaskStore(kept.layout).records()
    if json:
        print_json([{"id": record.id, "name": record.task.name, "kind": record.task.kind, "origin": record.task.origin,
                     "visible_tests": len(record.task.visible_tests), "held_out": len(record.held_out),
                     "guess_bits": record.guess_bits} for record in records])  # fmt: skip
        return 0
    print_table(
        ("task", "name", "kind", ">visible", ">held out", ">guess bits", "licence"),
        (
            (
                r.id,
                r.task.name,
                r.task.kind,
                f"{len(r.task.visible_killers)} of {len(r.task.visible_tests)}",
                len(r.held_out),
                f"{r.guess_bits:.0f}",
                r.task.origin.licence,
            )
            for r in records
        ),
        empty="No task was admitted yet. Next: ropewalk task build --source pypi:NAME",
    )
    return 0


@command(app, "show", examples=["ropewalk task show task:0123…", "ropewalk task show 0123 --json"])
def show(task: str, *, json: bool = False, place: Place = HERE) -> int:
    """Shows a task as a policy sees it, and where it comes from. Never its answer or its held-out tests.

    Args:
        task: Its id, or the beginning of one.
        json: Print JSON.
    """
    from ropewalk.app.task_store import TaskStore

    with custody(place) as kept:
        record = TaskStore(kept.layout).get(task)
    shown = record.task
    if json:
        print_json({"id": record.id, "task": shown, "held_out_tests": len(record.held_out)})
        return 0
    say(shown.name, style="bold")
    raw = ", ".join(f"raw:{sha256[:32]}" for sha256 in shown.origin.raw)
    say(f"{record.id}, {shown.kind}, licence {shown.origin.licence}, from {raw}")
    say(f"visible: {len(shown.visible_tests)} tests, {len(shown.visible_killers)} of them fail before the fix")
    say(f"held out: {len(record.held_out)} tests, {record.points} values, {record.guess_bits:.0f} bits to guess")
    say(f"may be handed in: {', '.join(shown.editable)}")
    say(f"limits: {shown.limits.steps_max} steps, {shown.limits.episode_timeout_s:g} s, "
        f"{shown.limits.test_timeout_s:g} s for the visible tests")  # fmt: skip
    say()
    for line in shown.prompt.splitlines():
        say(f"  {line}")
    return 0


class BuildWatch:
    """Draws ingest and build on a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._building = False
        self._files = 0
        self._notes: dict[str, None] = {}
        self._ingested: list[IngestResult] = []
        self._fewer = ""
        board.begin("Ingest")

    def ingested(self, uri: str, result: IngestResult) -> None:
        """One source more is in the lake."""
        names = ", ".join(f"{record.name} ({record.licence.expression})" for record in result.records)
        self._files += len(result.records)
        self._ingested.append(result)
        self._board.advance(f"{uri}: {names}", by=1)
        self._board.detail(f"{counted(self._files, 'file')} in the raw zone")

    def observe(self, event: BuildEvent) -> None:
        """Something happened in the build."""
        if event.stage == "resolving":
            self._board.begin("Resolve requirements")
            self._board.note(event.detail)
            return
        if not self._building:
            self._building = True
            self._board.begin("Build tasks", total=event.total, unit="sources")
        if event.stage == "fewer":
            self._fewer = event.detail
            return
        if event.stage in ("finished", "resumed"):
            self._board.advance()
        if event.stage in ("left_out", "remark"):
            self._notes[event.detail] = None
        self._board.detail(f"{counted(event.tasks, 'task')} admitted")
        self._board.note(f"{event.source}: {event.stage} {event.detail}")

    def print_attested(self) -> None:
        """Who vouches for the sources, on standard error."""
        for line in attestations(self._ingested):
            say(line, error=True)

    def print_notes(self) -> None:
        """Which tests fail on their own source, which releases have no notes, and why fewer tasks came than wanted, on
        standard error: who sees fewer than he has wants to know."""
        for sentence in [*self._notes][:NOTES_SHOWN]:
            say(f"note: {sentence}", error=True)
        if (more := len(self._notes) - NOTES_SHOWN) > 0:
            say(f"note: and so for {more} more; `ropewalk task build` lists all.", error=True)
        if self._fewer:
            say(f"note: {self._fewer}", error=True)


def print_yield(report: YieldReport) -> None:
    """What each source gave, and why not more."""
    from ropewalk.tasks.reasons import advice, examples

    print_table(
        ("source", "kind", ">tests", ">killers", ">units", ">tasks", ">rejected", ">s", "reasons"),
        (
            (
                s.name,
                s.kind,
                s.tests,
                s.killers,
                s.units,
                len(s.tasks),
                len(s.rejections),
                f"{s.seconds:.1f}",
                ", ".join(sorted({str(rejection.reason) for rejection in s.rejections})),
            )
            for s in report.sources
        ),
        empty="There was nothing to build from.",
    )
    say()
    distributions = ", ".join(f"{name} {count}" for name, count in report.distributions.items()) or "none"
    say(f"{counted(len(report.tasks), 'task')} admitted in {report.seconds:.0f} s.")
    if report.control_only:
        say("Control only: all of them are mutants. What a policy earns on them says little about real changes.")
    say(f"Release tasks by distribution: {distributions}.")
    ended = [each for source in report.sources for each in source.rejections if each.name == source.name]
    for line in dict.fromkeys(line for source in report.sources for line in (*source.left_out, *source.remarks)):
        say(f"note: {line}")
    for each in {each.detail: each for each in ended}.values():
        say(f"{each.reason}: {each.detail}")
        say(f"  next: {advice(each)}", style="dim")
    for line, help in examples(report):
        say(line)
        say(f"  next: {help}", style="dim")
