"""`ropewalk demo`: the main job end to end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ropewalk.cli.apps import HERE, Place, on_interrupt, verb
from ropewalk.cli.exit_codes import EXIT_INCOMPLETE
from ropewalk.cli.opening import opened
from ropewalk.cli.output import console, print_json, say
from ropewalk.core.errors import CallerError

if TYPE_CHECKING:
    from ropewalk.app.ropewalk import Ropewalk

app = verb(
    "demo",
    examples=[
        "ropewalk demo",
        "ropewalk demo --anchor /mnt/usb",
        "ropewalk demo --source ./releases/mypackage-1.0.tar.gz --source ./releases/mypackage-1.1.tar.gz",
    ],
)

SOURCES = ("catalogue:demo",)
"""A pinned catalogue: releases by sha256, so that every demo makes the same tasks."""


@app.default
async def demo(
    *,
    source: Annotated[list[str] | None, Parameter(name="--source")] = None,
    licence: str | None = None,
    attested_by: str | None = None,
    build: int = 12,
    tasks: int = 6,
    group: int = 4,
    policies: str = "noop,oracle,search",
    steps: int = 4,
    anchor: Path | None = None,
    report: Path | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Does the whole job on real packages: sources, tasks, forks, episodes, gradings, signatures, report, verification.

    Fetches pinned releases from the package index; name local directories or archives with --source to do without a
    network. Every command it prints at the end works on what it made.

    Args:
        source: pypi:NAME==VERSION, pypi:NAME, a directory or an archive; may be repeated.
        licence: SPDX expression, where a source states none. Another one than it states is refused.
        attested_by: Role or organisation that states that the sources hold no human data. Default: whom the profile
            names.
        build: Tasks to build, mutants a quarter at most.
        tasks: Of these, how many to run.
        group: Episodes per task and policy, forked from one snapshot.
        policies: Some of noop, oracle, search, with commas between.
        steps: Per episode, at most.
        anchor: Folder outside, best on another machine: gets public keys and checkpoint, and vouches for the log.
        report: Where to write the HTML report. Default: in the run's folder.
        json: Print JSON.
    """
    from ropewalk.cli.conduct import check_report, conduct, finish, prepare_tasks
    from ropewalk.cli.verify import exit_code, print_verification
    from ropewalk.orchestration.machine import measure
    from ropewalk.rollout.plan_file import plan_from_settings

    started_s = time.monotonic()
    plan = plan_from_settings(
        {
            "source.uris": source or SOURCES,
            "source.licence": licence,
            "source.attested_by": attested_by,
            "tasks.count": build,
            "run.tasks": tasks,
            "run.group": group,
            "run.steps": steps,
            "run.policies": [name.strip() for name in policies.split(",")],
            "run.concurrency": measure().parallel,
            "run.keep_failed": True,
        },
        names={"tasks.count": "--build", "run.tasks": "--tasks", "run.group": "--group", "run.steps": "--steps",
               "run.policies": "--policies"},
    )  # fmt: skip
    check_report(report)
    on_interrupt("repeat the command: what was built is kept.")
    async with opened(place) as rw:
        _introduce(rw, quiet=json)
        if anchor:
            rw.custody.check_anchor(anchor)
        try:
            chosen = await prepare_tasks(rw, plan, quiet=json)
        except CallerError as error:
            raise _elsewhere(error) from error
        loaded = await conduct(rw, plan=plan, tasks=chosen, quiet=json)
        anchors = rw.custody.export_anchor(anchor) if anchor else None
        verification = await rw.verify(loaded.row.run, anchors=anchors)
        summary, path = finish(rw.custody, loaded, report=report, json=json, verification=verification)
    if json:
        print_json({"run": summary.run, "report": str(path), "verification": verification.plain(), "summary": summary})
    else:
        say()
        print_verification(verification)
        if anchor is None:
            say("  `ropewalk provenance anchor DIR`, with DIR on another machine or disk, makes the log vouched for")
        say()
        say(f"{time.monotonic() - started_s:.0f} s in all.")
    if verification.findings:
        return exit_code(verification)
    return 0 if summary.state == "complete" else EXIT_INCOMPLETE


def _elsewhere(error: CallerError) -> CallerError:
    """The error with the command that has the options which the advice speaks of: a demo has them not."""
    if not any(option in error.next_step for option in ("--requirements", "--plugin", "--pytest-ini")):
        return error
    return CallerError(error.message, next_step=f"use `ropewalk run --source …`, and {error.next_step}")


def _introduce(rw: Ropewalk, *, quiet: bool) -> None:
    """Which machine this is, and whether it can at all.

    Raises:
        UnavailableError: no sandbox can be made here.
    """
    from ropewalk.core.errors import UnavailableError

    probe = rw.machines.probe()
    if not probe.usable:
        raise UnavailableError(
            f"The sandbox driver {probe.driver!r} does not work here: {' '.join(probe.problems)}",
            next_step="`ropewalk doctor` shows what is missing and how to get it.",
        )
    if not quiet:
        console(error=True).print(f"Sandboxes: {probe.isolation}")
        console(error=True).print(f"State: {rw.custody.layout.root}, profile {rw.profile.name}")
