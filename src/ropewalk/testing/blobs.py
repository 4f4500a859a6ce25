"""What every blob driver must keep, as tests to inherit:

    class TestMine(BlobsConformance):
        @pytest.fixture
        def blobs(self, tmp_path): return MyBlobs(tmp_path)

Collected by pytest. Whoever can damage stored bytes also overrides `damage`; otherwise those tests are skipped.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.limits import MIB
from ropewalk.store.contract import Blobs

_ABSENT = "0" * 64
_SIZES = (0, 1, 255, 64 * 1024, 1 * MIB, 1 * MIB + 1)


class BlobsConformance:
    """Inherit, and give a fixture `blobs`: an empty store, ready for use."""

    def damage(self, blobs: Blobs, digest: str, stored: bytes) -> None:
        """Replaces the stored bytes behind the driver's back."""
        pytest.skip("this driver's stored bytes cannot be damaged from here")

    @pytest.mark.parametrize("size", _SIZES)
    def test_what_is_put_is_got(self, blobs: Blobs, size: int) -> None:
        data = os.urandom(size)
        digest = blobs.put(data)
        assert digest == hashlib.sha256(data).hexdigest()
        assert blobs.get(digest, bytes_max=size) == data
        assert blobs.size(digest) == size
        assert blobs.exists(digest)

    def test_put_is_idempotent(self, blobs: Blobs) -> None:
        assert blobs.put(b"once") == blobs.put(b"once")
        assert blobs.get(blobs.put(b"once"), bytes_max=4) == b"once"

    def test_put_many_equals_put(self, blobs: Blobs) -> None:
        items = [b"a", b"b", b"a", b"", *(f"item {i}".encode() for i in range(300))]
        assert blobs.put_many(iter(items)) == tuple(hashlib.sha256(item).hexdigest() for item in items)
        assert all(blobs.get(blobs.put(item), bytes_max=100) == item for item in items[:10])
        assert blobs.put_many(()) == ()

    @pytest.mark.parametrize("size", _SIZES)
    def test_put_file_equals_put(self, blobs: Blobs, tmp_path: Path, size: int) -> None:
        path = tmp_path / "source"
        path.write_bytes(os.urandom(size))
        digest = blobs.put_file(path)
        assert blobs.get(digest, bytes_max=size) == path.read_bytes()
        assert blobs.put_file(path) == digest

    def test_put_file_takes_regular_files_alone(self, blobs: Blobs, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path / "absent", tmp_path, tmp_path / "fifo"):
            with pytest.raises(CallerError):
                blobs.put_file(path)

    def test_what_is_absent_is_the_callers_error(self, blobs: Blobs) -> None:
        assert not blobs.exists(_ABSENT)
        for call in (lambda: blobs.get(_ABSENT, bytes_max=1), lambda: blobs.size(_ABSENT), lambda: blobs.open(_ABSENT)):
            with pytest.raises(CallerError, match=_ABSENT):
                call()

    @pytest.mark.parametrize(
        "text", ["", "abc", "../../etc/passwd", "A" * 64, "0" * 63 + "/", "0" * 65, "0" * 63 + "\n"]
    )
    def test_what_is_no_digest_is_the_callers_error(self, blobs: Blobs, text: str) -> None:
        for call in (
            lambda: blobs.get(text, bytes_max=1), lambda: blobs.size(text),
            lambda: blobs.open(text), lambda: blobs.exists(text),
        ):  # fmt: skip
            with pytest.raises(CallerError):
                call()

    def test_the_bound_of_get_holds(self, blobs: Blobs) -> None:
        digest = blobs.put(b"12345")
        with pytest.raises(CallerError, match="5 bytes"):
            blobs.get(digest, bytes_max=4)

    @pytest.mark.parametrize("size", _SIZES)
    def test_open_reads_all(self, blobs: Blobs, size: int) -> None:
        data = os.urandom(size)
        with blobs.open(blobs.put(data)) as reader:
            assert b"".join(iter(lambda: reader.read(10_000), b"")) == data

    @pytest.mark.parametrize("change", ["flip", "cut", "grow", "empty"])
    def test_damage_is_found_by_every_reader_and_writer(self, blobs: Blobs, change: str) -> None:
        data = os.urandom(3 * MIB)
        digest = blobs.put(data)
        flipped = bytearray(data)
        flipped[-1] ^= 1
        changed = {"flip": bytes(flipped), "cut": data[:-1], "grow": data + b"\0", "empty": b""}[change]
        self.damage(blobs, digest, changed)
        with pytest.raises(IntegrityError, match=digest):
            blobs.get(digest, bytes_max=4 * MIB)
        with pytest.raises(IntegrityError, match=digest), blobs.open(digest) as reader:
            while reader.read(100_000):
                pass
        # A damaged blob must not pass for stored either.
        with pytest.raises(IntegrityError, match=digest):
            blobs.put(data)

    def test_threads_may_put_and_get_at_once(self, blobs: Blobs) -> None:
        items = [os.urandom(20_000) for _ in range(8)] * 4

        def both(data: bytes) -> bool:
            return blobs.get(blobs.put(data), bytes_max=len(data)) == data

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert all(pool.map(both, items))
