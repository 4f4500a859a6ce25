"""What of the journal a mark vouches for: all that a resumed run goes on from and that decides what it signs.

    run        plan, tasks, groups and episodes, as they were begun
    task       the state that its episodes are forked from
    episode    played: its record; judged: verdict and reward too

Not in it: what costs a run time at worst (attempts, failures, use), and what statements already say (`sealed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ropewalk.core.errors import IntegrityError
from ropewalk.rollout.rows import EpisodeRow, EpisodeState, GroupRow, RunRow, TaskRow
from ropewalk.security.marks import Marks

PURPOSE = "rollout journal"
NOT_VOUCHED = "journal_changed"
"""Cause of an episode that is played again because the journal says of it what no run of ours wrote."""


class RowMarks:
    """Marks of the journal's rows."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def of_run(
        self, run: RunRow, tasks: Iterable[TaskRow], groups: Iterable[GroupRow], episodes: Iterable[EpisodeRow]
    ) -> str:
        """Of a run as it is begun."""
        return self._marks.make("run", _run(run, tasks, groups, episodes))

    def check_run(
        self, mark: str, run: RunRow, tasks: Iterable[TaskRow], groups: Iterable[GroupRow],
        episodes: Iterable[EpisodeRow],
    ) -> None:  # fmt: skip
        """Returns if the run is the one that was begun.

        Raises:
            IntegrityError: it is not, or an earlier version or keys that are not believed any more began it.
        """
        if not self._marks.fits(mark, "run", _run(run, tasks, groups, episodes)):
            raise IntegrityError(
                f"The journal's {run.run} is not what was begun with these keys: its plan, tasks or episodes may have "
                "been changed.",
                next_step="start a new run; what is signed of this one stays, see `ropewalk verify`.",
            )

    def of_task(self, row: TaskRow) -> str:
        """Of a task that is made ready."""
        return self._marks.make("task", _task(row))

    def vouches_for_task(self, mark: str, row: TaskRow) -> bool:
        """Whether the state to fork is the one that we saved."""
        return self._marks.fits(mark, "task", _task(row))

    def of_episode(self, row: EpisodeRow) -> str:
        """Of an episode that is played or judged."""
        return self._marks.make("episode", _episode(row))

    def vouches_for_episode(self, mark: str, row: EpisodeRow) -> bool:
        """Whether we wrote what the row says."""
        return self._marks.fits(mark, "episode", _episode(row))


def _run(
    run: RunRow, tasks: Iterable[TaskRow], groups: Iterable[GroupRow], episodes: Iterable[EpisodeRow]
) -> dict[str, Any]:
    return {
        "run": run.run,
        "plan": run.plan,
        "tasks": [[row.run, row.task, row.blob] for row in tasks],
        "groups": [[row.run, row.id, row.task, row.policy] for row in groups],
        "episodes": [
            [row.run, row.id, row.group_id, row.task, row.policy, row.position, row.seed] for row in episodes
        ],
    }  # fmt: skip


def _task(row: TaskRow) -> list[Any]:
    return [row.run, row.task, row.blob, row.snapshot, row.snapshot_blob]


def _episode(row: EpisodeRow) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(row)
    # Counted up while it is played; and a sealed one says what it said when it was judged.
    del facts["attempt"]
    return facts | {"state": str(EpisodeState.JUDGED if row.state is EpisodeState.SEALED else row.state)}
