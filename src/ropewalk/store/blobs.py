"""Opens a blob store by URI. What it promises is in `ropewalk.store.contract`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ropewalk.core.errors import CallerError
from ropewalk.machinery.drivers import load
from ropewalk.store.contract import Blobs
from ropewalk.store.drivers import DRIVERS


def open_blobs(place: str | Path) -> Blobs:
    """A blob store that is ready for use.

    Args:
        place: a directory (made if absent), or a URI: `file:///absolute/path`.

    Raises:
        CallerError: an unknown scheme, or a URI that names no absolute path or names a host.
        UnavailableError: the driver's dependency is missing, or the place cannot be made.
    """
    scheme = place.partition("://")[0] if isinstance(place, str) and "://" in place else "file"
    driver: Callable[[Path], Blobs] = load("blob", DRIVERS, scheme)
    if isinstance(place, Path) or "://" not in place:
        return driver(Path(place))
    parts = urlsplit(place)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
        raise CallerError(f"{place!r} names no directory of this machine.", next_step="write file:///absolute/path.")
    return driver(Path(path))
