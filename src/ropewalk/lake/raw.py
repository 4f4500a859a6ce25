"""The raw zone: bytes that entered once and never change, each with the record of where from and on what terms.

Bytes and records lie in the blob store. Two kinds of pointers lie in the lake's folder, per tenant: from the sha256
of a file, and from a release, to the record's digest. A pointer that was lost costs a look at the index again; one
that was changed is found out, because the record must be about what the pointer says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from packaging.utils import canonicalize_version

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.limits import ARCHIVE_BYTES_MAX, MIB
from ropewalk.core.records import canonical_bytes, decode_own
from ropewalk.lake.files import read_text
from ropewalk.lake.records import RawRecord
from ropewalk.machinery.files import replace_whole
from ropewalk.security.tenants import check_tenant
from ropewalk.store.contract import Blobs

_RECORD_BYTES_MAX = 1 * MIB
_HEX = frozenset("0123456789abcdef")


class RawZone:
    """One tenant's raw files. Safe for any number of threads and processes."""

    def __init__(self, root: Path, blobs: Blobs, *, tenant: str) -> None:
        """
        Args:
            root: the lake's folder.
        """
        self.tenant = check_tenant(tenant)
        self._root = root / "raw" / self.tenant
        self._blobs = blobs

    def add(self, data: bytes, record: RawRecord) -> bool:
        """Stores bytes and record, bytes first; returns whether the bytes are new to this tenant.

        Raises:
            UnavailableError: no room; nothing that points to missing bytes is left behind.
        """
        new = read_text(self._by_content(record.sha256)) is None
        stored = self._blobs.put(data)
        if stored != record.sha256:
            raise IntegrityError(f"{record.name}: wrong sha256. Expected {record.sha256}, got {stored}.")
        digest = self._blobs.put(canonical_bytes(record))
        replace_whole(self._by_content(record.sha256), f"{digest}\n".encode(), parents=True)
        if record.source.startswith("pypi:"):
            replace_whole(self._by_release(record.distribution, record.version), f"{digest}\n".encode(), parents=True)
        return new

    def find(self, sha256: str) -> RawRecord | None:
        """The record of these bytes, None if they never entered.

        Raises:
            IntegrityError: the record or its pointer was changed or lost.
        """
        record = self._pointed(self._by_content(sha256))
        if record is not None and record.sha256 != sha256:
            raise IntegrityError(f"The raw zone's pointer for {sha256} leads to another file, {record.sha256}.")
        return record

    def find_release(self, distribution: str, version: str) -> RawRecord | None:
        """The record of a release that was fetched before."""
        key = canonicalize_version(version)
        record = self._pointed(self._by_release(distribution, version))
        if record is not None and (record.distribution, canonicalize_version(record.version)) != (distribution, key):
            raise IntegrityError(f"The raw zone's pointer for {distribution} {version} leads to {record.source}.")
        return record

    def resolve(self, id: str) -> RawRecord:
        """The record by `raw:…` id or sha256.

        Raises:
            CallerError: neither, or no such file of this tenant.
        """
        prefix = id.removeprefix("raw:")
        if len(prefix) not in (32, 64) or not _HEX.issuperset(prefix):
            raise CallerError(f"{id[:80]!r} is neither the id of a raw file (raw:…) nor a sha256.")
        matches = [name for name in self._contents() if name.startswith(prefix)]
        record = self.find(matches[0]) if len(matches) == 1 else None
        if record is None:
            raise CallerError(f"No raw file {id} of tenant {self.tenant}.", next_step="`ropewalk lake log` lists them.")
        return record

    def records(self) -> Iterator[RawRecord]:
        """All, in order of sha256."""
        for sha256 in sorted(self._contents()):
            if (record := self.find(sha256)) is not None:
                yield record

    def holds(self, record: RawRecord) -> bool:
        """Whether the file's bytes are there, without reading them."""
        return self._blobs.exists(record.sha256)

    def record_digest(self, sha256: str) -> str:
        """Digest of the record of these bytes, for commits.

        Raises:
            IntegrityError: it is gone.
        """
        digest = read_text(self._by_content(sha256))
        if digest is None:
            raise IntegrityError(f"The record of raw file {sha256} is lost.")
        return digest

    def load(self, digest: str) -> RawRecord:
        """A record by its digest.

        Raises:
            IntegrityError: changed or lost.
        """
        data = self._kept(digest, "record", bytes_max=_RECORD_BYTES_MAX)
        return decode_own(data, RawRecord, what=f"raw record {digest}")

    def read(self, record: RawRecord, *, bytes_max: int = ARCHIVE_BYTES_MAX) -> bytes:
        """The file's bytes, verified.

        Raises:
            CallerError: larger than `bytes_max`.
            IntegrityError: changed or lost.
        """
        if record.bytes > bytes_max:
            raise CallerError(f"{record.name} has {record.bytes} bytes, {bytes_max} allowed.")
        return self._kept(record.sha256, f"file {record.name}", bytes_max=bytes_max)

    def open(self, record: RawRecord) -> BinaryIO:
        """A reader that verifies at its end. Raises `IntegrityError` where the file is lost."""
        if not self._blobs.exists(record.sha256):
            raise _lost(f"file {record.name}", record.sha256)
        return self._blobs.open(record.sha256)

    def _kept(self, digest: str, what: str, *, bytes_max: int) -> bytes:
        if len(digest) != 64 or not _HEX.issuperset(digest) or not self._blobs.exists(digest):
            raise _lost(what, digest)
        return self._blobs.get(digest, bytes_max=bytes_max)

    def _pointed(self, pointer: Path) -> RawRecord | None:
        digest = read_text(pointer)
        return None if digest is None else self.load(digest)

    def _contents(self) -> Iterator[str]:
        folder = self._root / "content"
        if folder.is_dir():
            yield from (entry.name for entry in folder.iterdir() if len(entry.name) == 64)

    def _by_content(self, sha256: str) -> Path:
        return self._root / "content" / sha256

    def _by_release(self, distribution: str, version: str) -> Path:
        # 1.0 and 1.0.0 are one version (PEP 440).
        return self._root / "release" / distribution / canonicalize_version(version)


def _lost(what: str, digest: str) -> IntegrityError:
    return IntegrityError(
        f"The raw zone's {what} ({digest[:80]}) is lost: the blob store does not hold it.",
        next_step="restore the blob store from a backup; ingesting the source again brings the bytes back.",
    )
