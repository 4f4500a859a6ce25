"""Opens Ropewalk for a command. The heavy modules load here, when a command really runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from ropewalk.cli.apps import Place
from ropewalk.core.errors import CallerError

if TYPE_CHECKING:
    from ropewalk.app.custody import Custody
    from ropewalk.app.ropewalk import Ropewalk


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
        CallerError: it is empty, or the id of something else.
    """
    identifier = identifier.strip()
    before, separator, rest = identifier.partition(":")
    if not identifier or (separator and (before != kind or not rest)):
        raise CallerError(f"{identifier!r} is not the id of a {kind}.", next_step=f"give one like {kind}:01JDY….")
    return identifier if separator else f"{kind}:{identifier}"
