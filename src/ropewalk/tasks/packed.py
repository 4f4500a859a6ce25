"""Files inside files: archives, compressed data and version control's objects, opened as far as a scan needs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Final

from ropewalk.core import limits
from ropewalk.machinery.archives import AbsurdArchiveError, open_tar, open_zip

_DAMAGED: Final = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError,
                   OSError, EOFError, ValueError)  # fmt: skip
_GIT_OBJECTS: Final = (b"blob ", b"tree ", b"commi")


class TooMuchInsideError(Exception):
    """A file holds more than is looked at."""


class InnerBudget:
    """What may be unpacked out of one outer file, over all depths together: bytes and members."""

    def __init__(self, *, bytes_max: int = limits.INNER_BYTES_MAX, members_max: int = limits.INNER_MEMBERS_MAX) -> None:
        self._bytes_left, self._members_left = bytes_max, members_max
        self._most = f"more than {bytes_max} bytes or {members_max} files inside"

    def enter(self) -> None:
        """Counts a member.

        Raises:
            TooMuchInsideError: that is one too many.
        """
        self._members_left -= 1
        if self._members_left < 0:
            raise TooMuchInsideError(self._most)

    def read(self, file: IO[bytes]) -> bytes:
        """All of a member.

        Raises:
            TooMuchInsideError: it is larger than what is left.
        """
        data = file.read(self._bytes_left + 1)
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise TooMuchInsideError(self._most)
        return data


def inner_files(path: str, content: bytes, budget: InnerBudget) -> Iterator[tuple[str, bytes]]:
    """Name and content of what a file contains in packed form; nothing where it is not a container.

    Raises:
        TooMuchInsideError: the budget is used up, or headers are absurd.
    """
    try:
        if content[:4] == b"PK\x03\x04":
            yield from _zip(content, budget)
        elif content[:2] == b"\x1f\x8b" or content[:3] == b"BZh" or content[:6] == b"\xfd7zXZ\x00":
            unpacked = _decompress(content, budget)
            name = path.rpartition("/")[2]
            inner = name.rpartition(".")[0] or name
            if unpacked and _is_tar(unpacked):
                yield from _tar(unpacked, budget, counted=True)
            elif unpacked:
                yield inner, unpacked
        elif _is_tar(content):
            yield from _tar(content, budget)
        elif content[:1] == b"x" and content[1:2] in b"\x01\x5e\x9c\xda":
            unpacked = _inflate(content, budget)
            if unpacked:
                yield "object", unpacked.split(b"\0", 1)[-1] if unpacked[:5] in _GIT_OBJECTS else unpacked
    except AbsurdArchiveError as error:
        raise TooMuchInsideError(str(error)) from error
    except _DAMAGED:
        return


def _is_tar(content: bytes) -> bool:
    return content[257:262] == b"ustar"


def _zip(content: bytes, budget: InnerBudget) -> Iterator[tuple[str, bytes]]:
    with open_zip(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            budget.enter()
            if not member.is_dir():
                with archive.open(member) as file:
                    yield member.filename, budget.read(file)


def _tar(content: bytes, budget: InnerBudget, *, counted: bool = False) -> Iterator[tuple[str, bytes]]:
    """`counted`: the tar came out of a compressed stream, so that its bytes are paid for, but not a sparse file's."""
    with open_tar(io.BytesIO(content)) as archive:
        while (member := archive.next()) is not None:
            budget.enter()
            file = archive.extractfile(member) if member.isreg() else None
            if file is not None:
                yield member.name, file.read() if counted and not member.issparse() else budget.read(file)


def _decompress(content: bytes, budget: InnerBudget) -> bytes:
    budget.enter()
    stream = io.BytesIO(content)
    if content[:2] == b"\x1f\x8b":
        return budget.read(gzip.GzipFile(fileobj=stream))  # type: ignore[arg-type]
    if content[:2] == b"BZ":
        return budget.read(bz2.BZ2File(stream))
    return budget.read(lzma.LZMAFile(stream))


def _inflate(content: bytes, budget: InnerBudget) -> bytes:
    budget.enter()
    return budget.read(_Inflating(content))  # type: ignore[arg-type]


class _Inflating:
    """A zlib stream, read once."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int) -> bytes:
        return zlib.decompressobj().decompress(self._content, size)
