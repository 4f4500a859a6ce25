"""Every blob driver keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.store.blobs import open_blobs
from ropewalk.store.contract import Blobs
from ropewalk.testing.blobs import BlobsConformance


class TestDirectory(BlobsConformance):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return open_blobs((tmp_path / "blobs").as_uri())

    def damage(self, blobs: Blobs, digest: str, stored: bytes) -> None:
        (path,) = blobs.root.rglob(digest)  # type: ignore[attr-defined]
        path.chmod(0o600)
        path.write_bytes(stored)
