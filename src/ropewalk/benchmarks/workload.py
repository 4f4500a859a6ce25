"""The run that several benchmarks measure: `search` on control tasks of a toolz-sized suite, in a state of its own."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.interface.task import Task, TaskKind
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan, SourcePlan, TasksPlan
from ropewalk.rollout.plan_file import plan_from_settings

SOURCE = "pypi:toolz==1.0.0"
TASKS = 8
GROUP = 8
STEPS = 8


def search_plan(
    *, tasks: int = TASKS, group: int = GROUP, steps: int = STEPS, policy: PolicyName = PolicyName.SEARCH
) -> Plan:
    """`search`, or another policy, on mutants of one suite."""
    return Plan(
        source=SourcePlan(uris=(SOURCE,)),
        tasks=TasksPlan(kinds=(TaskKind.MUTANT,), count=tasks, mutant_share_max=1.0),
        run=RunPlan(policies=(policy,), tasks=tasks, group=group, steps=steps, seed=1),
    ).check()


def sized(plan: Plan, tasks: Sequence[Task], episodes: int) -> Plan:
    """The plan with groups so large that these tasks give at least so many episodes, however many were admitted."""
    return plan_from_settings({"run.group": -(-episodes // len(tasks))}, base=plan)


@asynccontextmanager
async def prepared(plan: Plan, progress: Callable[[str], None]) -> AsyncIterator[tuple[Ropewalk, list[Task]]]:
    """An open Ropewalk on a fresh state directory, and the plan's tasks, built."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as folder:
        async with Ropewalk.open(state=Path(folder)) as rw:
            progress(f"building {plan.tasks.count} tasks from {SOURCE}")
            yield rw, await rw.tasks_of(plan)
