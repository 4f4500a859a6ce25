"""Turns judged episodes into sealed ones: statements first, durably, then the reward becomes visible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ropewalk.core.records import Record
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import Task
from ropewalk.provenance.statement import StatementDraft
from ropewalk.reward.verdict import Reward, Verdict
from ropewalk.rollout.events import Event, GroupClosed, RewardSealed
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.rows import EpisodeRow, EpisodeState
from ropewalk.rollout.statements import Outcome, outcome_drafts
from ropewalk.rollout.threads import in_thread
from ropewalk.sandbox.contract import SnapshotRecord
from ropewalk.store.records import read_record

R = TypeVar("R", bound=Record)


class Sealer:
    """Seals batches of one run's episodes and closes its groups."""

    def __init__(self, world: RunWorld, journal: RunJournal, run: str, observe: Callable[[Event], None]) -> None:
        self._world = world
        self._journal = journal
        self._run = run
        self._observe = observe

    async def seal(self, ids: tuple[str, ...], tasks: dict[str, Task]) -> None:
        """Records the batch's statements with one durable write, then shows its rewards.

        Raises:
            IntegrityError: a stored record is damaged, or the log is.
        """
        started = self._world.clock.monotonic_s()

        def sign() -> list[tuple[EpisodeRow, Outcome]]:
            rows = self._journal.chosen_episodes(ids)
            plan = self._journal.run(self._run).plan
            snapshots = {
                task: self._journal.task(self._run, task).snapshot_blob or "" for task in {row.task for row in rows}
            }
            drafts: list[StatementDraft] = []
            outcomes = [self._load(row) for row in rows]
            for row, outcome in zip(rows, outcomes, strict=True):
                snapshot = self._record(snapshots[row.task], SnapshotRecord)
                drafts.extend(outcome_drafts(tasks[row.task], snapshot, outcome, plan=plan))
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
            causes = sorted(row.cause for row in members if row.value is None)
            cause = max(causes, key=causes.count) if causes else ""
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
