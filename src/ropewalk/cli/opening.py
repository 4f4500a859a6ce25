"""Opens Ropewalk for a command. The heavy modules load here, when a command really runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from ropewalk.cli.apps import Place
from ropewalk.core.errors import CallerError
from ropewalk.core.ids import check_id

if TYPE_CHECKING:
    from ropewalk.app.custody import Custody
    from ropewalk.app.ropewalk import Ropewalk


_LISTED_BY = {
    "run": "ropewalk run ls",
    "reward": "ropewalk reward ls",
    "episode": "ropewalk episode ls RUN",
    "sandbox": "ropewalk sandbox ls",
    "snapshot": "ropewalk snapshot ls",
}
"""Where people find the ids."""


@asynccontextmanager
async def opened(place: Place, *, driver: str = "") -> AsyncIterator[Ropewalk]:
    """Ropewalk at that place, until the block ends. `driver` replaces the profile's for sandboxes."""
    from ropewalk.app.ropewalk import Ropewalk

    async with Ropewalk.open(place.profile, state=place.state, driver=driver) as rw:
        yield rw


def custody(place: Place, *, passphrase: str = "") -> AbstractContextManager[Custody]:
    """Only what vouches for the data: blobs, keys, log. Starts no sandbox driver."""
    from ropewalk.app.custody import Custody

    return Custody.open(place.profile, state=place.state, passphrase=passphrase)


def named(identifier: str, kind: str) -> str:
    """An id as people type it: with its kind in front or without.

    Raises:
        CallerError: it is none, or the id of something else.
    """
    identifier = identifier.strip()
    try:
        return check_id(identifier if ":" in identifier else f"{kind}:{identifier}", kind)
    except CallerError:
        listed = f"; `{_LISTED_BY[kind]}` lists them" if kind in _LISTED_BY else ""
        raise CallerError(
            f"{identifier[:80]!r} is not the id of a {kind}.", next_step=f"give one like {kind}:01JDY…{listed}."
        ) from None
