"""A run, loaded: every episode with its record, verdict and reward. What summary, diagnosis and export read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.records import Record
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import Task
from ropewalk.provenance.intoto import Statement, kind_of
from ropewalk.reward.catalogue import CONTROLS
from ropewalk.reward.verdict import Reward, Verdict
from ropewalk.rollout.journal import RunJournalReads
from ropewalk.rollout.outline import outline, visible_tests_passed
from ropewalk.rollout.plan import Plan
from ropewalk.rollout.rows import (
    EpisodeRow,
    EpisodeState,
    FailureRow,
    GroupRow,
    RunRow,
    TaskRow,
    UsageRow,
    cause_of_refusal,
)
from ropewalk.store.contract import Blobs
from ropewalk.store.records import read_record

R = TypeVar("R", bound=Record)


class LoadedEpisode(Record):
    """One episode, as far as it is."""

    row: EpisodeRow
    record: EpisodeRecord | None = None
    """Its outline: what was said, called and shown is read one by one, with `whole_record`."""
    visible_passed: bool = False
    """Whether it ended with all visible tests passing, as far as its own steps tell."""
    verdict: Verdict | None = None
    reward: Reward | None = None
    """Only once it is signed."""


class LoadedRun(Record):
    """One run, as far as it is."""

    row: RunRow
    plan: Plan
    tasks: dict[str, Task]
    """By id, in the order of the plan."""
    task_rows: tuple[TaskRow, ...]
    groups: tuple[GroupRow, ...]
    """In the state that follows from the signed rewards."""
    episodes: tuple[LoadedEpisode, ...]
    failures: tuple[FailureRow, ...]
    elsewhere: tuple[Reward, ...] = ()
    """Signed rewards that other runs gave on the same tasks."""
    usages: tuple[UsageRow, ...] = ()
    """What was used besides what the episodes' records say."""

    def of_group(self, group: str) -> list[LoadedEpisode]:
        """The group's episodes."""
        return [result for result in self.episodes if result.row.group_id == group]

    @property
    def players(self) -> list[LoadedEpisode]:
        """Episodes of policies that are no controls."""
        return [result for result in self.episodes if result.row.policy not in CONTROLS]


class RewardLog(Protocol):
    """`ropewalk.provenance.rewards.SignedRewards`, which documents it."""

    def of_run(self, run: str) -> Sequence[Statement]: ...


class Difference(Record):
    """Where the journal is not what was signed."""

    name: str
    """The reward's or the episode's."""
    message: str


def load_episodes(
    journal: RunJournalReads, blobs: Blobs, run: str, *, log: RewardLog, elsewhere: bool = True
) -> LoadedRun:
    """Everything about a run, and what other runs found out about its tasks. Rewards come out of the log; the journal
    only says where their episodes lie.

    Args:
        journal: says which episodes there are.
        blobs: hold their records.
        run: its id.
        log: holds the rewards.
        elsewhere: read other runs' rewards on its tasks too, which calls on tasks (`RunSummary.catalogue`) count.

    Raises:
        CallerError: no such run.
        IntegrityError: a stored record is damaged, or the journal is not what was signed.
    """
    loaded, differences = read_episodes(journal, blobs, run, log=log)
    if differences:
        shown = "; ".join(difference.message for difference in differences[:3])
        raise IntegrityError(
            f"The journal of {run} is not what was signed: {shown}.",
            next_step=f"do not use these rewards; see `ropewalk verify {run}`.",
        )
    if not elsewhere:
        return loaded
    others = tuple(
        reward
        for other in journal.runs_with(loaded.tasks)
        if other != run
        for statement in log.of_run(other)
        if (reward := msgspec.convert(statement.facts, Reward)).task in loaded.tasks
    )
    return msgspec.structs.replace(loaded, elsewhere=others)


def read_episodes(
    journal: RunJournalReads, blobs: Blobs, run: str, *, log: RewardLog
) -> tuple[LoadedRun, tuple[Difference, ...]]:
    """Like `load_episodes`, with what is wrong beside what could be read.

    Raises:
        CallerError: no such run.
        IntegrityError: the log, the plan or a task is damaged.
    """
    # In this order: whatever is signed was in the journal before.
    signed = {statement.subjects[0].sha256: statement for statement in log.of_run(run)}
    row, task_rows, groups, rows = journal.run(run), journal.tasks(run), journal.groups(run), journal.episodes(run)
    if any(each.state is EpisodeState.SEALED and each.reward not in signed for each in rows):
        known = {each.reward for each in rows}
        later = {statement.subjects[0].sha256: statement for statement in log.of_run(run)}
        signed |= {digest: statement for digest, statement in later.items() if digest in known}
    differences = list(_plan_differences(row, signed.values()))
    results = []
    for each in rows:
        statement = signed.pop(each.reward, None) if each.reward else None
        try:
            result = _result(blobs, each, statement)
            problem = _difference(result, statement)
        except (IntegrityError, CallerError, msgspec.ValidationError) as error:
            result, problem = LoadedEpisode(row=each), str(error)
        results.append(result)
        if problem:
            differences.append(Difference(name=each.reward_id or each.id, message=f"{each.id}: {problem}"))
    for statement in signed.values():
        name = statement.subjects[0].name
        differences.append(Difference(name=name, message=f"{name} was signed, and no episode has it"))
    tasks = {each.task: read_record(blobs, each.blob, Task) for each in task_rows}
    differences += [
        Difference(name=name, message=f"{name} is another task") for name, t in tasks.items() if t.id != name
    ]
    lost = dict.fromkeys(each.task for each in rows if each.task not in tasks)
    differences += [Difference(name=name, message=f"{name} is no task of it, and has episodes") for name in lost]
    plan = read_record(blobs, row.plan, Plan)
    settled, wrong = _signed_groups(groups, results, plan.run.group)
    differences += wrong
    loaded = LoadedRun(
        row=row,
        plan=plan,
        tasks=tasks,
        task_rows=tuple(task_rows),
        groups=settled,
        episodes=tuple(results),
        failures=tuple(journal.failures(run)),
        usages=tuple(journal.usages(run)),
    )
    return loaded, tuple(differences)


