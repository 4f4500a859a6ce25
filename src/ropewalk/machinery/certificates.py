"""Certificates of who may vouch for a server: parsed once in a process, since each time takes some 45 ms of CPU."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def shared(load: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """What `load` gave when it was first called under these variables of the environment. For any number of clients
    and threads, none of which may change it.

    Args:
        load: the HTTP library's default; it may look at SSL_CERT_FILE and SSL_CERT_DIR.

    Raises:
        OSError: as `load` does, each time.
    """
    return _loaded(load, *map(os.environ.get, _VARIABLES))


@lru_cache(maxsize=8)
def _loaded(load: Callable[[], ssl.SSLContext], *_environment: str | None) -> ssl.SSLContext:
    return load()
