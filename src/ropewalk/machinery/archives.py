"""Opens tar and zip with parsers whose work is in proportion to what they read.

The standard library's takes extended headers and zip directories of any size into memory, and those before Python
3.11.10 search an extended (pax) header of digits in quadratic time (CVE-2024-6232): a kilobyte of gzip would hold the
interpreter for hours. Whoever opens an archive that others made opens it here, already unpacked to plain tar or zip.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from typing import IO, Any, Final, cast

from ropewalk.core import limits

_EXTENDED: Final = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_DIGITS_WORK_MAX: Final = 1 << 18
"""Of a pax header, the squares of its runs of digits: two names of 360 digits and nothing else."""
_LENGTH_DIGITS_MAX: Final = 7
_SPARSE_MAP_BYTES_MAX: Final = 64 * limits.KIB


class AbsurdArchiveError(tarfile.TarError, zipfile.BadZipFile):
    """What describes an archive's members is out of all proportion or malformed. Like any damage to those who do not
    tell it apart."""


def open_tar(file: IO[bytes]) -> tarfile.TarFile:
    """A plain tar that can be sought in, to be read. Its `next` may raise what `tarfile` does and AbsurdArchiveError.

    Raises:
        tarfile.TarError: it is none.
        AbsurdArchiveError: its first header is absurd.
    """
    return tarfile.open(fileobj=file, mode="r:", encoding="utf-8", tarinfo=BoundedMember)


def open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """A zip to be read.

    Raises:
        zipfile.BadZipFile: it is none.
        AbsurdArchiveError: its directory takes more than `limits.ARCHIVE_DIRECTORY_BYTES_MAX`.
    """
    reader = _DirectoryReader(file)
    archive = zipfile.ZipFile(cast(IO[bytes], reader))
    reader.bounded = False
    return archive


class BoundedMember(tarfile.TarInfo):
    """A member whose headers are small, and well-formed before the parser sees them.

    For `tarfile.TarFile(tarinfo=…)` of a stream that takes back what was read last; else see `open_tar`.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> BoundedMember:
        """Of one header block."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0:
            raise AbsurdArchiveError("a negative size")
        if member.type in _EXTENDED and member.size > limits.ARCHIVE_EXTENDED_BYTES_MAX:
            raise AbsurdArchiveError(f"an extended header of {member.size} bytes")
        return member

    # Steps of the parser in all Pythons so far. Where one is renamed, a later Python parses in linear time by itself.

    def _proc_pax(self, archive: Any) -> Any:
        start = archive.fileobj.tell()
        _check_pax(archive.fileobj.read(self.size), known=frozenset(archive.pax_headers))
        archive.fileobj.seek(start)
        return super()._proc_pax(archive)  # type: ignore[misc]

    def _proc_gnusparse_10(self, member: Any, headers: Any, archive: Any) -> None:
        start = archive.fileobj.tell()
        _check_sparse_map(archive.fileobj.read(_SPARSE_MAP_BYTES_MAX))
        archive.fileobj.seek(start)
        super()._proc_gnusparse_10(member, headers, archive)  # type: ignore[misc]


def _check_pax(data: bytes, *, known: frozenset[str]) -> None:
    """Each record is its length, a space, a key, `=`, a value and a line break (POSIX.1-2008, pax)."""
    if sum(len(run) ** 2 for run in re.findall(rb"\d+", data)) > _DIGITS_WORK_MAX:
        raise AbsurdArchiveError("an extended header of digits")
    keys: set[str] = set(known)
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + _LENGTH_DIGITS_MAX + 1)
        text = data[at:space] if space > at else b""
        end = at + int(text) if text.isdigit() else 0
        equals = data.find(b"=", space + 1, end - 1) if space < end <= len(data) else -1
        if equals <= space + 1 or data[end - 1 : end] != b"\n":
            raise AbsurdArchiveError("a malformed extended header")
        if data[space + 1 : equals] == b"size" and not data[equals + 1 : end - 1].isdigit():
            raise AbsurdArchiveError("a size that is none")
        keys.add(data[space + 1 : equals].decode("utf-8", "replace"))
        at = end
    if len(keys) > limits.ARCHIVE_EXTENDED_KEYS_MAX:
        raise AbsurdArchiveError(f"an extended header with more than {limits.ARCHIVE_EXTENDED_KEYS_MAX} keys")


def _check_sparse_map(data: bytes) -> None:
    """GNU's format 1.0: the number of pieces, then two numbers for each, a line each, before the content."""
    count, _, _ = data.partition(b"\n")
    lines = data.split(b"\n", 2 * int(count) + 1) if len(count) <= _LENGTH_DIGITS_MAX and count.isdigit() else []
    if len(lines) < 2 or len(lines) < 2 * int(count) + 2:
        raise AbsurdArchiveError("a map of a sparse file that is absurd")


class _DirectoryReader:
    """A file of which, while `bounded`, no more is read at once than a directory may take."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bounded = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if self.bounded and size > limits.ARCHIVE_DIRECTORY_BYTES_MAX:
            raise AbsurdArchiveError(f"a directory of {size} bytes")
        return self._file.read(size)
