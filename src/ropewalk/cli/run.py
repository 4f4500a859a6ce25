"""`ropewalk run`: the main job, from a plan or from settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from ropewalk.cli.apps import HERE, Place, command, on_interrupt, verb
from ropewalk.cli.exit_codes import EXIT_INCOMPLETE
from ropewalk.cli.opening import journal, named, opened
from ropewalk.cli.output import counted, print_json, print_table, say
from ropewalk.core.errors import CallerError
from ropewalk.core.toml import parse_toml

if TYPE_CHECKING:
    from ropewalk.rollout.plan import Plan

app: App = verb(
    "run",
    examples=[
        "ropewalk run plan.toml",
        "ropewalk run --source ./mypackage --requirements requirements.txt --policies noop,oracle,search --tasks 6",
        "ropewalk run examples/plan.toml --policies openai --base-url http://127.0.0.1:8000/v1 --model qwen",
        "ropewalk run --resume run:01JDY…",
    ],
)

FLAGS = {
    "tasks.count": "--tasks", "run.tasks": "--tasks", "run.policies": "--policies", "run.group": "--group",
    "run.steps": "--steps", "run.seed": "--seed", "run.concurrency": "--concurrency",
    "policy.openai.base_url": "--base-url", "policy.openai.model": "--model", "policy.openai.key": "--key",
    "source.data_class": "--data-class",
}  # fmt: skip
"""What people type for a setting of the plan."""
SOURCE = Group("Source", sort_key=1)
EPISODES = Group("Episodes", sort_key=2)
MODEL = Group("Model (policy openai)", sort_key=3)


@app.default
async def run(
    plan: Path | None = None,
    *,
    resume: str | None = None,
    source: Annotated[list[str] | None, Parameter(name="--source", group=SOURCE)] = None,
    requirements: Annotated[Path | None, Parameter(group=SOURCE)] = None,
    wheelhouse: Annotated[Path | None, Parameter(group=SOURCE)] = None,
    plugin: Annotated[list[str] | None, Parameter(name="--plugin", group=SOURCE)] = None,
    pytest_ini: Annotated[list[str] | None, Parameter(name="--pytest-ini", group=SOURCE)] = None,
    licence: Annotated[str | None, Parameter(group=SOURCE)] = None,
    attested_by: Annotated[str | None, Parameter(group=SOURCE)] = None,
    data_class: Annotated[str | None, Parameter(group=SOURCE)] = None,
    task: Annotated[list[str] | None, Parameter(name="--task", group=SOURCE)] = None,
    policies: Annotated[str | None, Parameter(group=EPISODES)] = None,
    tasks: Annotated[int | None, Parameter(group=EPISODES)] = None,
    group: Annotated[int | None, Parameter(group=EPISODES)] = None,
    steps: Annotated[int | None, Parameter(group=EPISODES)] = None,
    seed: Annotated[int | None, Parameter(group=EPISODES)] = None,
    concurrency: Annotated[int | None, Parameter(group=EPISODES)] = None,
    keep_failed: Annotated[bool, Parameter(group=EPISODES)] = False,
    sandbox: Annotated[str, Parameter(group=EPISODES)] = "",
    base_url: Annotated[str | None, Parameter(group=MODEL)] = None,
    model: Annotated[str | None, Parameter(group=MODEL)] = None,
    key: Annotated[str | None, Parameter(group=MODEL)] = None,
    set: Annotated[list[str] | None, Parameter(name="--set")] = None,
    report: Path | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Runs tasks × forks × policies: episodes, gradings in fresh sandboxes, signed rewards, a report.

    Everything is in the run's journal before it counts: after Ctrl-C or kill -9, --resume goes on where it was.
    Exits with 4 where a group was refused.

    Args:
        plan: A TOML file. Options below replace single settings of it.
        resume: Id of a run to go on with.
        source: pypi:NAME, pypi:NAME==VERSION, a directory or an archive; may be repeated.
        requirements: Requirements file, whose wheels become an offline layer of every sandbox.
        wheelhouse: Folder of wheels to take them from, instead of the package index.
        plugin: Pytest plugin to load, by module name (pytest_asyncio.plugin); may be repeated.
        pytest_ini: Setting of pytest that the tests need, as NAME=VALUE (asyncio_mode=auto); may be repeated.
        licence: SPDX expression, where a source states none. Another one than it states is refused.
        attested_by: Who states that the sources hold no human data. Default: whom the profile names.
        data_class: Of the sources and all that is made of them: public, internal or restricted. Default: those of the
            stored files, public for new ones.
        task: Id of an admitted task to use, instead of building any; may be repeated.
        policies: Some of noop, oracle, search, openai, with commas between.
        tasks: How many of the tasks.
        group: Episodes per task and policy, forked from one snapshot.
        steps: Per episode, at most.
        seed: Of the run.
        concurrency: Episodes at once.
        keep_failed: Keep the states of unpaid episodes, for `ropewalk episode attach`.
        sandbox: Sandbox driver, instead of the profile's.
        base_url: Of an OpenAI-compatible endpoint, with the version: http://127.0.0.1:8000/v1.
        model: Its name there.
        key: Reference (env:NAME or file:PATH) to the endpoint's key.
        set: Any setting of the plan as table.key=value, e.g. policy.search.forks_max=32; may be repeated.
        report: Where to write the HTML report. Default: in the run's folder.
        json: Print JSON.
    """
    from ropewalk.cli.conduct import check_report, conduct, finish, prepare_tasks

    if not (resume or plan or source or task):
        raise CallerError("Nothing to run.", next_step="give a plan, --source, --task or --resume.")
    if task and (source or requirements or wheelhouse or plugin or pytest_ini):
        raise _either()
    given = {
        "source.uris": source or None,
        "source.requirements": str(requirements) if requirements else None,
        "source.wheelhouse": str(wheelhouse) if wheelhouse else None,
        "source.plugins": plugin or None,
        **{"source.licence": licence, "source.attested_by": attested_by, "source.data_class": data_class},
        "tasks.ids": task or None,
        "tasks.count": tasks,
        "run.policies": [name.strip() for name in policies.split(",")] if policies else None,
        "run.tasks": tasks,
        **{"run.group": group, "run.steps": steps, "run.seed": seed},
        "run.concurrency": concurrency,
        "run.keep_failed": keep_failed or None,
        "policy.openai.base_url": base_url,
        "policy.openai.model": model,
        "policy.openai.key": key,
        **_settings(set or [], pytest_ini or []),
    }
    if resume and (plan or any(value is not None for value in given.values())):
        raise _settled()
    check_report(report)
    async with opened(place, driver=sandbox) as rw:
        if resume:
            loaded = await conduct(rw, resume=named(resume, "run", rw.custody.journal.beginning), quiet=json)
        else:
            made = _plan(plan, given)
            on_interrupt("repeat the command: tasks that were built are kept.")
            chosen = await prepare_tasks(rw, made, quiet=json)
            loaded = await conduct(rw, plan=made, tasks=chosen, quiet=json)
        summary, path = finish(rw.custody, loaded, report=report, json=json)
    print_json({"run": summary.run, "report": str(path), "summary": summary}) if json else None
    return 0 if summary.state == "complete" else EXIT_INCOMPLETE


