"""The lineage index: who made what out of what, in the database, so that millions of statements answer at once.

The log is the truth and this is a cache of it: it knows which log, up to which size and root, and catches up or
says that the log is not the one it saw. `rebuild` makes it anew from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    delete,
    insert,
    select,
    text,
)

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.merkle import verify_consistency
from ropewalk.provenance.checkpoint import Checkpoint
from ropewalk.provenance.intoto import Statement, from_payload
from ropewalk.provenance.lineage import REBUILD, unknown
from ropewalk.provenance.log import Log
from ropewalk.security.signatures import open_envelope
from ropewalk.store.database import Database, Migration, Schema

_metadata: Final = MetaData()
_statements: Final = Table(
    "lineage_statement",
    _metadata,
    Column("log_index", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("activity", String(32), nullable=False),
)
_subjects: Final = Table(
    "lineage_subject",
    _metadata,
    Column("sha256", String(64), primary_key=True),
    Column("log_index", Integer, primary_key=True, autoincrement=False),
    Column("name", String(256), nullable=False),
    Index("lineage_subject_name", "name"),
    sqlite_with_rowid=False,
)
_edges: Final = Table(
    "lineage_edge",
    _metadata,
    Column("subject", String(64), primary_key=True),
    Column("input", String(64), primary_key=True),
    Column("log_index", Integer, primary_key=True, autoincrement=False),
    Index("lineage_edge_reverse", "input", "subject"),
    sqlite_with_rowid=False,
)
_state: Final = Table(
    "lineage_state",
    _metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("origin", String(128), nullable=False),
    Column("size", Integer, nullable=False),
    Column("root", LargeBinary(32), nullable=False),
)
LINEAGE_SCHEMA: Final = Schema(
    "provenance", [Migration(1, "the lineage index", tables=(_statements, _subjects, _edges, _state))]
)

# UNION, not UNION ALL: it follows every use once, however many paths lead there. What was stated after a use led to
# nothing there.
_ANCESTORS: Final = text(
    "WITH RECURSIVE reached(sha256, used_at) AS ("
    "SELECT CAST(:start AS VARCHAR(64)), CAST(4611686018427387904 AS BIGINT) UNION "
    "SELECT lineage_edge.input, CAST(lineage_edge.log_index AS BIGINT) FROM lineage_edge JOIN reached "
    "ON lineage_edge.subject = reached.sha256 AND lineage_edge.log_index < reached.used_at) "
    "SELECT DISTINCT log_index FROM lineage_subject JOIN reached "
    "ON lineage_subject.sha256 = reached.sha256 AND lineage_subject.log_index < reached.used_at"
)
_DESCENDANTS: Final = text(
    "WITH RECURSIVE reached(sha256, made_at) AS ("
    "SELECT CAST(:start AS VARCHAR(64)), CAST(-1 AS BIGINT) UNION "
    "SELECT lineage_edge.subject, CAST(lineage_edge.log_index AS BIGINT) FROM lineage_edge JOIN reached "
    "ON lineage_edge.input = reached.sha256 AND lineage_edge.log_index > reached.made_at) "
    "SELECT DISTINCT log_index FROM lineage_edge JOIN reached "
    "ON lineage_edge.input = reached.sha256 AND lineage_edge.log_index > reached.made_at"
)
_BATCH: Final = 1_000


class LineageIndex:
    """The index of one log. Thread-safe.

    Args:
        database: with `LINEAGE_SCHEMA` in it, or it is added.
        log: what is indexed.
    """

    def __init__(self, database: Database, log: Log) -> None:
        self._database, self._log = database, log
        database.apply(LINEAGE_SCHEMA)

    def ancestors(self, sha256: str) -> tuple[int, ...]:
        """See `Lineage.ancestors`."""
        return self._indexes(_ANCESTORS, sha256)

    def descendants(self, sha256: str) -> tuple[int, ...]:
        """See `Lineage.descendants`."""
        return self._indexes(_DESCENDANTS, sha256)

    def find(self, name: str) -> str:
        """The sha256 of the thing of that name (`reward:01J…`), as its latest statement has it.

        Raises:
            CallerError: no statement made such a thing.
        """
        query = select(_subjects.c.sha256).where(_subjects.c.name == name).order_by(_subjects.c.log_index.desc())
        with self._database.read() as connection:
            found = connection.execute(query.limit(1)).scalar_one_or_none()
        if found is None:
            raise unknown(name)
        return str(found)

    def recorded(self, digests: Sequence[str]) -> dict[str, int]:
        """Which of these statements, by their digest, are in the log already, and where."""
        found: dict[str, int] = {}
        with self._database.read() as connection:
            for first in range(0, len(digests), 500):
                part = digests[first : first + 500]
                query: Select[Any] = select(_statements.c.digest, _statements.c.log_index)
                for row in connection.execute(query.where(_statements.c.digest.in_(part))):
                    found[row.digest] = row.log_index
        return found

    def made(self, things: Sequence[str]) -> frozenset[str]:
        """Which of these things (sha256) any statement in the log made."""
        self.catch_up()
        found: set[str] = set()
        with self._database.read() as connection:
            for first in range(0, len(things), 500):
                query = select(_subjects.c.sha256).where(_subjects.c.sha256.in_(things[first : first + 500]))
                found.update(connection.execute(query).scalars())
        return frozenset(found)

    def catch_up(self, checkpoint: Checkpoint | None = None) -> None:
        """Indexes what the log has gained.

        Args:
            checkpoint: the log's, where the caller has it at hand.

        Raises:
            IntegrityError: the log does not begin with what was indexed: it was rolled back, rewritten or exchanged.
        """
        now = checkpoint or self._log.checkpoint()
        seen = self._seen()
        if seen == now:
            return
        if seen is not None:
            self._check_continues(seen, now)
        self._add_from(seen.size if seen else 0, now)

    def rebuild(self) -> None:
        """Forgets everything and indexes the log from its beginning.

        Raises:
            IntegrityError: an entry of the log is no statement.
        """
        with self._database.write() as connection:
            for table in (_statements, _subjects, _edges, _state):
                connection.execute(delete(table))
        self._add_from(0, self._log.checkpoint())

    def add(self, first: int, statements: Sequence[Statement], checkpoint: Checkpoint) -> None:
        """Adds what was just appended; `checkpoint` is the log's after it. Idempotent.

        Raises:
            IntegrityError: the index does not end where they begin.
        """
        with self._database.write() as connection:
            row = connection.execute(select(_state.c.size)).scalar_one_or_none() or 0
            if row >= first + len(statements):
                return  # another process indexed them meanwhile
            if row != first:
                raise IntegrityError(f"The lineage index ends at entry {row}, and entry {first} is to be added.")
            _insert(connection, first, statements)
            values = {"origin": checkpoint.origin, "size": first + len(statements), "root": checkpoint.root}
            connection.execute(delete(_state))
            connection.execute(insert(_state).values(id=1, **values))

    def _seen(self) -> Checkpoint | None:
        with self._database.read() as connection:
            row = connection.execute(select(_state.c.origin, _state.c.size, _state.c.root)).one_or_none()
        return Checkpoint(row.origin, row.size, bytes(row.root)) if row else None

    def _check_continues(self, seen: Checkpoint, now: Checkpoint) -> None:
        try:
            if seen.origin != now.origin or seen.size > now.size:
                raise IntegrityError(f"it is {now.origin} with {now.size} entries")
            if seen.size:
                proof = self._log.consistency_proof(seen.size, now.size)
                verify_consistency(seen.size, now.size, proof, seen.root, now.root)
        except IntegrityError as error:
            raise IntegrityError(
                f"The log is not the one that was indexed, {seen.origin} with {seen.size} entries: {error.message}",
                next_step=REBUILD,
            ) from error

    def _add_from(self, size: int, now: Checkpoint) -> None:
        while size < now.size:
            stop = min(now.size, size + _BATCH)
            statements = [_read(entry) for entry in self._log.entries(size, stop)]
            root = now.root if stop == now.size else self._log.root_at(stop)
            self.add(size, statements, Checkpoint(now.origin, stop, root))
            size = stop

    def _indexes(self, query: Any, sha256: str) -> tuple[int, ...]:
        self.catch_up()
        with self._database.read() as connection:
            return tuple(sorted(connection.execute(query, {"start": sha256}).scalars()))


def _insert(connection: Connection, first: int, statements: Sequence[Statement]) -> None:
    numbered = list(enumerate(statements, first))
    rows = [{"log_index": i, "digest": s.digest, "activity": s.activity.value} for i, s in numbered]
    connection.execute(insert(_statements), rows)
    names = {(link.sha256, i): link.name for i, s in numbered for link in s.subjects}
    connection.execute(insert(_subjects), [{"sha256": d, "log_index": i, "name": n} for (d, i), n in names.items()])
    if edges := list(dict.fromkeys(_pairs(numbered))):
        connection.execute(insert(_edges), [{"subject": s, "input": i, "log_index": n} for s, i, n in edges])


def _pairs(numbered: Sequence[tuple[int, Statement]]) -> Iterator[tuple[str, str, int]]:
    for index, statement in numbered:
        for subject in statement.subjects:
            for made_from in statement.inputs:
                yield subject.sha256, made_from.sha256, index


def _read(entry: bytes) -> Statement:
    try:
        return from_payload(open_envelope(entry)[1])
    except CallerError as error:
        raise IntegrityError(f"An entry of the log is no statement. {error.message}") from error
