"""Records that Ropewalk keeps as blobs."""

from __future__ import annotations

from typing import TypeVar

from ropewalk.core.limits import JSON_BYTES_MAX
from ropewalk.core.records import Record, decode_own
from ropewalk.store.contract import Blobs

R = TypeVar("R", bound=Record)


def read_record(blobs: Blobs, digest: str, kind: type[R], *, what: str = "") -> R:
    """A record by the digest of its canonical bytes.

    Args:
        what: names it in messages; by default the kind does.

    Raises:
        CallerError: no such blob, or it is larger than `JSON_BYTES_MAX`.
        IntegrityError: it is damaged, or no such record.
    """
    return decode_own(blobs.get(digest, bytes_max=JSON_BYTES_MAX), kind, what=what)
