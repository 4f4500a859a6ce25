"""The database: migrations by layer, transactions, several processes, damage."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table, event, insert, select, text
from sqlalchemy.exc import IntegrityError as ConstraintError
from sqlalchemy.exc import OperationalError

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.store.database import Database, Migration, Schema

METADATA = MetaData()
ROPES = Table("rope", METADATA, Column("id", Integer, primary_key=True), Column("name", String(20), index=True))
YARNS = Table("yarn", METADATA, Column("id", Integer, primary_key=True), Column("rope", ForeignKey("rope.id")))
FIRST = Migration(1, "ropes", tables=(ROPES,))
SECOND = Migration(2, "yarns", tables=(YARNS,), sql=("INSERT INTO rope (id, name) VALUES (7, 'made')",))


def opened(path: Path, *migrations: Migration) -> Database:
    return Database.open(path, schemas=[Schema("ropes", migrations or (FIRST, SECOND))])


def names(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(select(ROPES.c.name).order_by(ROPES.c.id)).scalars())


def test_migrations_are_applied_once_and_in_order(tmp_path: Path) -> None:
    opened(tmp_path / "a.db", FIRST).close()
    database = opened(tmp_path / "a.db")
    assert names(database) == ["made"]
    database.apply(Schema("ropes", (FIRST, SECOND)))
    assert names(opened(tmp_path / "a.db")) == ["made"]
    with database.read() as connection:
        rows = connection.execute(text("SELECT layer, number FROM ropewalk_migrations ORDER BY number")).all()
    assert [tuple(row) for row in rows] == [("ropes", 1), ("ropes", 2)]


def test_layers_do_not_know_each_other(tmp_path: Path) -> None:
    other = Table("other", MetaData(), Column("id", Integer, primary_key=True))
    database = opened(tmp_path / "a.db")
    database.apply(Schema("another layer", [Migration(1, "other", tables=(other,))]))
    with database.write() as connection:
        connection.execute(insert(other).values(id=1))


def test_a_changed_migration_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a.db").close()
    changed = Migration(2, "yarns", tables=(YARNS,), sql=("INSERT INTO rope (id, name) VALUES (8, 'other')",))
    with pytest.raises(IntegrityError, match="Migration 2 of ropes"):
        opened(tmp_path / "a.db", FIRST, changed)


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a.db").close()
    with pytest.raises(CallerError, match="newer version"):
        opened(tmp_path / "a.db", FIRST)


def test_a_failed_migration_leaves_nothing(tmp_path: Path) -> None:
    broken = Migration(2, "broken", tables=(YARNS,), sql=("INSERT INTO nowhere VALUES (1)",))
    with pytest.raises(OperationalError, match="nowhere"):
        opened(tmp_path / "a.db", FIRST, broken)
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()
    assert names(opened(tmp_path / "a.db")) == ["made"]


def test_gaps_in_numbering_are_refused() -> None:
    with pytest.raises(CallerError, match="without gaps"):
        Schema("ropes", [FIRST, Migration(3, "x")])


def test_two_openings_migrate_once(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            assert names(opened(tmp_path / "a.db")) == ["made"]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_durable_settings_and_private_mode(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        database = opened(tmp_path / "a.db")
    finally:
        os.umask(before)
    with database.read() as connection:
        found = [connection.exec_driver_sql(f"PRAGMA {p}").scalar_one() for p in ("journal_mode", "synchronous")]
        assert found == ["wal", 2]
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    database = opened(tmp_path / "a.db")
    with pytest.raises(RuntimeError), database.write() as connection:
        connection.execute(insert(ROPES).values(id=1, name="lost"))
        raise RuntimeError
    with pytest.raises(ConstraintError), database.write() as connection:
        connection.execute(insert(ROPES).values(id=2, name="lost"))
        connection.execute(insert(YARNS).values(id=1, rope=99))
    with database.read() as connection:
        connection.execute(insert(ROPES).values(id=3, name="not kept"))
    assert names(database) == ["made"]


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    database = opened(tmp_path / "a.db")

    def add() -> None:
        for _ in range(20):
            with database.write() as connection:
                last = connection.execute(text("SELECT MAX(id) FROM rope")).scalar_one()
                connection.execute(insert(ROPES).values(id=last + 1, name="x"))

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(database)) == 61


def test_a_writer_that_waits_too_long_is_told_to_repeat(tmp_path: Path) -> None:
    database = opened(tmp_path / "a.db")

    @event.listens_for(database.engine, "connect")
    def impatient(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA busy_timeout=10")

    database.close()
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="busy") as caught, database.write():
        pass
    assert caught.value.retry_after_s
    holder.close()


@pytest.mark.parametrize("offset", [0, 20, 100])
def test_damage_is_told_apart(tmp_path: Path, offset: int) -> None:
    opened(tmp_path / "a.db").close()
    path = tmp_path / "a.db"
    data = bytearray(path.read_bytes())
    data[offset : offset + 40] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="damaged"):
        names(opened(path))


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    database = opened(tmp_path / "a.db")
    with database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    with pytest.raises(UnavailableError, match="full"), database.write() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        for i in range(100, 2000):
            connection.execute(insert(ROPES).values(id=i, name="x" * 20))
    assert names(database) == ["made"]


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        Database.open(tmp_path / "absent" / "a.db")
    with pytest.raises(CallerError):
        Database.open("nonsense://x")


def test_postgresql_by_url() -> None:
    url = os.environ.get("ROPEWALK_TEST_POSTGRESQL")
    if not url:
        pytest.skip("no PostgreSQL to test with (set ROPEWALK_TEST_POSTGRESQL to a URL)")
    database = Database.open(url, schemas=[Schema("ropes", (FIRST, SECOND))])
    with database.write() as connection:
        assert connection.execute(select(ROPES.c.name)).scalars().all() == ["made"]
        METADATA.drop_all(connection)
        connection.execute(text("DELETE FROM ropewalk_migrations WHERE layer = 'ropes'"))
    database.close()


def test_what_was_written_survives_kill_9(tmp_path: Path) -> None:
    opened(tmp_path / "a.db").close()
    program = (
        "import sys; from sqlalchemy import text; from ropewalk.store.database import Database\n"
        "database = Database.open(sys.argv[1]); n = 100\n"
        "while True:\n"
        "    with database.write() as c: c.execute(text(f\"INSERT INTO rope VALUES ({n}, 'x')\"))\n"
        "    print(n, flush=True); n += 1\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "a.db")], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        acknowledged = [int(child.stdout.readline()) for _ in range(30)]
        child.kill()
        acknowledged += [int(line) for line in child.stdout.read().splitlines()]
    assert set(acknowledged) <= set(range(100, 100 + len(names(opened(tmp_path / "a.db"))) - 1))


def test_tables_without_a_record_of_how_they_came_are_damage(tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path / "db")) as database, database.write() as connection:
        connection.execute(text("DELETE FROM ropewalk_migrations"))
    with pytest.raises(IntegrityError, match="no record of how they came"):
        opened(tmp_path / "db")
