"""Bytes on their way, each a reader of the one before: measured, hashed, unpacked, read ahead. One pass, bounded."""

from __future__ import annotations

import hashlib
import queue
import sys
import threading
import zlib
from types import TracebackType
from typing import Any, Final, Protocol

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, IntegrityError

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

CHUNK_BYTES: Final = 1024 * 1024
_ZSTD_WINDOW_LOG_MAX: Final = 27
"""128 MiB: what `zstd` itself takes without being told (its own default limit for decoding)."""
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = tuple(bytes((low, 0x2A, 0x4D, 0x18)) for low in range(0x50, 0x60))
_ZLIB_WINDOW: Final = 31
"""zlib's way to say: gzip."""


class ByteSource(Protocol):
    """Gives bytes once."""

    def read(self, size: int, /) -> bytes:
        """At least one byte and at most `size`; none at the end."""
        ...


class Hashed:
    """Counts and hashes what passes."""

    def __init__(self, source: ByteSource, *, what: str, bytes_max: int) -> None:
        self._source = source
        self._what = what
        self._bytes_max = bytes_max
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def read(self, size: int, /) -> bytes:
        """See `ByteSource`.

        Raises:
            CallerError: more than `bytes_max` came.
        """
        data = self._source.read(size)
        self.bytes += len(data)
        if self.bytes > self._bytes_max:
            raise CallerError(f"{self._what} has more than the {self._bytes_max} bytes allowed.")
        self._sha256.update(data)
        return data

    @property
    def digest(self) -> str:
        """Of what passed."""
        return f"sha256:{self._sha256.hexdigest()}"

    def drain(self) -> None:
        """Reads what is left."""
        while self.read(CHUNK_BYTES):
            pass

    def check(self, digest: str, size: int | None = None) -> None:
        """Reads what is left, and returns if all of it is what its digest says.

        Raises:
            IntegrityError: it is not.
        """
        self.drain()
        if self.digest != digest or size not in (None, self.bytes):
            raise IntegrityError(
                f"{self._what} is not what its digest says: expected {digest}"
                f"{'' if size is None else f' of {size} bytes'}, got {self.digest} ({self.bytes} bytes).",
                next_step="nothing was stored; do not use that registry or archive before its owner has explained it.",
            )


def unpacked(source: ByteSource, what: str) -> ByteSource:
    """What a gzip or zstd stream holds; another one as it is. Told by its first bytes, whatever it was called."""
    start = b""
    while len(start) < 4 and (data := source.read(CHUNK_BYTES)):
        start += data
    whole = _Again(start, source)
    if start.startswith(_GZIP):
        return _Gzip(whole, what)
    if start.startswith((_ZSTD, *_ZSTD_SKIPPABLE)):
        return _Zstd(whole, what)
    return whole


class _Again:
    """A source whose first bytes were read already."""

    def __init__(self, start: bytes, source: ByteSource) -> None:
        self._start = start
        self._source = source

    def read(self, size: int, /) -> bytes:
        """See `ByteSource`."""
        if self._start:
            data, self._start = self._start[:size], self._start[size:]
            return data
        return self._source.read(size)


class _Gzip:
    """RFC 1952: one member after another."""

    def __init__(self, source: ByteSource, what: str) -> None:
        self._source = source
        self._what = what
        self._inflate = zlib.decompressobj(_ZLIB_WINDOW)
        self._packed = b""
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """See `ByteSource`.

        Raises:
            CallerError: damaged, or cut off.
        """
        try:
            while True:
                self._packed = self._packed or self._source.read(CHUNK_BYTES)
                if not self._packed:
                    if not self._ended:
                        raise CallerError(f"{self._what} is cut off: its gzip stream has no end.")
                    return b""
                if self._ended:
                    if not self._packed.startswith(_GZIP[:1]):
                        self._packed = b""  # padding, which gzip(1) ignores, too
                        continue
                    self._inflate, self._ended = zlib.decompressobj(_ZLIB_WINDOW), False
                data = self._inflate.decompress(self._packed, size)
                self._packed = self._inflate.unconsumed_tail or self._inflate.unused_data
                self._ended = self._inflate.eof
                if data:
                    return data
        except zlib.error as error:
            raise CallerError(f"{self._what} is damaged: {error}.") from error