@command(app, "ls", examples=["ropewalk run ls", "ropewalk run ls --json"])
def ls(*, json: bool = False, place: Place = HERE) -> int:
    """Lists all runs, newest first.

    Args:
        json: Print JSON.
    """
    from ropewalk.core.clock import utc
    from ropewalk.core.records import to_plain
    from ropewalk.rollout.rows import EpisodeState

    with journal(place) as kept:
        rows = kept.runs()
        counts = {row.run: [e.state for e in kept.episodes(row.run)] for row in rows}
    if json:
        print_json(
            [
                {
                    **to_plain(row),
                    "rewards": counts[row.run].count(EpisodeState.SEALED),
                    "episodes": len(counts[row.run]),
                }
                for row in rows
            ]
        )
        return 0
    print_table(
        ("run", "begun", "state", ">rewards", ">episodes"),
        (
            (row.run, utc(row.created_s), row.state, counts[row.run].count(EpisodeState.SEALED), len(counts[row.run]))
            for row in rows
        ),
        empty="There is no run here yet. Next: ropewalk demo",
    )
    return 0


@command(app, "rm", examples=["ropewalk run rm run:01JDY…"])
async def rm(*runs: str, json: bool = False, place: Place = HERE) -> int:
    """Removes the saved states of runs, which is what takes room: those that their episodes begin from, and those that
    were kept of unpaid ones. Rewards, records and everything that was signed stay.

    Args:
        runs: Their ids.
        json: Print JSON.
    """
    from ropewalk.app.removal import remove_run

    if not runs:
        raise CallerError("No run was named.", next_step="give ids from `ropewalk run ls`.")
    removed: dict[str, list[str]] = {}
    async with opened(place) as rw:
        for each in runs:
            id = named(each, "run")
            removed[id] = list(await remove_run(rw.custody, rw.machines, id))
            if not json:
                say(f"{id}: {counted(len(removed[id]), 'state')} removed; its rewards stay.")
    if json:
        print_json({"removed": removed})
    return 0


def _plan(file: Path | None, given: dict[str, Any]) -> Plan:
    """A plan's file, if there is one, and the options over it; None: not given."""
    from ropewalk.rollout.plan_file import load_plan, plan_from_settings

    settings = {name: value for name, value in given.items() if value is not None}
    return plan_from_settings(settings, base=load_plan(file) if file else None, names=FLAGS)


def _either() -> CallerError:
    return CallerError(
        "--task names tasks that are built, --source and what belongs to it make new ones.",
        next_step="give the one or the other.",
    )


def _settled() -> CallerError:
    return CallerError(
        "A resumed run has its plan already, and its settings stay as they are.",
        next_step="give --resume with --sandbox, --report and --json at most.",
    )


def _settings(pairs: list[str], pytest_ini: list[str]) -> dict[str, Any]:
    """`table.key=value` pairs; values are read as TOML, and as text where they are none. Pytest's settings as such."""
    from ropewalk.tasks.pytest_settings import parse_settings

    found: dict[str, Any] = {f"source.pytest_ini.{name}": value for name, value in parse_settings(pytest_ini).items()}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or "." not in name:
            meant = [full for full in FLAGS if separator and full.endswith(f".{name.strip()}")]
            said = f"did you mean {' or '.join(f'{full}={text[:40]}' for full in meant)}? " if meant else ""
            raise CallerError(f"{pair[:80]!r} is no setting.", next_step=f"{said}Write it as table.key=value.")
        try:
            found[name.strip()] = parse_toml(f"value = {text}", what=name)["value"]
        except CallerError:  # not TOML: text
            found[name.strip()] = text
    return found
