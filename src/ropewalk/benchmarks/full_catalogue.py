"""What the pinned catalogue gives: release tasks, of how many distributions, and how much of it is mutants."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.interface.task import TaskKind
from ropewalk.rollout.plan import Plan, SourcePlan, TasksPlan

TASKS_MAX = 80


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`tasks.release_tasks`, `tasks.release_distributions`, `tasks.mutant_share`. Takes tens of minutes."""
    plan = Plan(source=SourcePlan(uris=("catalogue:full",)), tasks=TasksPlan(count=TASKS_MAX)).check()
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as folder:
        async with Ropewalk.open(state=Path(folder)) as rw:
            built = await rw.build_tasks(
                plan, on_build=lambda event: progress(f"{event.done}/{event.total} sources, {event.tasks} tasks")
            )
    of = Counter(record.task.origin.distribution for record in built.tasks if record.task.kind is TaskKind.RELEASE)
    reasons = ", ".join(f"{reason} {count}" for reason, count in built.report.reasons.items())
    share = 1 - of.total() / len(built.tasks) if built.tasks else None
    return [
        measured("tasks.release_tasks", of.total(), note=f"in {built.report.seconds:.0f} s; rejected: {reasons}"),
        measured("tasks.release_distributions", len(of), note=", ".join(f"{name} {of[name]}" for name in sorted(of))),
        measured("tasks.mutant_share", share, note=f"of {len(built.tasks)} tasks"),
    ]
