"""The journal: which episodes a run consists of and how far each is. What it acknowledged survives `kill -9`.

    planned ──► played ──► judged ──► sealed
                  │           │          └ statements durable; the reward is visible from here on
                  │           └ verdict and reward stored
                  └ episode record and bundle stored

Records lie in the blob store under their digests; the journal holds the digests, one row per episode, and every
change is one durable transaction. An episode that was only begun has no mark: a resumed run plays it again under
the same id and attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Table, delete, insert, select, update

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.records import Record
from ropewalk.machinery.files import locked
from ropewalk.rollout.rows import (
    EPISODES,
    FAILURES,
    GROUPS,
    MARKS,
    RUNS,
    SCHEMA,
    SNAPSHOTS,
    TASKS,
    USAGES,
    EpisodeRow,
    EpisodeState,
    FailureRow,
    GroupRow,
    RunRow,
    TaskRow,
    UsageRow,
)
from ropewalk.store.database import Database

PARAMETERS_MAX = 500

RowT = TypeVar("RowT", bound=Record)


class RunJournalReads:
    """Rollout's tables in the state database, read. Every method may raise what `Database.read` does."""

    def __init__(self, database: Database, *, locks: Path) -> None:
        """`locks`: a folder for one lock file per run. The database's owner closes it."""
        database.apply(SCHEMA)
        self._database = database
        self._locks = locks

    def run(self, run: str) -> RunRow:
        """One run.

        Raises:
            CallerError: unknown.
        """
        return self._one(RunRow, RUNS, "run", run)

    def runs(self) -> list[RunRow]:
        """All, newest first."""
        return self._rows(RunRow, select(RUNS).order_by(RUNS.c.created_s.desc()))

    def tasks(self, run: str) -> list[TaskRow]:
        """The run's, in the order of the plan."""
        return self._rows(TaskRow, select(TASKS).where(TASKS.c.run == run).order_by(TASKS.c.place))

    def task(self, run: str, task: str) -> TaskRow:
        """One of the run's.

        Raises:
            CallerError: it is none of them.
        """
        rows = self._rows(TaskRow, select(TASKS).where((TASKS.c.run == run) & (TASKS.c.task == task)))
        if not rows:
            raise CallerError(f"{run} has no {task!r}.", next_step="see `ropewalk report`.")
        return rows[0]

    def groups(self, run: str) -> list[GroupRow]:
        """The run's, in the order of the plan."""
        return self._rows(GroupRow, select(GROUPS).where(GROUPS.c.run == run).order_by(GROUPS.c.place))

    def episodes(self, run: str) -> list[EpisodeRow]:
        """The run's, in the order of the plan."""
        return self._rows(EpisodeRow, select(EPISODES).where(EPISODES.c.run == run).order_by(EPISODES.c.place))

    def chosen_groups(self, ids: Collection[str]) -> list[GroupRow]:
        """These, in the order of the plan."""
        return self._among(GroupRow, GROUPS, GROUPS.c.id, ids)

    def members(self, groups: Collection[str]) -> list[EpisodeRow]:
        """The episodes of these groups, in the order of the plan."""
        return self._among(EpisodeRow, EPISODES, EPISODES.c.group_id, groups)

    def chosen_episodes(self, ids: Collection[str]) -> list[EpisodeRow]:
        """These, in the order of the plan."""
        return self._among(EpisodeRow, EPISODES, EPISODES.c.id, ids)

    def runs_with(self, tasks: Collection[str]) -> list[str]:
        """Runs that have sealed episodes of any of these tasks."""
        found: set[str] = set()
        for part in _parts(tasks):
            sealed = EPISODES.c.task.in_(part) & (EPISODES.c.state == EpisodeState.SEALED)
            with self._database.read() as connection:
                found.update(connection.execute(select(EPISODES.c.run).where(sealed).distinct()).scalars())
        return sorted(found)

    def usages(self, run: str) -> list[UsageRow]:
        """What the run used besides what its episodes' records say, oldest first."""
        with self._database.read() as connection:
            query = select(USAGES).where(USAGES.c.run == run).order_by(USAGES.c.number)
            rows = connection.execute(query).mappings().all()
        return [
            UsageRow(
                run=row["run"], task=row["task"], episode=row["episode"], stage=row["stage"],
                usage=msgspec.json.decode(row["usage"], type=dict[str, float]),
            )
            for row in rows
        ]  # fmt: skip

    def episode(self, id: str) -> EpisodeRow:
        """One episode.

        Raises:
            CallerError: unknown.
        """
        return self._one(EpisodeRow, EPISODES, "id", id)

    def beginning(self, text: str) -> list[str]:
        """Up to three ids that begin so: of runs, episodes or rewards, as the part before the colon says."""
        columns = {"run": RUNS.c.run, "episode": EPISODES.c.id, "reward": EPISODES.c.reward_id}
        column = columns.get(text.partition(":")[0])
        if column is None:
            return []
        query = select(column).where(column.startswith(text, autoescape=True)).order_by(column).limit(3)
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def marks(self, run: str) -> dict[str, str]:
        """The run's marks (`ropewalk.rollout.marks`) by subject: the run, `task_subject`, an episode."""
        with self._database.read() as connection:
            rows = connection.execute(select(MARKS).where(MARKS.c.run == run)).all()
        return {row.subject: row.mark for row in rows}

    def mark(self, subject: str) -> str:
        """One of them; empty where there is none."""
        return self.chosen_marks([subject]).get(subject, "")

    def chosen_marks(self, subjects: Collection[str]) -> dict[str, str]:
        """Those of these subjects that have one."""
        with self._database.read() as connection:
            parts = [select(MARKS).where(MARKS.c.subject.in_(part)) for part in _parts(subjects)]
            return {row.subject: row.mark for part in parts for row in connection.execute(part).all()}

    def failures(self, run: str) -> list[FailureRow]:
        """Attempts of the run's episodes that our side failed, oldest first."""
        columns = [column for column in FAILURES.c if column.name != "number"]
        return self._rows(FailureRow, select(*columns).where(FAILURES.c.run == run).order_by(FAILURES.c.number))

    def holding(self, owners: Sequence[str]) -> list[str]:
        """Those among the owners that hold any snapshot."""
        found: set[str] = set()
        with self._database.read() as connection:
            for part in _parts(owners):
                mine = SNAPSHOTS.c.owner.in_(part)
                found.update(connection.execute(select(SNAPSHOTS.c.owner).where(mine)).scalars())
        return sorted(found)

    def held_alone(self, owner: str) -> list[str]:
        """Snapshots that `owner` holds and nobody else does."""
        with self._database.read() as connection:
            mine = set(connection.execute(select(SNAPSHOTS.c.snapshot).where(SNAPSHOTS.c.owner == owner)).scalars())
            others = SNAPSHOTS.c.snapshot.in_(mine) & (SNAPSHOTS.c.owner != owner)
            shared = set(connection.execute(select(SNAPSHOTS.c.snapshot).where(others)).scalars()) if mine else set()
        return sorted(mine - shared)

    def holds(self) -> dict[str, list[str]]:
        """Owners by snapshot."""
        with self._database.read() as connection:
            rows = connection.execute(select(SNAPSHOTS.c.snapshot, SNAPSHOTS.c.owner).order_by(SNAPSHOTS.c.owner)).all()
        found: dict[str, list[str]] = {}
        for row in rows:
            found.setdefault(row.snapshot, []).append(row.owner)
        return found

    def _among(self, kind: type[RowT], table: Table, column: Any, values: Collection[str]) -> list[RowT]:
        rows = [row for part in _parts(values) for row in self._rows(kind, select(table).where(column.in_(part)))]
        return sorted(rows, key=lambda row: getattr(row, "place"))  # noqa: B009

    def _rows(self, kind: type[RowT], query: Any) -> list[RowT]:
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        names = kind.__struct_fields__
        try:
            return [msgspec.convert({name: row[name] for name in names}, kind) for row in rows]
        except msgspec.ValidationError as error:
            raise IntegrityError(
                f"A row of the journal ({kind.__name__}) was changed: {error}.",
                next_step="restore the database; the records and the log say what was.",
            ) from error

    def _one(self, kind: type[RowT], table: Table, key: str, value: str) -> RowT:
        rows = self._rows(kind, select(table).where(table.c[key] == value))
        if not rows:
            raise CallerError(f"There is no {value!r} in the journal.", next_step="see `ropewalk run ls`.")
        return rows[0]


