"""What a blob driver must do: immutable bytes under the sha256 of their content."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol


class Blobs(Protocol):
    """Synchronous and thread-safe; asynchronous callers use a thread.

    Every method that takes a digest raises `CallerError` where it is not 64 lower-case hexadecimal characters.
    Every method that stores raises `UnavailableError` where the place is full, read-only or not answering; nothing
    partial is visible then, and `IntegrityError` where other bytes are already stored under that digest.
    """

    def put(self, data: bytes) -> str:
        """Stores bytes durably (survives power loss once it returned) and returns their digest. Idempotent."""
        ...

    def put_many(self, items: Iterable[bytes]) -> tuple[str, ...]:
        """Like `put` for many small items, with fewer waits for the disk. Returns their digests, in order.

        After an error some of the items may be stored (whole), others not.
        """
        ...

    def put_file(self, path: Path) -> str:
        """Like `put`, streaming from a file.

        Raises:
            CallerError: no such file, or it is not a regular one.
        """
        ...

    def get(self, digest: str, *, bytes_max: int) -> bytes:
        """The bytes, verified against the digest.

        Raises:
            CallerError: no such blob, or it is larger than `bytes_max`.
            IntegrityError: the stored bytes do not have this digest.
        """
        ...

    def open(self, digest: str) -> BinaryIO:
        """A forward-only reader; whoever reads to the end gets an IntegrityError there, in place of the last
        bytes, if the digest does not match.

        Raises:
            CallerError: no such blob.
        """
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
