"""What a build says about the tasks it admitted, ready to be signed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ropewalk.core.records import digest, digest_bytes
from ropewalk.provenance.statement import Activity, Link, StatementDraft
from ropewalk.tasks.records import TaskRecord
from ropewalk.tasks.requirements import WheelLayer

LAYERS: Final = ("source", "tests")
"""A task's own layers, in their order."""


def wheels_statement(wheels: WheelLayer, *, at_s: float) -> StatementDraft:
    """The layers that all tasks of a build share were made from wheels, and from no task's raw files."""
    return StatementDraft(
        activity=Activity.DERIVE, subjects=tuple(map(_layer, wheels.layers)),
        inputs=tuple(Link(name=f"wheel:{wheel.filename}", sha256=wheel.sha256) for wheel in wheels.wheels),
        predicate={"source": "wheels", "wheels": len(wheels.wheels)}, started_s=at_s, ended_s=at_s,
    )  # fmt: skip


def derive_statement(record: TaskRecord, wheels: WheelLayer | None = None) -> StatementDraft:
    """The task's own layers were made from these raw files."""
    task = record.task
    own = [layer for layer in task.layers if layer not in (wheels.layers if wheels else ())]
    return StatementDraft(
        activity=Activity.DERIVE, subjects=tuple(map(_layer, own)),
        inputs=tuple(Link(name=f"raw:{sha256[:32]}", sha256=sha256) for sha256 in task.origin.raw),
        predicate={
            "image": task.image,
            "source": f"{task.origin.distribution} {task.origin.version_before}",
            "tests": f"{task.origin.distribution} {task.origin.version_after}",
            "operator": task.origin.operator,
            "layers": dict(zip(LAYERS, own, strict=False)),
        },
        started_s=record.started_s, ended_s=record.started_s,
    )  # fmt: skip


def admit_statement(record: TaskRecord) -> StatementDraft:
    """The task passed its admission. Names neither held-out tests nor values."""
    task = record.task
    origin = task.origin
    inputs = [Link(name=f"raw:{sha256[:32]}", sha256=sha256) for sha256 in origin.raw]
    inputs += map(_layer, task.layers)
    inputs += [
        Link(name=f"grader:{task.grader[:32]}", sha256=task.grader),
        Link(name=f"oracle:{task.oracle[:32]}", sha256=task.oracle),
        Link(name=f"image:{task.image[:32]}", sha256=task.image),
    ]
    return StatementDraft(
        activity=Activity.ADMIT, subjects=(Link(name=task.id, sha256=digest(task)),), inputs=tuple(inputs),
        predicate={
            "name": task.name, "kind": str(task.kind), "commit": origin.commit, "operator": origin.operator,
            "licence": origin.licence,
            "visible_tests": len(task.visible_tests), "visible_killers": len(task.visible_killers),
            "held_out_tests": len(record.held_out), "held_out_killers": record.killers_held_out,
            "fresh_cases": record.fresh_cases, "guess_bits": round(record.guess_bits, 1), "points": record.points,
            "controls": {"noop": 0, "oracle": 1, "oracle_repeats": max(0, len(record.verdicts) - 1)},
            "verdicts": list(record.verdicts), "leak_scan": {"found": 0, "layers": len(record.scanned)},
            "prompt": digest_bytes(task.prompt.encode()), "unit": record.level,
        },
        started_s=record.started_s, ended_s=record.ended_s,
    )  # fmt: skip


def task_statements(records: Sequence[TaskRecord], wheels: WheelLayer | None = None) -> tuple[StatementDraft, ...]:
    """All statements of these tasks, in order: what layers were made of before the task that they are in."""
    drafts = [draft for record in records for draft in (derive_statement(record, wheels), admit_statement(record))]
    if records and wheels and wheels.layers:
        drafts.insert(0, wheels_statement(wheels, at_s=records[0].started_s))
    return tuple(drafts)


def _layer(digest: str) -> Link:
    return Link(name=f"layer:{digest[:32]}", sha256=digest)
