"""Writes a run down before anything of it happens: which episodes it will have, under which ids and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ropewalk.core.errors import CallerError
from ropewalk.core.ids import check_id, new_id
from ropewalk.core.records import canonical_bytes, digest_bytes
from ropewalk.interface.task import Task
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.marks import RowMarks
from ropewalk.rollout.plan import Plan
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.rows import EpisodeRow, GroupRow, RunRow, TaskRow
from ropewalk.store.records import read_record

SEED_BITS = 53
"""So that a seed has a canonical JSON form."""


def begin_run(world: RunWorld, journal: RunJournal, plan: Plan, tasks: Sequence[Task], *, run: str = "") -> str:
    """Writes a whole run into the journal and returns its id; nothing is played yet.

    Idempotent by `run`: a second call with the same plan and tasks changes nothing.

    Raises:
        CallerError: no tasks, one twice, a bad id, or `run` exists with another plan.
    """
    plan.check()
    run = check_id(run, "run") if run else new_id("run", clock=world.clock)
    chosen = list(tasks)[: plan.run.tasks]
    if not chosen:
        raise CallerError("There is no task to run.", next_step="build some, or name their ids in the plan.")
    if len({task.id for task in chosen}) < len(chosen):
        raise CallerError("A task is given twice.")
    plan_blob, *task_blobs = world.blobs.put_many([canonical_bytes(plan), *map(canonical_bytes, chosen)])
    if any(row.run == run for row in journal.runs()):
        if journal.run(run).plan != plan_blob or [row.blob for row in journal.tasks(run)] != task_blobs:
            raise CallerError(f"{run} exists with another plan.", next_step="give a new id, or resume it as it is.")
        return run
    groups: list[GroupRow] = []
    episodes: list[EpisodeRow] = []
    for task in chosen:
        for policy in plan.run.policies:
            group = GroupRow(
                id=new_id("group", clock=world.clock), run=run, place=len(groups), task=task.id, policy=policy
            )
            groups.append(group)
            for index in range(plan.run.group):
                seed = int(digest_bytes(f"{plan.run.seed}/{task.id}/{policy}/{index}".encode())[:16], 16)
                episodes.append(
                    EpisodeRow(
                        id=new_id("episode", clock=world.clock),
                        run=run,
                        place=len(episodes),
                        group_id=group.id,
                        task=task.id,
                        policy=policy,
                        position=index,
                        seed=seed >> (64 - SEED_BITS),
                    )
                )
    row = RunRow(run=run, plan=plan_blob, state="open", created_s=world.clock.now_s())
    rows = [
        TaskRow(run=run, place=place, task=task.id, blob=blob)
        for place, (task, blob) in enumerate(zip(chosen, task_blobs, strict=True))
    ]
    mark = RowMarks(world.marks).of_run(row, rows, groups, episodes)
    journal.begin(row, rows, groups, episodes, mark=mark)
    return run


class BegunRun(NamedTuple):
    """What was begun."""

    plan: Plan
    tasks: dict[str, Task]
    """By id, in the order of the plan."""
    plan_blob: str
    """Digest of the plan as it is stored."""


def load_run(world: RunWorld, journal: RunJournal, run: str) -> BegunRun:
    """A run's plan and its tasks.

    Raises:
        CallerError: unknown.
        IntegrityError: they, or its groups and episodes, are not the ones that were begun.
    """
    row, tasks = journal.run(run), journal.tasks(run)
    RowMarks(world.marks).check_run(journal.mark(run), row, tasks, journal.groups(run), journal.episodes(run))
    plan = read_record(world.blobs, row.plan, Plan)
    return BegunRun(plan, {each.task: read_record(world.blobs, each.blob, Task) for each in tasks}, row.plan)
