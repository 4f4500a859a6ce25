"""What a blob driver must do: immutable bytes under the sha256 of their content."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Protocol


class Blobs(Protocol):
    """Synchronous and thread-safe; asynchronous callers use a thread."""

    def put(self, data: bytes) -> str:
        """Stores bytes durably (survives power loss once it returned) and returns their digest. Idempotent."""
        ...

    def put_file(self, path: Path) -> str:
        """Like `put`, streaming from a file."""
        ...

    def get(self, digest: str, *, bytes_max: int) -> bytes:
        """The bytes, verified against the digest.

        Raises:
            CallerError: no such blob, or it is larger than `bytes_max`.
            IntegrityError: the stored bytes do not have this digest.
        """
        ...

    def open(self, digest: str) -> BinaryIO:
        """A reader; whoever reads to the end gets an IntegrityError there if the digest does not match."""
        ...

    def exists(self, digest: str) -> bool:
        """Whether it is stored, without reading it."""
        ...

    def size(self, digest: str) -> int:
        """In bytes.

        Raises:
            CallerError: no such blob.
        """
        ...