class RunJournal(RunJournalReads):
    """Rollout's tables, also written. Every method may raise what `Database.write` does."""

    @contextmanager
    def own(self, run: str) -> Iterator[None]:
        """Holds the run for this process; the lock goes when the process does.

        Raises:
            UnavailableError: another process has it.
        """
        held = UnavailableError(
            f"Another process works on {run}.", retry_after_s=5.0, next_step="wait for it, or end it."
        )
        with locked(self._locks / f"{run.partition(':')[2]}.lock", parents=True, held=held):
            yield

    def begin(
        self,
        run: RunRow,
        tasks: Iterable[TaskRow],
        groups: Iterable[GroupRow],
        episodes: Iterable[EpisodeRow],
        *,
        mark: str,
    ) -> None:
        """Writes down a whole run before anything of it happens."""
        with self._database.write() as connection:
            _insert(connection, RUNS, [run])
            _insert(connection, TASKS, tasks)
            _insert(connection, GROUPS, groups)
            _insert(connection, EPISODES, episodes)
            _mark(connection, run.run, run.run, mark)

    def used(self, *usages: UsageRow) -> None:
        """Counts what was used."""
        with self._database.write() as connection:
            _insert_usages(connection, usages)

    def task_prepared(self, made: TaskRow, *, mark: str, used: UsageRow) -> None:
        """The state that the task's episodes start from is saved and its statement durable."""
        row = (TASKS.c.run == made.run) & (TASKS.c.task == made.task)
        names = ("snapshot", "snapshot_blob", "prepare_s", "refusal")
        with self._database.write() as connection:
            connection.execute(update(TASKS).where(row).values({name: getattr(made, name) for name in names}))
            _mark(connection, made.run, task_subject(made.run, made.task), mark)
            _insert_usages(connection, [used])

    def task_refused(self, run: str, task: str, cause: str) -> None:
        """The task cannot be made ready."""
        self._write(update(TASKS).where((TASKS.c.run == run) & (TASKS.c.task == task)).values(refusal=cause))

    def attempt_failed(self, failure: FailureRow, *, again: bool, used: UsageRow | None = None) -> None:
        """An attempt failed on our side. `again`: its stage begins anew. `used`: what it took, if no record says so."""
        with self._database.write() as connection:
            _insert(connection, FAILURES, [failure])
            _insert_usages(connection, [used] if used else [])
            if again and failure.stage == "play":
                row = EPISODES.c.id == failure.episode
                connection.execute(update(EPISODES).where(row).values(attempt=failure.attempt + 1))

    def played(self, row: EpisodeRow, *, mark: str) -> None:
        """The record of the row's episode is stored. `cause`: why it cannot be scored; empty where it can."""
        self._move(row, EpisodeState.PLANNED, ("record", "cause"), mark=mark)

    def judged(self, row: EpisodeRow, *, mark: str, used: UsageRow | None = None) -> None:
        """Verdict and reward of a row whose episode was played are stored. `used`: what the grading took."""
        names = ("verdict", "reward", "reward_id", "value", "cause", "judging_started_s", "judged_s")
        self._move(row, EpisodeState.PLAYED, names, mark=mark, used=used)

    def not_vouched(self, failures: Iterable[FailureRow]) -> None:
        """What the rows of these episodes say beyond the plan is not believed: they are as if never played."""
        blank = dict.fromkeys(("record", "verdict", "reward", "reward_id", "value", "judging_started_s", "judged_s"))
        with self._database.write() as connection:
            for failure in failures:
                row = (EPISODES.c.id == failure.episode) & (EPISODES.c.state != EpisodeState.SEALED)
                values = {**blank, "cause": "", "state": EpisodeState.PLANNED}
                connection.execute(update(EPISODES).where(row).values(values))
                connection.execute(delete(MARKS).where(MARKS.c.subject == failure.episode))
                _insert(connection, FAILURES, [failure])

    def sealed(self, run: str, episodes: Iterable[str], *, signing_s: float) -> None:
        """From now on their rewards are visible: call it once their statements are durable."""
        with self._database.write() as connection:
            for id in episodes:
                row = (EPISODES.c.id == id) & (EPISODES.c.state == EpisodeState.JUDGED)
                if connection.execute(update(EPISODES).where(row).values(state=EpisodeState.SEALED)).rowcount != 1:
                    raise IntegrityError(f"The journal does not have {id} as judged any more.")
            connection.execute(
                update(RUNS).where(RUNS.c.run == run).values(signing_s=RUNS.c.signing_s + signing_s)
            )  # fmt: skip

    def group_closed(self, group: str, *, state: str, cause: str) -> None:
        """`state`: complete or refused."""
        self._write(update(GROUPS).where(GROUPS.c.id == group).values(state=state, cause=cause))

    def ended(self, run: str, *, state: str, ended_s: float) -> None:
        """`state`: complete or incomplete."""
        self._write(update(RUNS).where(RUNS.c.run == run).values(state=state, ended_s=ended_s))

    def hold(self, snapshot: str, owner: str) -> None:
        """Notes that `owner` (an episode, or a run and a task) needs the snapshot."""
        with self._database.write() as connection:
            row = (SNAPSHOTS.c.snapshot == snapshot) & (SNAPSHOTS.c.owner == owner)
            if connection.execute(select(SNAPSHOTS).where(row)).first() is None:
                connection.execute(insert(SNAPSHOTS).values(snapshot=snapshot, owner=owner))

    def release(self, owner: str) -> None:
        """Lets go of all of the owner's."""
        self._write(delete(SNAPSHOTS).where(SNAPSHOTS.c.owner == owner))

    def forget(self, snapshot: str) -> None:
        """Nobody holds it any more."""
        self._write(delete(SNAPSHOTS).where(SNAPSHOTS.c.snapshot == snapshot))

    def _move(
        self, made: EpisodeRow, before: EpisodeState, names: Iterable[str], *, mark: str, used: UsageRow | None = None
    ) -> None:
        row = (EPISODES.c.id == made.id) & (EPISODES.c.state == before)
        values = {name: getattr(made, name) for name in names}
        with self._database.write() as connection:
            moved = connection.execute(update(EPISODES).where(row).values(state=made.state, **values)).rowcount
            _mark(connection, made.run, made.id, mark)
            _insert_usages(connection, [used] if used else [])
            if moved != 1:
                raise IntegrityError(
                    f"The journal does not have {made.id} as {before} any more.",
                    next_step="somebody else changed it; see `ropewalk verify`.",
                )

    def _write(self, statement: Any) -> None:
        with self._database.write() as connection:
            connection.execute(statement)


def task_subject(run: str, task: str) -> str:
    """Under which name a task's mark is kept."""
    return f"{run}/{task}"


def _mark(connection: Connection, run: str, subject: str, mark: str) -> None:
    connection.execute(delete(MARKS).where(MARKS.c.subject == subject))
    connection.execute(insert(MARKS).values(subject=subject, run=run, mark=mark))


def _insert(connection: Connection, table: Table, records: Iterable[Record]) -> None:
    rows = [msgspec.to_builtins(record) for record in records]
    if rows:
        connection.execute(insert(table), rows)


def _insert_usages(connection: Connection, usages: Iterable[UsageRow]) -> None:
    rows = [{**msgspec.structs.asdict(row), "usage": msgspec.json.encode(row.usage).decode()} for row in usages]
    if rows:
        connection.execute(insert(USAGES), rows)


def _parts(values: Collection[str]) -> Iterator[list[str]]:
    """A statement has only so many parameters."""
    listed = list(values)
    for first in range(0, len(listed), PARAMETERS_MAX):
        yield listed[first : first + PARAMETERS_MAX]
