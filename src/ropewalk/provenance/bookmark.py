"""How far the log was read for its rewards, kept beside it for the next process, signed by the keys of the log.

    bookmark             one line: the envelope of {"origin", "sha256", "size"}; then the bytes of that sha256:
                         {"edge": [hashes of the tree's right edge], "indexes": {run: [entries with its rewards]}}

Whoever can change this file and has no keys cannot sign it. Whoever has them can, and could leave a reward out of it:
so what is verified against an outside checkpoint never comes out of it. It saves time and nothing else: without it, or
where it is not believed, the log is read from its beginning.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ropewalk.core.errors import RopewalkError
from ropewalk.core.merkle import CompactRange
from ropewalk.core.records import Record, canonical_bytes, digest_bytes
from ropewalk.machinery.files import replace_whole
from ropewalk.provenance.checkpoint import Checkpoint
from ropewalk.provenance.log import Log
from ropewalk.security.signatures import Verifier, open_envelope, sign_envelope, verify_envelope

PAYLOAD_TYPE: Final = "application/vnd.ropewalk.log-bookmark+json"


class Bookmark(NamedTuple):
    """What was read of a log."""

    origin: str
    size: int
    edge: tuple[bytes, ...]
    """See `core.merkle.CompactRange`."""
    indexes: dict[str, list[int]]
    """By run, the entries with its rewards, in log order."""


class _Signed(Record):
    origin: str
    size: int
    sha256: str


class _Body(Record):
    edge: tuple[str, ...]
    indexes: dict[str, list[int]]


def save_bookmark(log: Log, bookmark: Bookmark) -> None:
    """Keeps it for the next process. Where nothing can be written or signed nothing is kept: it only saves time."""
    body = msgspec.json.encode(_Body(edge=tuple(each.hex() for each in bookmark.edge), indexes=bookmark.indexes))
    signed = _Signed(origin=bookmark.origin, size=bookmark.size, sha256=digest_bytes(body))
    with contextlib.suppress(RopewalkError, OSError):
        envelope = sign_envelope(canonical_bytes(signed), log.keys.active(), payload_type=PAYLOAD_TYPE)
        replace_whole(_file(log), envelope + b"\n" + body, durable=False)


def load_bookmark(log: Log, now: Checkpoint) -> Bookmark | None:
    """What an earlier process read of this log; None where there is nothing that can be believed.

    Args:
        log: whose keys must have signed it.
        now: its checkpoint; a bookmark of another log, or behind its end, does not count.
    """
    with contextlib.suppress(RopewalkError, OSError, msgspec.DecodeError, ValueError):
        envelope, _, body = _file(log).read_bytes().partition(b"\n")
        # Its size decides which keys may have signed it: a pair that was revoked before there, or rotated, may not.
        size = msgspec.json.decode(open_envelope(envelope, payload_type=PAYLOAD_TYPE)[1], type=_Signed).size
        verified = verify_envelope(envelope, Verifier(log.trust_root()), index=size, payload_type=PAYLOAD_TYPE)
        signed = msgspec.json.decode(verified.payload, type=_Signed)
        if signed.origin == now.origin and 0 < signed.size <= now.size and signed.sha256 == digest_bytes(body):
            read = msgspec.json.decode(body, type=_Body)
            edge = CompactRange(signed.size, [bytes.fromhex(each) for each in read.edge])
            return Bookmark(signed.origin, signed.size, edge.hashes, read.indexes)
    return None


def _file(log: Log) -> Path:
    return log.files.folder / "bookmark"
