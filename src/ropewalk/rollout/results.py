"""A run, loaded: every episode with its record, verdict and reward. What summary, diagnosis and export read."""

from __future__ import annotations

from typing import TypeVar

from ropewalk.core import limits
from ropewalk.core.records import Record, decode_own
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import Task
from ropewalk.reward.verdict import Reward, Verdict
from ropewalk.rollout.journal import JournalReads
from ropewalk.rollout.plan import Plan
from ropewalk.rollout.rows import EpisodeRow, EpisodeState, FailureRow, GroupRow, RunRow, TaskRow
from ropewalk.store.contract import Blobs

CONTROLS = ("noop", "oracle")
"""Policies that measure the task and grader, not themselves."""

R = TypeVar("R", bound=Record)


class Result(Record):
    """One episode, as far as it is."""

    row: EpisodeRow
    record: EpisodeRecord | None = None
    verdict: Verdict | None = None
    reward: Reward | None = None
    """Only once it is sealed."""


class RunResults(Record):
    """One run, as far as it is."""

    row: RunRow
    plan: Plan
    tasks: dict[str, Task]
    """By id, in the order of the plan."""
    task_rows: tuple[TaskRow, ...]
    groups: tuple[GroupRow, ...]
    results: tuple[Result, ...]
    failures: tuple[FailureRow, ...]

    def of_group(self, group: str) -> list[Result]:
        """The group's episodes."""
        return [result for result in self.results if result.row.group_id == group]

    @property
    def players(self) -> list[Result]:
        """Episodes of policies that are no controls."""
        return [result for result in self.results if result.row.policy not in CONTROLS]


def load_results(journal: JournalReads, blobs: Blobs, run: str) -> RunResults:
    """Everything about a run.

    Raises:
        CallerError: no such run.
        IntegrityError: a stored record is damaged.
    """
    row = journal.run(run)
    task_rows = journal.tasks(run)
    return RunResults(
        row=row,
        plan=_load(blobs, row.plan, Plan),
        tasks={each.task: _load(blobs, each.blob, Task) for each in task_rows},
        task_rows=tuple(task_rows),
        groups=tuple(journal.groups(run)),
        results=tuple(_result(blobs, each) for each in journal.episodes(run)),
        failures=tuple(journal.failures(run)),
    )


def _result(blobs: Blobs, row: EpisodeRow) -> Result:
    return Result(
        row=row,
        record=_load(blobs, row.record, EpisodeRecord) if row.record else None,
        verdict=_load(blobs, row.verdict, Verdict) if row.verdict else None,
        reward=_load(blobs, row.reward, Reward) if row.reward and row.state is EpisodeState.SEALED else None,
    )


def _load(blobs: Blobs, digest: str, kind: type[R]) -> R:
    return decode_own(blobs.get(digest, bytes_max=limits.JSON_BYTES_MAX), kind)
