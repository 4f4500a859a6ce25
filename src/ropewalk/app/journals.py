"""The journal of all runs, without what vouches for them: for commands that list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.app.ground import open_ground
from ropewalk.rollout.journal import RunJournal
from ropewalk.store.database import Database


@contextmanager
def open_journal(profile: str | None = None, *, state: Path | None = None) -> Iterator[RunJournal]:
    """Opens the journal, until the block ends.

    Args:
        profile, state: as of `open_ground`.

    Raises:
        CallerError: no such profile.
        UnavailableError: the state directory or the database cannot be used.
    """
    layout = open_ground(profile, state=state).layout
    database = Database.open(layout.database)
    try:
        yield RunJournal(database, locks=layout.runs)
    finally:
        database.close()
