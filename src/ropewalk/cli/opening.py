"""Opens Ropewalk for a command. The heavy modules load here, when a command really runs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from ropewalk.cli.apps import Place
from ropewalk.core.errors import CallerError
from ropewalk.core.ids import check_id

if TYPE_CHECKING:
    from ropewalk.app.custody import Custody
    from ropewalk.app.machines import Machines
    from ropewalk.app.ropewalk import Ropewalk
    from ropewalk.rollout.journal import RunJournal


PREFIX_MIN = 4
"""Characters behind the colon, from which on the beginning of an id may stand for it."""
_OF_CONTENT = frozenset({"snapshot", "task", "raw", "commit"})
"""Kinds whose ids are digests of what they are; others' tell when they were made."""
_HEX_SAMPLE, _ULID_SAMPLE = "0123…", "01JDY…"
_LISTED_BY = {
    "run": "ropewalk run ls",
    "reward": "ropewalk reward ls",
    "episode": "ropewalk episode ls RUN",
    "sandbox": "ropewalk sandbox ls",
    "snapshot": "ropewalk snapshot ls",
}
"""Where people find the ids."""


class HasId(Protocol):
    """What people name by an id."""

    @property
    def id(self) -> str: ...


@asynccontextmanager
async def opened(place: Place, *, driver: str = "") -> AsyncIterator[Ropewalk]:
    """Ropewalk at that place, until the block ends. `driver` replaces the profile's for sandboxes."""
    from ropewalk.app.ropewalk import Ropewalk

    async with Ropewalk.open(place.profile, state=place.state, driver=driver) as rw:
        yield rw


def machines(place: Place) -> AbstractAsyncContextManager[Machines]:
    """Sandboxes and images alone; nothing is loaded of what vouches for data."""
    from ropewalk.app.machines import open_machines

    return open_machines(place.profile, state=place.state)


def journal(place: Place) -> AbstractContextManager[RunJournal]:
    """The journal of runs alone."""
    from ropewalk.app.journals import open_journal

    return open_journal(place.profile, state=place.state)


def custody(place: Place, *, passphrase: str = "") -> AbstractContextManager[Custody]:
    """Only what vouches for the data: blobs, keys, log. Starts no sandbox driver."""
    from ropewalk.app.custody import Custody

    return Custody.open(place.profile, state=place.state, passphrase=passphrase)


def named(identifier: str, kind: str, among: Callable[[str], Sequence[str]] | None = None) -> str:
    """An id as people type it: with its kind in front or without; with `among`, also its beginning alone.

    Args:
        identifier: what was typed.
        kind: what it must be of.
        among: the known ids that begin so.

    Raises:
        CallerError: it is none, or the id of something else, or may be several.
    """
    identifier = identifier.strip()
    text = identifier if ":" in identifier else f"{kind}:{identifier}"
    try:
        return check_id(text, kind)
    except CallerError:
        found = among(text) if among and re.fullmatch(f"{kind}:[0-9A-Za-z]{{{PREFIX_MIN},}}", text) else ()
        if len(found) == 1:
            return found[0]
        listed = f"; `{_LISTED_BY[kind]}` lists them" if kind in _LISTED_BY else ""
        if found:
            raise CallerError(
                f"Several ids begin with {identifier[:80]!r}: {', '.join(found[:3])}.",
                next_step=f"give more of it{listed}.",
            ) from None
        article = "an" if kind[0] in "aeiou" else "a"
        raise CallerError(
            f"{identifier[:80]!r} is not the id of {article} {kind}.",
            next_step=f"give one like {kind}:{_HEX_SAMPLE if kind in _OF_CONTENT else _ULID_SAMPLE}{listed}.",
        ) from None


def chosen_run(runs: RunJournal, run: str | None) -> str:
    """The id of the run that was named, also by its beginning; by default the newest.

    Raises:
        CallerError: it is none of them, or there is none yet.
    """
    from ropewalk.app.records import newest_run

    return named(run, "run", runs.beginning) if run else newest_run(runs)


def beginning(records: Iterable[HasId], text: str) -> list[str]:
    """The ids among these that begin so."""
    return [record.id for record in records if record.id.startswith(text)]
