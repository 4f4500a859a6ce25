"""Ids for things whose content is not known when they are named: `kind:` and a ULID.

ULID: 48 bits of milliseconds and 80 random bits in Crockford's base 32, so that ids sort by creation time
(https://github.com/ulid/spec). Things whose content is known use `core.records.content_id`.
"""

from __future__ import annotations

import re
import secrets

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID = re.compile(r"[a-z]+:([0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{32})")


def new_id(kind: str, *, clock: Clock | None = None) -> str:
    """A fresh id, e.g. `sandbox:01JDY…`."""
    value = int((clock or SystemClock()).now_s() * 1000) << 80 | secrets.randbits(80)
    return f"{kind}:" + "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def check_id(text: str, kind: str) -> str:
    """The id itself, if it is one of that kind. The part after the colon is safe as a file name.

    Raises:
        CallerError: it is not.
    """
    if not _ID.fullmatch(text) or not text.startswith(f"{kind}:"):
        raise CallerError(f"{text!r} is not the id of a {kind}.", next_step=f"give one that begins with '{kind}:'.")
    return text