class _Zstd:
    """RFC 8878: one frame after another."""

    def __init__(self, source: ByteSource, what: str) -> None:
        self._source = source
        self._what = what
        self._frame = self._fresh()
        self._packed = b""
        self._started = False

    def read(self, size: int, /) -> bytes:
        """See `ByteSource`.

        Raises:
            CallerError: damaged, cut off, or packed with a larger window than 128 MiB.
        """
        try:
            while True:
                if self._frame.eof:
                    self._packed, self._frame, self._started = self._frame.unused_data, self._fresh(), False
                if self._frame.needs_input and not self._packed:
                    self._packed = self._source.read(CHUNK_BYTES)
                    if not self._packed:
                        if self._started:
                            raise CallerError(f"{self._what} is cut off: its zstd frame has no end.")
                        return b""
                packed, self._packed = self._packed, b""
                self._started = True
                if data := self._frame.decompress(packed, size):
                    return bytes(data)
        except zstd.ZstdError as error:
            raise CallerError(f"{self._what} is damaged: {error}.") from error

    @staticmethod
    def _fresh() -> Any:
        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX})


class Ahead:
    """Reads a source in a thread of its own, some chunks ahead, so that unpacking and writing go side by side."""

    def __init__(self, source: ByteSource, *, chunks: int = 4) -> None:
        self._source = source
        self._chunks: queue.Queue[bytes | BaseException] = queue.Queue(maxsize=chunks)
        self._rest = b""
        self._ended = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ropewalk-read-ahead", daemon=True)

    def __enter__(self) -> Ahead:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        while self._thread.is_alive():
            while not self._chunks.empty():
                self._chunks.get_nowait()
            self._thread.join(0.01)

    def read(self, size: int, /) -> bytes:
        """See `ByteSource`; whatever the source raises comes out here."""
        if not self._rest and not self._ended:
            found = self._chunks.get()
            if isinstance(found, BaseException):
                self._ended = True
                raise found
            self._ended = not found
            self._rest = found
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                data = self._source.read(CHUNK_BYTES)
                self._put(data)
                if not data:
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, found: bytes | BaseException) -> None:
        while not self._stopped.is_set():
            try:
                self._chunks.put(found, timeout=0.1)
                return
            except queue.Full:
                continue


class Forward:
    """A source as `tarfile` reads an archive: from front to back, by position."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._rest: bytes = b""
        self._start = 0
        self._at = 0
        self._last = b""
        """What was read last, where headers are so small: a parser may look at one twice."""

    def tell(self) -> int:
        """How many bytes were given."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Skips forward to a position, or takes back what was read last.

        Raises:
            ValueError: further backward.
        """
        back = self._at - offset
        if whence or back > len(self._last):
            raise ValueError("an archive that points backward")
        if back > 0:
            self._rest, self._start = self._last[-back:] + self._rest[self._start :], 0
            self._at, self._last = offset, b""
        while self._at < offset and self.some(offset - self._at):
            pass
        return self._at

    def some(self, size: int) -> memoryview:
        """At least one byte and at most `size`, none at the end; valid until the next call."""
        if self._start >= len(self._rest):
            self._rest, self._start = self._source.read(CHUNK_BYTES), 0
        data = memoryview(self._rest)[self._start : self._start + size]
        self._start += len(data)
        self._at += len(data)
        self._last = b""
        return data

    def read(self, size: int) -> bytes:
        """As many, less only at the end."""
        parts = [bytes(self.some(size))]
        missing = size - len(parts[0])
        while missing and (data := self.some(missing)):
            parts.append(bytes(data))
            missing -= len(data)
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        self._last = whole if size <= limits.ARCHIVE_EXTENDED_BYTES_MAX else b""
        return whole
