"""The run loop: tasks × policies × forks become episodes, bundles, verdicts, rewards and statements.

Three stages run side by side: one prepares tasks, a little ahead; `concurrency` workers play and grade what is
prepared; one seals what is judged, in batches. Everything of note is in the journal before it counts, so the loop may
stop at any instant and go on from there.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec.structs import replace

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import canonical_bytes
from ropewalk.interface.episode import EpisodeRecord, Step
from ropewalk.interface.task import Task
from ropewalk.machinery.telemetry import bound
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.verdict import VerdictStatus
from ropewalk.rollout import events
from ropewalk.rollout.begin import load_run
from ropewalk.rollout.episodes.clean import clean_text
from ropewalk.rollout.episodes.materials import Materials, make_ready
from ropewalk.rollout.episodes.play import Attempt, Played, Trouble
from ropewalk.rollout.episodes.shelf import Shelf, ready, scratch
from ropewalk.rollout.journal import RunJournal, task_subject
from ropewalk.rollout.judging import RETRY_PAUSE_S, Judging
from ropewalk.rollout.marks import NOT_VOUCHED, RowMarks
from ropewalk.rollout.metering import Meter, metered
from ropewalk.rollout.plan import SETTLED_ENDPOINT, Plan
from ropewalk.rollout.policies.contract import Policy, PolicyFailedError, SupportsSpending
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.rows import EpisodeRow, EpisodeState, FailureRow, RunRow, TaskRow, UsageRow
from ropewalk.rollout.sealing import Sealer
from ropewalk.rollout.statements import snapshot_draft
from ropewalk.rollout.summary import distinct
from ropewalk.rollout.threads import in_thread
from ropewalk.sandbox.contract import SnapshotRecord
from ropewalk.store.records import read_record


class RunLoop:
    """Works on one run until nothing is left to do. Use once per call: a resume is a new loop on the same run."""

    def __init__(
        self,
        world: RunWorld,
        journal: RunJournal,
        run: str,
        *,
        policies: Mapping[str, Policy[Any]],
        observe: events.Observer = events.ignore,
    ) -> None:
        """`policies`: by name in the plan; the caller closes them."""
        self._world = world
        self._journal = journal
        self._run = run
        self._policies = policies
        self._observe = observe
        self._plan: Plan
        self._tasks: dict[str, Task]
        self._judging: Judging
        self._sealer: Sealer
        self._materials = Materials(world)
        self._shelf = Shelf(world.sandboxes, journal)
        self._marks = RowMarks(world.marks)
        self._fatal: Exception | None = None
        self._scope = anyio.CancelScope()
        self._meter = Meter(world.clock)

    async def work(self) -> RunRow:
        """Plays, grades and seals all that is open; also what an earlier, broken-off loop left.

        Cancelling it (Ctrl-C) ends every sandbox and leaves the run resumable.

        Raises:
            CallerError: there is no such run.
            UnavailableError: another process works on this run, the journal cannot be written, or what a policy needs
                fails for all its episodes: those that are not played yet stay so.
            IntegrityError: stored records or the log are damaged.
        """
        with self._journal.own(self._run):
            started = self._world.clock.monotonic_s()
            state = "interrupted"
            try:
                await self._load_run()
                await self._say_started()
                await self._forget_half_done()
                await self._stages()
                state = await self._close()
            finally:
                with anyio.CancelScope(shield=True):
                    all_rows = await in_thread(self._journal.episodes, self._run)
                rows = [row for row in all_rows if row.state is EpisodeState.SEALED]
                self._observe(
                    events.RunEnded(
                        run=self._run,
                        state=state,
                        rewards=len(rows),
                        unscored=sum(row.value is None for row in rows),
                        duration_s=self._world.clock.monotonic_s() - started,
                    )
                )
            return await in_thread(self._journal.run, self._run)

    async def _load_run(self) -> None:
        begun = await in_thread(load_run, self._world, self._journal, self._run)
        self._plan, self._tasks = begun.plan, begun.tasks
        self._sealer = Sealer(self._world, self._journal, begun, self._run, self._observe)
        self._judging = Judging(
            self._world, self._journal, attempts_max=self._plan.run.attempts_max, on_failure=self._failed,
            meter=self._meter,
        )  # fmt: skip

    async def _stages(self) -> None:
        work_in, work_out = anyio.create_memory_object_stream[EpisodeRow](self._plan.run.concurrency)
        judged_in, judged_out = anyio.create_memory_object_stream[str](math.inf)
        with self._scope:
            async with anyio.create_task_group() as seal_group:
                seal_group.start_soon(self._guard, self._seal_all, judged_out)
                async with judged_in, anyio.create_task_group() as group:
                    for _ in range(self._plan.run.concurrency):
                        group.start_soon(self._guard, self._work_all, work_out.clone(), judged_in)
                    work_out.close()
                    group.start_soon(self._guard, self._feed, work_in, judged_in)
        if self._fatal:
            raise self._fatal

    async def _guard(self, stage: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """A stage that fails ends all others, and the loop raises what it raised (not a group of errors)."""
        try:
            await stage(*arguments)
        except Exception as error:
            self._fatal = self._fatal or error
            self._scope.cancel()

    # Stage 1: prepare

    async def _feed(self, work: MemoryObjectSendStream[EpisodeRow], judged: MemoryObjectSendStream[str]) -> None:
        async with work:
            rows = await in_thread(self._believable)
            await in_thread(self._count_spent, rows)
            for row in rows:
                if row.state is EpisodeState.JUDGED:
                    judged.send_nowait(row.id)
            for task_row in await in_thread(self._journal.tasks, self._run):
                mine = [row for row in rows if row.task == task_row.task]
                todo = [row for row in mine if row.state in (EpisodeState.PLANNED, EpisodeState.PLAYED)]
                planned = any(row.state is EpisodeState.PLANNED for row in todo)
                if planned and not self._used_up() and not await self._ready(task_row, mine):
                    todo = [row for row in todo if row.state is EpisodeState.PLAYED]
                for row in todo:
                    await work.send(row)

    async def _ready(self, row: TaskRow, episodes: list[EpisodeRow]) -> bool:
        """Whether the task has a saved state to fork. Makes one if not; refuses its groups if that fails."""
        task = self._tasks[row.task]
        mark = await in_thread(self._journal.mark, task_subject(row.run, row.task))
        known = row.snapshot or "" if self._marks.vouches_for_task(mark, row) else ""
        if known:
            saved = await in_thread(read_record, self._world.blobs, row.snapshot_blob or "", SnapshotRecord)
            if self._shelf.has(saved):
                return True
        cause, detail, meter = "", "", self._meter.part()
        for attempt in range(1, self._plan.run.attempts_max + 1):
            if attempt > 1:
                await anyio.sleep(RETRY_PAUSE_S * attempt)
            try:
                started_s, started = self._world.clock.now_s(), self._world.clock.monotonic_s()
                async with self._world.placed(task):
                    world = metered(self._world, meter)
                    snapshot = await make_ready(world, task, self._shelf, ready(self._run, task.id))
                if snapshot.id != known and any(e.record for e in episodes):
                    # The group's first episodes began from a state that is lost and cannot be made again.
                    cause, detail = "snapshot_lost", f"{known or 'what they began from'} is gone"
                    break
                await self._task_ready(row, task, snapshot, started_s, self._prepared(task, meter))
                duration_s = self._world.clock.monotonic_s() - started
                self._observe(
                    events.TaskPrepared(
                        run=self._run, task=task.id, name=task.name, snapshot=snapshot.id, duration_s=duration_s
                    )
                )
                return True
            except UnavailableError as error:
                cause, detail = "task_not_ready", str(error)
            except CallerError as error:  # the task's own doing, most likely: it ends the task, never the run
                cause, detail = "task_not_ready", str(error)
                break
        await in_thread(self._journal.used, self._prepared(task, meter))
        await self._refuse_task(task, cause, detail, episodes)
        return False

    def _prepared(self, task: Task, meter: Meter) -> UsageRow:
        return UsageRow(run=self._run, task=task.id, episode="", stage="prepare", usage=meter.usage)

    async def _task_ready(
        self, row: TaskRow, task: Task, snapshot: SnapshotRecord, started_s: float, used: UsageRow
    ) -> None:
        ended_s = self._world.clock.now_s()
        draft = snapshot_draft(task, snapshot, started_s=started_s, ended_s=ended_s)

        def note() -> None:
            blob = self._world.blobs.put(canonical_bytes(snapshot))
            self._world.recorder.record((draft,))
            prepare_s = ended_s - started_s
            made = replace(row, snapshot=snapshot.id, snapshot_blob=blob, prepare_s=prepare_s, refusal="")
            self._journal.task_prepared(made, mark=self._marks.of_task(made), used=used)

        await in_thread(note)

    async def _refuse_task(self, task: Task, cause: str, detail: str, episodes: list[EpisodeRow]) -> None:
        await in_thread(self._journal.task_refused, self._run, task.id, cause)
        self._observe(events.TaskRefused(run=self._run, task=task.id, name=task.name, cause=cause, detail=detail))
        for group in {row.group_id: row for row in episodes if row.state is EpisodeState.PLANNED}.values():
            await self._sealer.close_group(group.group_id, group.task, group.policy, cause)

    # Stage 2: play and grade

    async def _work_all(self, work: MemoryObjectReceiveStream[EpisodeRow], judged: MemoryObjectSendStream[str]) -> None:
        async with work:
            async for row in work:
                if row.state is EpisodeState.PLANNED and await self._over_budget(row):
                    continue
                task = self._tasks[row.task]
                with bound(run=self._run, episode=row.id):
                    async with self._world.placed(task):
                        await self._episode(row, task)
                judged.send_nowait(row.id)

    def _used_up(self) -> bool:
        """Whether the run's sandboxes have lived as long as they may, all together, those that run included."""
        budget = self._plan.run.sandbox_s_max
        return budget is not None and self._meter.sandbox_s >= budget

    async def _over_budget(self, row: EpisodeRow) -> bool:
        if not self._used_up():
            return False
        await self._sealer.close_group(row.group_id, row.task, row.policy, "budget_sandbox_s")
        return True

    async def _episode(self, row: EpisodeRow, task: Task) -> None:
        if row.state is EpisodeState.PLANNED:
            played = await self._play(row, task)
            record, bundle, trouble = played.record, played.bundle, played.trouble
            row = await in_thread(self._store_played, row, record, trouble)
        else:
            blobs = self._world.blobs
            record = await in_thread(read_record, blobs, row.record or "", EpisodeRecord)
            bundle = await in_thread(read_record, blobs, record.bundle, Bundle) if record.bundle else None
            trouble = Trouble(cause=row.cause or "episode_lost", detail=record.detail)
        self._observe(
            events.EpisodeEnded(
                run=self._run, episode=row.id, termination=record.termination, steps=len(record.steps),
                detail=record.detail,
            )
        )  # fmt: skip
        verdict = await self._judging.judge(row, task, record, bundle, trouble)
        if verdict.status is VerdictStatus.SCORED and verdict.score == 1.0:
            await self._shelf.release(row.id)
        self._observe(
            events.EpisodeJudged(
                run=self._run, episode=row.id, status=str(verdict.status), cause=verdict.cause, score=verdict.score
            )
        )

    def _store_played(self, row: EpisodeRow, record: EpisodeRecord, trouble: Trouble | None) -> EpisodeRow:
        blob = self._world.blobs.put(canonical_bytes(record))
        row = replace(row, state=EpisodeState.PLAYED, record=blob, cause=trouble.cause if trouble else "")
        self._journal.played(row, mark=self._marks.of_episode(row))
        return row

    async def _play(self, row: EpisodeRow, task: Task) -> Played:
        snapshot = (await in_thread(self._sealer.ready_task, task.id)).snapshot or ""
        attempt = row.attempt
        while True:
            self._observe(
                events.EpisodeStarted(
                    run=self._run, episode=row.id, task=task.id, policy=row.policy, index=row.position, attempt=attempt
                )
            )
            one = Attempt(
                self._world,
                self._plan,
                task,
                row,
                snapshot=snapshot,
                policy=self._policies[row.policy],
                materials=self._materials,
                shelf=self._shelf,
                on_step=lambda step: self._say_step(row, step),
                meter=self._meter.part(),
            )
            played: Played | None = None
            try:
                played = await one.play()
            except PolicyFailedError as error:
                next_step = f"{error.next_step} Then go on: ropewalk run --resume {self._run}".strip()
                if error.cause.startswith("endpoint_"):
                    next_step += f". {SETTLED_ENDPOINT}"
                raise UnavailableError(
                    f"The run is stopped before more of it goes unscored: {error.message}", next_step=next_step
                ) from error
            finally:
                with anyio.CancelScope(shield=True):
                    await self._shelf.release(scratch(row.id))
                    if played is None:
                        await in_thread(self._journal.used, self._lost(row, one.usage()))
            trouble = played.trouble
            if trouble is None:
                return played
            again = trouble.retriable and attempt < self._plan.run.attempts_max
            used = self._lost(row, played.record.usage) if again else None
            await self._failed(row, attempt, "play", trouble, used, again=again)
            if not again:
                return played
            attempt += 1
            await self._shelf.release(row.id)
            await anyio.sleep(RETRY_PAUSE_S * attempt)

    def _lost(self, row: EpisodeRow, usage: dict[str, float]) -> UsageRow:
        return UsageRow(run=self._run, task=row.task, episode=row.id, stage="play", usage=usage)

    async def _failed(
        self, row: EpisodeRow, attempt: int, stage: str, trouble: Trouble, used: UsageRow | None, *, again: bool
    ) -> None:
        await in_thread(
            self._journal.attempt_failed,
            FailureRow(
                run=self._run, episode=row.id, attempt=attempt, stage=stage, cause=trouble.cause,
                detail=clean_text(trouble.detail[:2000]), at_s=self._world.clock.now_s(),
            ),
            again=again,
            used=used,
        )  # fmt: skip
        self._observe(
            events.AttemptFailed(
                run=self._run, episode=row.id, attempt=attempt, stage=stage, again=again, cause=trouble.cause,
                detail=trouble.detail,
            )
        )  # fmt: skip

    # Stage 3: seal

    async def _seal_all(self, judged: MemoryObjectReceiveStream[str]) -> None:
        async with judged:
            async for first in judged:
                batch = [first]
                try:
                    while True:
                        batch.append(judged.receive_nowait())
                except (anyio.WouldBlock, anyio.EndOfStream):
                    pass
                await self._sealer.seal(tuple(batch))

    # Begin and end

    async def _say_started(self) -> None:
        rows = await in_thread(self._journal.episodes, self._run)
        self._observe(
            events.RunStarted(
                run=self._run,
                tasks=len(self._tasks),
                policies=tuple(self._plan.run.policies),
                episodes_total=len(rows),
                episodes_sealed=sum(row.state is EpisodeState.SEALED for row in rows),
                names=distinct({id: task.name for id, task in self._tasks.items()}),
            )
        )

    def _say_step(self, row: EpisodeRow, step: Step) -> None:
        first = step.results[0].output.strip().splitlines() if step.results else []
        call = ", ".join(call.name for call in step.calls) or "said something"
        self._observe(
            events.EpisodeStepped(
                run=self._run,
                episode=row.id,
                task=row.task,
                policy=row.policy,
                step=step.index,
                duration_s=step.duration_s,
                note=f"{call}: {first[0][:100]}" if first else call,
            )
        )

    async def _forget_half_done(self) -> None:
        """Episodes that a broken-off loop had begun start anew; what they kept goes, and what paid ones kept."""
        rows = await in_thread(self._journal.episodes, self._run)
        unneeded = [row.id for row in rows if row.state is EpisodeState.PLANNED or row.value == 1.0]
        await self._shelf.release(*(scratch(row.id) for row in rows), *unneeded)

    async def _close(self) -> str:
        groups = await in_thread(self._journal.groups, self._run)
        await self._sealer.close_groups({group.id for group in groups if group.state == "open"})
        groups = await in_thread(self._journal.groups, self._run)
        state = "complete" if all(group.state == "complete" for group in groups) else "incomplete"
        if (await in_thread(self._journal.run, self._run)).state != state:
            await in_thread(self._journal.ended, self._run, state=state, ended_s=self._world.clock.now_s())
        await self._release_ready()
        return state

    async def _release_ready(self) -> None:
        """The states that episodes began from: kept only where one may still begin, or an unpaid one be looked at."""
        rows = await in_thread(self._journal.episodes, self._run)
        needed = {row.task for row in rows if row.state is EpisodeState.PLANNED}
        if self._plan.run.keep_failed:
            needed |= {row.task for row in rows if row.value != 1.0}
        await self._shelf.release(*(ready(self._run, task) for task in self._tasks if task not in needed))

    def _believable(self) -> list[EpisodeRow]:
        """The episodes. What one's row, or its task's, says of it and we never wrote is forgotten, noted, and played
        again."""
        rows, marks = self._journal.episodes(self._run), self._journal.marks(self._run)
        vouched = {
            row.task
            for row in self._journal.tasks(self._run)
            if self._marks.vouches_for_task(marks.get(task_subject(row.run, row.task), ""), row)
        }
        doubtful = [
            row
            for row in rows
            if row.state is not EpisodeState.SEALED
            and (row.record or row.state is not EpisodeState.PLANNED)
            and not (row.task in vouched and self._marks.vouches_for_episode(marks.get(row.id, ""), row))
        ]
        if not doubtful:
            return rows
        detail = "its row in the journal is not what was written: it is played again"
        at_s = self._world.clock.now_s()
        self._journal.not_vouched(
            FailureRow(run=self._run, episode=row.id, attempt=row.attempt, stage="resume", cause=NOT_VOUCHED,
                       detail=detail, at_s=at_s)
            for row in doubtful
        )  # fmt: skip
        for row in doubtful:
            self._observe(
                events.AttemptFailed(
                    run=self._run, episode=row.id, attempt=row.attempt, stage="resume", again=True, cause=NOT_VOUCHED,
                    detail=detail,
                )
            )  # fmt: skip
        return self._journal.episodes(self._run)

    def _count_spent(self, rows: list[EpisodeRow]) -> None:
        """What was used before a resume counts towards the run's budgets, also where nothing came of it."""
        policies = {row.id: row.policy for row in rows}
        spent = [
            (row.policy, read_record(self._world.blobs, row.record, EpisodeRecord).usage) for row in rows if row.record
        ]
        spent += [(policies.get(used.episode, ""), used.usage) for used in self._journal.usages(self._run)]
        for name, usage in spent:
            self._meter.add({"sandbox_s": usage.get("sandbox_s", 0.0)})
            policy = self._policies.get(name)
            if isinstance(policy, SupportsSpending):
                policy.spent(usage.get("tokens_prompt", 0.0), usage.get("tokens_completion", 0.0))
