"""Rows of the journal, as records, and the tables they lie in."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, Table, Text

from ropewalk.core.records import Record
from ropewalk.store.database import Migration, Schema

metadata: Final = MetaData()


def _text(name: str, **options: Any) -> Column[str]:
    return Column(name, Text, nullable=options.pop("nullable", False), **options)


def _number(name: str, *, nullable: bool = False) -> Column[float]:
    return Column(name, Float, nullable=nullable)


# SQLite keeps the order of insertion in its rowid; other databases need it said, so `place` says it.
RUNS: Final = Table(
    "rollout_runs", metadata,
    _text("run", primary_key=True), _text("plan"), _text("state"), _number("created_s"),
    _number("ended_s", nullable=True), _number("signing_s"),
)  # fmt: skip
TASKS: Final = Table(
    "rollout_tasks", metadata,
    _text("run", primary_key=True), _text("task", primary_key=True), Column("place", Integer, nullable=False),
    _text("blob"), _text("snapshot", nullable=True), _text("snapshot_blob", nullable=True), _number("prepare_s"),
    _text("refusal"),
)  # fmt: skip
GROUPS: Final = Table(
    "rollout_groups", metadata,
    _text("id", primary_key=True), _text("run", index=True), Column("place", Integer, nullable=False),
    _text("task"), _text("policy"), _text("state"), _text("cause"),
)  # fmt: skip
EPISODES: Final = Table(
    "rollout_episodes", metadata,
    _text("id", primary_key=True), _text("run", index=True), Column("place", Integer, nullable=False),
    _text("group_id"), _text("task"), _text("policy"), Column("position", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False), Column("attempt", Integer, nullable=False), _text("state"),
    _text("record", nullable=True), _text("verdict", nullable=True), _text("reward", nullable=True),
    _text("reward_id", nullable=True, unique=True), _number("value", nullable=True), _text("cause"),
    _number("judging_started_s", nullable=True), _number("judged_s", nullable=True),
)  # fmt: skip
FAILURES: Final = Table(
    "rollout_failures", metadata,
    Column("number", Integer, primary_key=True, autoincrement=True), _text("run", index=True), _text("episode"),
    Column("attempt", Integer, nullable=False), _text("stage"), _text("cause"), _text("detail"), _number("at_s"),
)  # fmt: skip
SNAPSHOTS: Final = Table(
    "rollout_snapshots", metadata, _text("snapshot", primary_key=True), _text("owner", primary_key=True)
)  # fmt: skip

_FIRST: Final = tuple(metadata.tables.values())
USAGES: Final = Table(
    "rollout_usages", metadata,
    Column("number", Integer, primary_key=True, autoincrement=True), _text("run", index=True), _text("task"),
    _text("episode"), _text("stage"), _text("usage"),
)  # fmt: skip
MARKS: Final = Table(
    "rollout_marks", metadata, _text("subject", primary_key=True), _text("run", index=True), _text("mark")
)  # fmt: skip
SCHEMA: Final = Schema(
    "rollout",
    [
        Migration(1, "runs, tasks, groups, episodes", tables=_FIRST),
        Migration(
            2, "what no episode's record says of a run's use", tables=(USAGES,),
            sql=("CREATE INDEX ix_rollout_episodes_group_id ON rollout_episodes (group_id)",
                 "CREATE INDEX ix_rollout_episodes_task ON rollout_episodes (task)"),
        ),
        Migration(3, "marks of what a resumed run goes on from", tables=(MARKS,)),
    ],
)  # fmt: skip


class EpisodeState(StrEnum):
    """How far an episode is."""

    PLANNED = "planned"
    PLAYED = "played"
    JUDGED = "judged"
    SEALED = "sealed"


class RunRow(Record):
    """One run."""

    run: str
    plan: str
    """Digest of the plan in the blob store."""
    state: str
    """`open`, then `complete` or `incomplete`."""
    created_s: float
    ended_s: float | None = None
    signing_s: float = 0.0


class TaskRow(Record):
    """One task of a run."""

    run: str
    task: str
    place: int
    """In the plan, from 0."""
    blob: str
    snapshot: str | None = None
    snapshot_blob: str | None = None
    prepare_s: float = 0.0
    refusal: str = ""


class GroupRow(Record):
    """Episodes that start from one snapshot under one policy."""

    id: str
    run: str
    place: int
    task: str
    policy: str
    state: str = "open"
    """`open`, `complete`, `refused`."""
    cause: str = ""


class EpisodeRow(Record):
    """One episode."""

    id: str
    run: str
    place: int
    group_id: str
    task: str
    policy: str
    """Name in the plan; the record has it with settings."""
    position: int
    """Within the group, from 0."""
    seed: int
    attempt: int = 1
    state: EpisodeState = EpisodeState.PLANNED
    record: str | None = None
    verdict: str | None = None
    reward: str | None = None
    reward_id: str | None = None
    value: float | None = None
    cause: str = ""
    judging_started_s: float | None = None
    judged_s: float | None = None


class UsageRow(Record):
    """What a run used that no record of an episode counts: preparations, gradings, attempts that were made again."""

    run: str
    task: str
    episode: str
    """Empty for a preparation."""
    stage: str
    """`prepare`, `play` or `grade`."""
    usage: dict[str, float]
    """As an episode's."""


class FailureRow(Record):
    """An attempt that our side failed."""

    run: str
    episode: str
    attempt: int
    stage: str
    """`play` or `grade`; `resume` where what the journal said of it was not believed."""
    cause: str
    detail: str
    at_s: float


def cause_of_refusal(rewards: Iterable[tuple[float | None, str]]) -> str:
    """Why a group is refused whose rewards have these values and causes: the most frequent cause of those that are
    unscored; empty where all are scored, so that it is complete."""
    causes = sorted(cause for value, cause in rewards if value is None)
    return max(causes, key=causes.count) if causes else ""
