"""From a played episode to its verdict and reward, both stored. What our side fails is None, never 0."""

from __future__ import annotations

import secrets
from typing import Protocol

import anyio
import msgspec

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.ids import new_id
from ropewalk.core.records import canonical_bytes, digest_bytes
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import Task
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.verdict import Reward, Verdict, VerdictStatus
from ropewalk.rollout.episodes.play import Trouble
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.marks import RowMarks
from ropewalk.rollout.metering import Meter, metered
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.rows import EpisodeRow, EpisodeState, UsageRow
from ropewalk.rollout.threads import in_thread

RETRY_PAUSE_S = 0.2


class OnFailure(Protocol):
    """Hears of every try that our side failed."""

    async def __call__(
        self, row: EpisodeRow, attempt: int, stage: str, trouble: Trouble, used: UsageRow, *, again: bool
    ) -> None: ...


class Judging:
    """Judges one run's episodes."""

    def __init__(
        self, world: RunWorld, journal: RunJournal, *, attempts_max: int, on_failure: OnFailure, meter: Meter
    ) -> None:
        """`meter`: of the run."""
        self._meter = meter
        self._world = world
        self._journal = journal
        self._attempts_max = attempts_max
        self._failed = on_failure

    async def judge(
        self, row: EpisodeRow, task: Task, record: EpisodeRecord, bundle: Bundle | None, trouble: Trouble | None
    ) -> Verdict:
        """Stores the verdict and the reward of a row as it was played, and returns the verdict."""
        started_s = self._world.clock.now_s()
        used: UsageRow | None = None
        if record.termination.ours:
            verdict = _lost(record, task, trouble)
        else:
            verdict, used = await self._grade(row, task, bundle)
        verdict = _storable(verdict)
        value = verdict.score if verdict.status is VerdictStatus.SCORED else None
        reward = Reward(
            id=new_id("reward", clock=self._world.clock),
            episode=row.id,
            task=task.id,
            run=row.run,
            policy=record.policy,
            value=value,
            cause=verdict.cause,
            verdict=digest_bytes(canonical_bytes(verdict)),
            termination=record.termination,
            truncated=record.truncated,
        )
        stored = await in_thread(self._world.blobs.put_many, [canonical_bytes(verdict), canonical_bytes(reward)])
        judged = msgspec.structs.replace(
            row,
            state=EpisodeState.JUDGED,
            verdict=stored[0],
            reward=stored[1],
            reward_id=reward.id,
            value=value,
            cause=verdict.cause,
            judging_started_s=started_s,
            judged_s=self._world.clock.now_s(),
        )
        mark = RowMarks(self._world.marks).of_episode(judged)
        await in_thread(self._journal.judged, judged, mark=mark, used=used)
        return verdict

    async def _grade(self, row: EpisodeRow, task: Task, bundle: Bundle | None) -> tuple[Verdict, UsageRow | None]:
        """A verdict, after as many tries as the plan allows where our side fails, and what the last one took (None:
        that is in the journal already)."""
        for attempt in range(1, self._attempts_max + 1):
            meter = self._meter.part()
            sandboxes = metered(self._world, meter).sandboxes
            try:
                verdict = await self._world.judge_on(sandboxes).grade(task, episode=row.id, bundle=bundle)
            except UnavailableError as error:
                verdict = _unjudged(
                    row.id, task, bundle, VerdictStatus.INFRA_ERROR, cause="grader_unavailable", detail=error.message
                )
            except CallerError as error:
                verdict = _unjudged(
                    row.id, task, bundle, VerdictStatus.TASK_INVALID, cause="grader_refused", detail=error.message
                )
            used = UsageRow(run=row.run, task=task.id, episode=row.id, stage="grade", usage=meter.usage)
            if verdict.status is not VerdictStatus.INFRA_ERROR:
                return verdict, used
            again = attempt < self._attempts_max
            trouble = Trouble(cause=verdict.cause, detail=verdict.detail)
            await self._failed(row, attempt, "grade", trouble, used, again=again)
            if again:
                await anyio.sleep(RETRY_PAUSE_S * attempt)
        return verdict, None


def _storable(verdict: Verdict) -> Verdict:
    """A verdict whose words cannot be stored, without them: no text may keep a run from going on."""
    try:
        canonical_bytes(verdict)
    except CallerError:
        return msgspec.structs.replace(verdict, detail="")
    return verdict


def _lost(record: EpisodeRecord, task: Task, trouble: Trouble | None) -> Verdict:
    cause = trouble.cause if trouble else "episode_lost"
    return _unjudged(record.id, task, None, VerdictStatus.INFRA_ERROR, cause=cause, detail=record.detail)


def _unjudged(
    episode: str, task: Task, bundle: Bundle | None, status: VerdictStatus, *, cause: str, detail: str
) -> Verdict:
    return Verdict(
        episode=episode,
        task=task.id,
        grader=task.grader,
        bundle=digest_bytes(canonical_bytes(bundle)) if bundle else None,
        status=status,
        score=None,
        cause=cause,
        detail=detail[:2000],
        nonce=secrets.token_hex(16),
    )
