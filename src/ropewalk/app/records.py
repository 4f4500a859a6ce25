"""Finds what a run left: its records in the blob store, by its rows in the journal."""

from __future__ import annotations

from ropewalk.core.errors import CallerError
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import Task
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.rows import EpisodeRow
from ropewalk.rollout.summary import distinct
from ropewalk.store.contract import Blobs
from ropewalk.store.records import read_record


def newest_run(journal: RunJournal) -> str:
    """Id of the run that was begun last.

    Raises:
        CallerError: there is none.
    """
    runs = journal.runs()
    if not runs:
        raise CallerError("There is no run here yet.", next_step="`ropewalk demo` makes a first one.")
    return runs[0].run


def episode_of(blobs: Blobs, row: EpisodeRow) -> EpisodeRecord | None:
    """The episode's record, None where it was not played yet."""
    return None if row.record is None else read_record(blobs, row.record, EpisodeRecord)


def task_labels(journal: RunJournal, blobs: Blobs, run: str) -> dict[str, str]:
    """Names of a run's tasks by id, each its own (`distinct`)."""
    return distinct({row.task: read_record(blobs, row.blob, Task).name for row in journal.tasks(run)})


def task_of(journal: RunJournal, blobs: Blobs, run: str, task: str) -> Task:
    """A task of a run.

    Raises:
        CallerError: the run has no such task.
    """
    return read_record(blobs, journal.task(run, task).blob, Task)
