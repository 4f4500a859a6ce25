"""Opens a blob store by URI. What it promises is in `ropewalk.store.contract`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ropewalk.core.errors import CallerError, UnavailableError
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
    if isinstance(place, Path):
        return _load("file")(place)
    scheme, separator, _ = place.partition("://")
    if not separator:
        return _load("file")(Path(place))
    driver = _load(scheme)
    parts = urlsplit(place)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
        raise CallerError(f"{place!r} names no directory of this machine.", next_step="write file:///absolute/path.")
    return driver(Path(path))


def _load(scheme: str) -> Callable[[Path], Blobs]:
    if scheme not in DRIVERS:
        known = ", ".join(f"{name}:// ({line})" for name, (_, _, line) in sorted(DRIVERS.items()))
        raise CallerError(f"No blob driver is called {scheme!r}.", next_step=f"use one of: {known}.")
    target, extra, _ = DRIVERS[scheme]
    module, _, name = target.partition(":")
    try:
        driver: Callable[[Path], Blobs] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("ropewalk"):
            raise
        raise UnavailableError(
            f"The blob driver {scheme!r} needs the module {error.name!r}.",
            next_step=f"pip install 'ropewalk[{extra}]'.",
        ) from error
    return driver
