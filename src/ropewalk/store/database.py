"""The database: SQLite in one file, PostgreSQL by URL, through SQLAlchemy Core; migrations belong to the layers.

A layer describes its tables as a `Schema` and gives it to `Database.open`; the store knows none of them. SQLite
runs in WAL mode with `synchronous=FULL`: what `write` returned from survives power loss. Importing this module
costs a quarter of a second (SQLAlchemy): the command line imports it only where a command needs it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.schema import CreateIndex, CreateTable

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError, IntegrityError, RopewalkError, UnavailableError
from ropewalk.core.records import digest

BUSY_TIMEOUT_S: Final = 30.0
"""How long a writer waits for another one before it gives up."""

_WRITE: Final = "ropewalk_write"
_MIGRATION_LOCK: Final = 0x526F7065
_metadata: Final = MetaData()
_migrations: Final = Table(
    "ropewalk_migrations",
    _metadata,
    Column("layer", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("applied_s", Float, nullable=False),
)


class Migration:
    """One step of a layer's schema; never edited once released, only followed by another.

    Args:
        number: from 1, without gaps.
        description: for people.
        tables: made as they are described, with their indexes.
        sql: run after that, as it is written here.
    """

    def __init__(self, number: int, description: str, *, tables: Sequence[Table] = (), sql: Sequence[str] = ()) -> None:
        self.number, self.description = number, description
        self.tables, self.sql = tuple(tables), tuple(sql)

    def statements(self) -> tuple[Any, ...]:
        """What to execute, in order."""
        made: list[Any] = []
        for table in self.tables:
            made.append(CreateTable(table))
            made.extend(CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name)))
        return (*made, *(text(line) for line in self.sql))

    @property
    def digest(self) -> str:
        """sha256 of what it does, in SQLAlchemy's default dialect: the same for every database."""
        return digest([str(statement) for statement in self.statements()])


class Schema:
    """A layer's part of the database.

    Raises:
        CallerError: its migrations are not numbered 1, 2, 3 …
    """

    def __init__(self, layer: str, migrations: Sequence[Migration]) -> None:
        self.layer, self.migrations = layer, tuple(migrations)
        if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
            raise CallerError(f"The migrations of {layer} are not numbered from 1 without gaps.")


class Database:
    """An open database whose schemas are up to date. Thread-safe; several processes may have it open.

    Attributes:
        engine: SQLAlchemy's, for what `read` and `write` do not do.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._applied: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, location: Path | str, *, schemas: Sequence[Schema] = (), clock: Clock | None = None) -> Database:
        """Opens or makes a database and applies the migrations that it lacks.

        Args:
            location: a SQLite file, or a URL such as `postgresql+psycopg://…`.
            schemas: of the layers that will use it.
            clock: for the times of migrations.

        Raises:
            CallerError: not a URL of a known kind; a migration newer than this version of Ropewalk.
            UnavailableError: it cannot be reached or written, or its Python driver is not installed.
            IntegrityError: damaged, or a migration that was applied is not the one described here.
        """
        url = str(location)
        engine = _sqlite(Path(location)) if "://" not in url else _by_url(url)
        database = cls(engine)
        try:
            database.apply(*schemas, clock=clock)
        except BaseException:
            engine.dispose()
            raise
        return database

    def apply(self, *schemas: Schema, clock: Clock | None = None) -> None:
        """Brings the database up to the given schemas; idempotent. All of it or nothing is applied."""
        with self._lock:
            wanted = [schema for schema in schemas if schema.layer not in self._applied]
            if not wanted:
                return
            with self.write() as connection:
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                connection.execute(CreateTable(_migrations, if_not_exists=True))
                for schema in wanted:
                    _migrate(connection, schema, (clock or SystemClock()).now_s())
            self._applied.update(schema.layer for schema in wanted)

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection whose queries see one state of the database. Nothing written in it is kept.

        Raises:
            UnavailableError, IntegrityError: as `write`.
        """
        with _translated(), self.engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed, durably, when the block ends, and undone when it raises.

        SQLite has one writer at a time: the others wait up to BUSY_TIMEOUT_S.

        Raises:
            UnavailableError: another writer held it too long, or the disk is full or read-only.
            IntegrityError: the file is damaged. (A broken constraint raises SQLAlchemy's own `IntegrityError`.)
        """
        with _translated(), self.engine.connect() as raw:
            connection = raw.execution_options(**{_WRITE: True})
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Closes all connections."""
        self.engine.dispose()


def _migrate(connection: Connection, schema: Schema, now_s: float) -> None:
    rows = connection.execute(
        select(_migrations.c.number, _migrations.c.digest)
        .where(_migrations.c.layer == schema.layer)
        .order_by(_migrations.c.number)
    ).all()
    if len(rows) > len(schema.migrations):
        raise CallerError(
            f"The database holds migration {len(rows)} of {schema.layer}; this version knows {len(schema.migrations)}.",
            next_step="use the newer version of Ropewalk that wrote it.",
        )
    for row, migration in zip(rows, schema.migrations, strict=False):
        if (row.number, row.digest) != (migration.number, migration.digest):
            raise IntegrityError(f"Migration {migration.number} of {schema.layer} is not the one that was applied.")
    for migration in schema.migrations[len(rows) :]:
        for statement in migration.statements():
            try:
                connection.execute(statement)
            except OperationalError as error:
                if "already exists" not in str(error.orig):
                    raise
                raise IntegrityError(
                    f"The database has tables of {schema.layer} and no record of how they came: {error.orig}.",
                    next_step="restore it: ropewalk_migrations was changed.",
                ) from error
        values = {"layer": schema.layer, "number": migration.number, "digest": migration.digest, "applied_s": now_s}
        connection.execute(insert(_migrations).values(values))


def _by_url(url: str) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=True)
    except NoSuchModuleError as error:
        raise CallerError(
            f"No database of that kind: {error}.", next_step="use a path or postgresql+psycopg://…"
        ) from None
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"The database driver {error.name} is not installed.", next_step=f"`pip install {error.name}`."
        ) from error


def _sqlite(path: Path) -> Engine:
    try:
        # Made here, and not by SQLite, so that its mode does not depend on the umask.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise UnavailableError(
            f"The database {path} cannot be opened: {error.strerror or error}.",
            next_step="free some space, or set ROPEWALK_STATE to a folder you may write to.",
        ) from error
    engine = create_engine(
        f"sqlite:///{path.absolute()}", connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the module's own implicit transactions would leave DDL outside of them
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that reads first cannot wait for another writer: SQLite then fails at once.
        kind = "IMMEDIATE" if connection.get_execution_options().get(_WRITE) else "DEFERRED"
        connection.exec_driver_sql(f"BEGIN {kind}")

    return engine


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RopewalkError:
        raise
    except DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        detail = f"{error.orig}"
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise IntegrityError(f"The database is damaged: {detail}.", next_step="restore or rebuild it.") from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise UnavailableError(f"The database is busy: {detail}.", retry_after_s=1.0) from error
        waits = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
        if code in waits or (code == 0 and isinstance(error, OperationalError)):
            raise UnavailableError(
                f"The database cannot be used: {detail}.", next_step="make room or make it writable, then repeat."
            ) from error
        raise
