"""Blobs as read-only files in a directory: `objects/<first two characters>/<digest>`.

A blob becomes visible by a rename, after its bytes reached the disk: whoever sees a file sees all of it, at any
instant a writer may die. Files being written lie in `incoming/` under a lock (`flock`) that dies with their writer;
those that nobody holds are removed when a store is opened.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.limits import MIB
from ropewalk.core.records import digest_bytes

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES: Final = 1 * MIB
_BATCH_ITEMS: Final = 128
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DirectoryBlobs:
    """See the module's text. Any number of processes and threads may use one directory at once."""

    def __init__(self, root: Path) -> None:
        """Opens the store, makes it if absent, and removes what dead writers left.

        Raises:
            UnavailableError: the directory cannot be made. (A read-only one can be read.)
        """
        self.root = root.absolute()
        self._objects = self.root / "objects"
        self._incoming = self.root / "incoming"
        try:
            for folder in (self._objects, self._incoming):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise self._unavailable(error) from error
        self._sweep()

    def put(self, data: bytes) -> str:
        """See `Blobs.put`."""
        return self.put_many((data,))[0]

    def put_many(self, items: Iterable[bytes]) -> tuple[str, ...]:
        """See `Blobs.put_many`: the disk is waited for once a batch, not once an item."""
        digests = []
        remaining = iter(items)
        while batch := list(itertools.islice(remaining, _BATCH_ITEMS)):
            digests += [digest_bytes(data) for data in batch]
            self._put_batch(dict(zip(digests[-len(batch) :], batch, strict=True)))
        return tuple(digests)

    def _put_batch(self, batch: dict[str, bytes]) -> None:
        with self._storing(), contextlib.ExitStack() as stack:
            writing = []
            for digest, data in batch.items():
                if not self._has(digest):
                    file, path = stack.enter_context(self._temporary())
                    file.write(data)
                    file.flush()
                    writing.append((file, path, digest))
            # All are written before the first flush: one commit of the file system's journal serves them all.
            for file, _, _ in writing:
                _seal(file)
            for _, path, digest in writing:
                self._publish(path, digest)
            self._flush(batch)

    def put_file(self, path: Path) -> str:
        """See `Blobs.put_file`."""
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise CallerError(f"{path} cannot be stored: {error.strerror}.") from error
        if not _is_regular(source):
            os.close(source)
            raise CallerError(f"{path} cannot be stored: it is not a regular file.")
        with os.fdopen(source, "rb") as reader, self._storing(), self._temporary() as (file, temporary):
            state = hashlib.sha256()
            while chunk := reader.read(_CHUNK_BYTES):
                state.update(chunk)
                file.write(chunk)
            digest = state.hexdigest()
            if not self._has(digest):
                file.flush()
                _seal(file)
                self._publish(temporary, digest)
            self._flush((digest,))
        return digest

    def get(self, digest: str, *, bytes_max: int) -> bytes:
        """See `Blobs.get`."""
        with self._reader(digest) as file:
            size = os.fstat(file.fileno()).st_size
            if size > bytes_max:
                raise CallerError(f"Blob {digest} has {size} bytes, {bytes_max} allowed.")
            data = file.read(bytes_max + 1)
        if digest_bytes(data) != digest:
            raise self._damaged(digest)
        return data

    def open(self, digest: str) -> BinaryIO:
        """See `Blobs.open`."""
        return io.BufferedReader(_VerifyingReader(self._reader(digest), digest, self._path(digest)), _CHUNK_BYTES)

    def exists(self, digest: str) -> bool:
        """See `Blobs.exists`."""
        return self._path(digest).exists()

    def size(self, digest: str) -> int:
        """See `Blobs.size`."""
        with self._reader(digest) as file:
            return os.fstat(file.fileno()).st_size

    def digests(self) -> Iterator[str]:
        """All that is stored, in order of digest, for whoever verifies a whole store."""
        for folder in sorted(self._objects.iterdir()):
            yield from sorted(entry.name for entry in folder.iterdir() if _DIGEST.fullmatch(entry.name))

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise CallerError(f"{digest[:80]!r} is not a sha256 digest (64 lower-case hexadecimal characters).")
        return self._objects / digest[:2] / digest

    def _reader(self, digest: str) -> io.FileIO:
        path = self._path(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise CallerError(f"No blob {digest} in {self.root}.") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._damaged(digest) from error
            raise self._unavailable(error) from error
        if not _is_regular(descriptor):
            os.close(descriptor)
            raise self._damaged(digest)
        return io.FileIO(descriptor)

    def _has(self, digest: str) -> bool:
        """Whether the blob is there and whole: a damaged one must not pass for stored."""
        if not self._path(digest).exists():
            return False
        with self.open(digest) as file:
            while file.read(_CHUNK_BYTES):
                pass
        return True

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[BinaryIO, Path]]:
        while True:
            path = self._incoming / secrets.token_hex(16)
            file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
            fcntl.flock(file, fcntl.LOCK_EX)
            # Another process that opens the store may have taken the file for a dead writer's just before the lock.
            if os.fstat(file.fileno()).st_nlink:
                break
            file.close()
        try:
            yield file, path
        finally:
            path.unlink(missing_ok=True)
            # Closing flushes what is buffered, which fails again where writing failed.
            with contextlib.suppress(OSError):
                file.close()

    def _publish(self, temporary: Path, digest: str) -> None:
        target = self._path(digest)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        temporary.rename(target)

    def _flush(self, digests: Iterable[str]) -> None:
        """Makes their names durable, also of those that were there: another writer may not have come so far."""
        for folder in {self._objects, *(self._path(digest).parent for digest in digests)}:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _sweep(self) -> None:
        """Removes files whose writer is gone; those of living ones are locked."""
        for path in self._incoming.iterdir():
            # Gone meanwhile, another's file, or a read-only place: none of them hinders a reader.
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(descriptor)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> UnavailableError:
        if error.errno in _FULL:
            return UnavailableError(
                f"No room to store a blob in {self.root}: {error.strerror}. Nothing partial was kept.",
                next_step="free some space or choose another state directory (ROPEWALK_STATE).",
            )
        return UnavailableError(
            f"The blob store {self.root} cannot be used: {error.strerror or error}.",
            next_step="choose a directory you may read and write (ROPEWALK_STATE).",
        )

    def _damaged(self, digest: str) -> IntegrityError:
        return _damaged(digest, self._path(digest))


class _VerifyingReader(io.RawIOBase):
    """Passes a file on and compares its digest before it hands out the last bytes."""

    def __init__(self, file: io.FileIO, digest: str, path: Path) -> None:
        super().__init__()
        self._file = file
        self._digest = digest
        self._path = path
        self._state = hashlib.sha256()
        self._left = os.fstat(file.fileno()).st_size
        if self._left == 0:
            self._verify()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._file.readinto(buffer) or 0
        self._state.update(memoryview(buffer)[:count])
        self._left -= count
        if self._left <= 0 or count == 0:
            self._verify()
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _verify(self) -> None:
        if self._state.hexdigest() != self._digest:
            self._file.close()
            raise _damaged(self._digest, self._path)


def _damaged(digest: str, path: Path) -> IntegrityError:
    return IntegrityError(
        f"Blob {digest} is damaged: the bytes in {path} do not have that digest.",
        next_step="restore the file from a backup, or remove it and store its source again.",
    )


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _seal(file: BinaryIO) -> None:
    os.fchmod(file.fileno(), 0o444)
    os.fsync(file.fileno())
