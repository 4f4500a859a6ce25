"""Turns judged episodes into sealed ones: statements first, durably, then the reward becomes visible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ropewalk.core.errors import IntegrityError
from ropewalk.core.records import Record, digest
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import Task
from ropewalk.provenance.statement import StatementDraft
from ropewalk.reward.verdict import Reward, Verdict, VerdictStatus
from ropewalk.rollout.begin import BegunRun
from ropewalk.rollout.events import Event, GroupClosed, RewardSealed
from ropewalk.rollout.journal import RunJournal, task_subject
from ropewalk.rollout.marks import RowMarks
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.rows import EpisodeRow, EpisodeState, TaskRow, cause_of_refusal
from ropewalk.rollout.statements import Outcome, outcome_drafts
from ropewalk.rollout.threads import in_thread
from ropewalk.sandbox.contract import SnapshotRecord
from ropewalk.store.records import read_record

R = TypeVar("R", bound=Record)


class Sealer:
    """Seals batches of one run's episodes and closes its groups."""

    def __init__(
        self, world: RunWorld, journal: RunJournal, begun: BegunRun, run: str, observe: Callable[[Event], None]
    ) -> None:
        self._world = world
        self._journal = journal
        self._begun = begun
        self._run = run
        self._observe = observe
        self._marks = RowMarks(world.marks)

    def ready_task(self, task: str) -> TaskRow:
        """The row of a task that was made ready.

        Raises:
            IntegrityError: it is not as it was written.
        """
        row, subject = self._journal.task(self._run, task), task_subject(self._run, task)
        if not self._marks.vouches_for_task(self._journal.mark(subject), row):
            raise _changed(f"The state that {task} is played from")
        return row

    async def seal(self, ids: tuple[str, ...]) -> None:
        """Records the batch's statements with one durable write, then shows its rewards.

        Raises:
            IntegrityError: a stored record is damaged, or the log is; or what is to be signed is not what was judged.
        """
        started = self._world.clock.monotonic_s()

        def sign() -> list[tuple[EpisodeRow, Outcome]]:
            rows, marks = self._journal.chosen_episodes(ids), self._journal.chosen_marks(ids)
            snapshots = {
                task: self._record(self.ready_task(task).snapshot_blob or "", SnapshotRecord)
                for task in {row.task for row in rows}
            }
            drafts: list[StatementDraft] = []
            outcomes = [self._load(row) for row in rows]
            for task in {row.task: self._begun.tasks[row.task] for row in rows}.values():
                self._world.sandboxes.check_unchanged(task.image, task.layers)
            for row, outcome in zip(rows, outcomes, strict=True):
                task, snapshot = self._begun.tasks[row.task], snapshots[row.task]
                if not self._marks.vouches_for_episode(marks.get(row.id, ""), row):
                    raise _changed(f"What the journal says of {row.id}")
                _check_fit(row, outcome, task, snapshot)
                drafts.extend(outcome_drafts(task, snapshot, outcome, plan=self._begun.plan_blob))
            self._world.recorder.record(tuple(drafts))
            self._journal.sealed(self._run, ids, signing_s=self._world.clock.monotonic_s() - started)
            return list(zip(rows, outcomes, strict=True))

        sealed = await in_thread(sign)
        for row, outcome in sealed:
            reward = outcome.reward
            self._observe(
                RewardSealed(
                    run=self._run,
                    reward=reward.id,
                    episode=row.id,
                    task=row.task,
                    policy=row.policy,
                    value=reward.value,
                    cause=reward.cause,
                )
            )
        await self.close_groups({row.group_id for row, _ in sealed})

    async def close_groups(self, groups: set[str]) -> None:
        """Closes those whose episodes are all sealed: complete, or refused with the cause of what is unscored."""
        episodes: dict[str, list[EpisodeRow]] = {}
        for row in await in_thread(self._journal.members, groups):
            episodes.setdefault(row.group_id, []).append(row)
        for group in await in_thread(self._journal.chosen_groups, groups):
            members = episodes[group.id]
            if any(row.state is not EpisodeState.SEALED for row in members):
                continue
            cause = cause_of_refusal((row.value, row.cause) for row in members)
            await self.close_group(group.id, group.task, group.policy, cause)

    async def close_group(self, group: str, task: str, policy: str, cause: str) -> None:
        """Closes one: complete where `cause` is empty, else refused."""
        await in_thread(self._journal.group_closed, group, state="refused" if cause else "complete", cause=cause)
        self._observe(
            GroupClosed(run=self._run, group=group, task=task, policy=policy, complete=not cause, cause=cause)
        )

    def _load(self, row: EpisodeRow) -> Outcome:
        return Outcome(
            episode=self._record(row.record or "", EpisodeRecord),
            verdict=self._record(row.verdict or "", Verdict),
            reward=self._record(row.reward or "", Reward),
            judging_started_s=row.judging_started_s or 0.0,
            judged_s=row.judged_s or 0.0,
        )

    def _record(self, blob: str, kind: type[R]) -> R:
        return read_record(self._world.blobs, blob, kind)


def _changed(what: str) -> IntegrityError:
    return IntegrityError(
        f"{what} is not what was written: nothing of it is signed.",
        next_step="find out who changes the state directory; a resume of the run plays what was changed again.",
    )


def _check_fit(row: EpisodeRow, outcome: Outcome, task: Task, snapshot: SnapshotRecord) -> None:
    """Returns if episode, verdict and reward are of this row and of each other.

    Raises:
        IntegrityError: they are not.
    """
    episode, verdict, reward = outcome.episode, outcome.verdict, outcome.reward
    scored = verdict.status is VerdictStatus.SCORED
    fits = {
        "episode": (episode.id, episode.run, episode.task, episode.group, episode.index, episode.seed)
        == (row.id, row.run, row.task, row.group_id, row.position, row.seed),
        "policy": episode.policy.partition("(")[0] == row.policy and reward.policy == episode.policy,
        "snapshot": episode.snapshot == snapshot.id,
        "verdict": (verdict.episode, verdict.task, verdict.grader) == (row.id, row.task, task.grader),
        "bundle": verdict.bundle == episode.bundle or not scored,
        "score": (verdict.score is not None) == scored,
        "reward": (reward.id, reward.episode, reward.task, reward.run, reward.verdict)
        == (row.reward_id, row.id, row.task, row.run, digest(verdict)),
        "value": reward.value == row.value == (verdict.score if scored else None),
        "cause": reward.cause == row.cause == verdict.cause,
        "termination": (reward.termination, reward.truncated) == (episode.termination, episode.truncated),
    }
    wrong = [name for name, fit in fits.items() if not fit]
    if wrong:
        raise IntegrityError(
            f"The stored outcome of {row.id} does not fit together ({', '.join(wrong)}): nothing of it is signed.",
            next_step="see `ropewalk verify`.",
        )