def whole_record(blobs: Blobs, row: EpisodeRow) -> EpisodeRecord | None:
    """An episode's whole record; None where there is none yet.

    Raises:
        CallerError, IntegrityError: it is not in the blob store, or damaged.
    """
    return read_record(blobs, row.record, EpisodeRecord) if row.record else None


def signed_reward(row: EpisodeRow, statement: Statement) -> Reward:
    """The reward that a statement states, for the episode of this row.

    Raises:
        IntegrityError: the statement is another episode's, or says something else than the row.
    """
    reward = msgspec.convert(statement.facts, Reward)
    claimed = (row.reward, row.reward_id, row.id, row.run, row.task, row.value, row.cause, row.verdict)
    stated = (
        statement.subjects[0].sha256, statement.subjects[0].name, reward.episode, reward.run, reward.task,
        reward.value, reward.cause, reward.verdict,
    )  # fmt: skip
    inputs = {link.sha256 for link in statement.inputs}
    if claimed != stated or reward.id != row.reward_id or not {row.record, row.verdict} <= inputs:
        raise IntegrityError(f"{row.id}: {statement.subjects[0].name} was not signed for what the journal says")
    return reward


def _difference(result: LoadedEpisode, statement: Statement | None) -> str:
    """What is wrong with an episode; empty: nothing."""
    row, record, verdict = result.row, result.record, result.verdict
    if row.state is EpisodeState.SEALED and statement is None:
        return "its reward was never signed"
    if record is not None:
        is_row = (record.id, record.run, record.task, record.group, record.index, record.seed)
        if is_row != (row.id, row.run, row.task, row.group_id, row.position, row.seed):
            return "its record is another episode's"
        if record.policy.partition("(")[0] != row.policy:
            return f"it was played by {record.policy}, not {row.policy}"
    if verdict is not None and (verdict.episode, verdict.task) != (row.id, row.task):
        return "its verdict is another episode's"
    if verdict is not None and result.reward is not None and verdict.score != result.reward.value:
        return "its verdict says another value than its reward"
    return ""


def _plan_differences(row: RunRow, statements: Iterable[Statement]) -> Iterator[Difference]:
    """Statements of older versions name no plan, and say nothing about it."""
    plans = {link.sha256 for each in statements for link in each.inputs if kind_of(link) == "plan"}
    if plans - {row.plan}:
        yield Difference(name=row.run, message=f"{row.run} has another plan than the one its rewards were signed for")


def _signed_groups(
    groups: Sequence[GroupRow], results: Sequence[LoadedEpisode], size: int
) -> tuple[tuple[GroupRow, ...], list[Difference]]:
    """Groups in the state that follows from their rewards, which are signed, and where their rows say otherwise.

    Whether a group may be learnt from is nobody's word: complete it is when all of its `size` episodes are scored.
    """
    differences: list[Difference] = []
    members: dict[str, list[LoadedEpisode]] = {group.id: [] for group in groups}
    of_group = {group.id: group for group in groups}
    for result in results:
        group = of_group.get(result.row.group_id)
        if group is None or (group.task, group.policy) != (result.row.task, result.row.policy):
            message = f"{result.row.id} is in the group of another task or policy"
            differences.append(Difference(name=result.row.id, message=message))
        else:
            members[group.id].append(result)
    settled = [_signed_state(group, members[group.id], size) for group in groups]
    for group, signed in zip(groups, settled, strict=True):
        if group.state != "open" and group != signed:
            said = ": ".join(filter(None, (group.state, group.cause)))
            meant = ": ".join(filter(None, (signed.state, signed.cause)))
            message = f"{group.id} is called {said}, and by its rewards it is {meant}"
            differences.append(Difference(name=group.id, message=message))
    return tuple(settled), differences


def _signed_state(group: GroupRow, members: Sequence[LoadedEpisode], size: int) -> GroupRow:
    rewards = [result.reward for result in members if result.reward]
    if len(rewards) < size:
        # Nothing else says why it was refused before all of it was played; that it is not complete is sure.
        return msgspec.structs.replace(group, state="open") if group.state == "complete" else group
    cause = cause_of_refusal((reward.value, reward.cause) for reward in rewards)
    return msgspec.structs.replace(group, state="refused" if cause else "complete", cause=cause)


def _result(blobs: Blobs, row: EpisodeRow, statement: Statement | None) -> LoadedEpisode:
    record = whole_record(blobs, row)
    return LoadedEpisode(
        row=row,
        record=None if record is None else outline(record),
        visible_passed=record is not None and visible_tests_passed(record),
        verdict=read_record(blobs, row.verdict, Verdict) if row.verdict else None,
        reward=signed_reward(row, statement) if statement else None,
    )
