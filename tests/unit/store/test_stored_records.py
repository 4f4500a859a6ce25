"""Records kept as blobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.limits import JSON_BYTES_MAX
from ropewalk.core.records import Record, canonical_bytes
from ropewalk.store.blobs import open_blobs
from ropewalk.store.records import read_record


class Thing(Record):
    name: str


def test_a_record_comes_back_and_nothing_else_passes_for_one(tmp_path: Path) -> None:
    blobs = open_blobs(tmp_path)
    digest = blobs.put(canonical_bytes(Thing(name="x")))
    assert read_record(blobs, digest, Thing) == Thing(name="x")
    for data in (b"{}", b"no json", b'{"name": "x", "more": 1}', b'{"name": 1}'):
        with pytest.raises(IntegrityError, match="the thing"):
            read_record(blobs, blobs.put(data), Thing, what="the thing")
    with pytest.raises(CallerError):
        read_record(blobs, "0" * 64, Thing)
    with pytest.raises(CallerError):
        read_record(blobs, blobs.put(b" " * (JSON_BYTES_MAX + 1)), Thing)
