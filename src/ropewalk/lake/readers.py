"""Reads tar, gzipped tar and zip as one stream of checked members. Nothing is written but an unnamed temporary file.

Archives inside archives are files like any other: nothing is unpacked twice.
"""

from __future__ import annotations

import contextlib
import errno
import io
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.limits import MIB
from ropewalk.core.records import Record
from ropewalk.lake.members import ArchiveFault, Caps, MemberLedger
from ropewalk.machinery.archives import open_tar, open_zip

_CHUNK_BYTES: Final = 256 * 1024
_SPOOL_BYTES: Final = 16 * MIB
_HEADER_BYTES: Final = 2048
"""Of a tar, a member: header, extended header and padding."""
_PARSER_ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, OverflowError, LookupError,
                  NotImplementedError, RuntimeError)  # fmt: skip


class Member(Record):
    """One checked member."""

    path: str
    """Relative, with `/`, without `.` or `..`; "" for the archive's root."""
    directory: bool
    executable: bool
    size: int
    """Unpacked, in bytes; 0 for directories and links."""
    link: str | None
    """Path of the file in the archive whose content this member shares."""


Visit = Callable[[Member, Callable[[], IO[bytes]]], None]
"""Gets a member and what opens its content."""


def walk(source: Path | bytes, caps: Caps, visit: Visit, *, name: str = "") -> MemberLedger:
    """Visits every member in the archive's order, then checks the archive's end and its links.

    Args:
        source: the archive: a file, or its bytes.
        visit: what it raises passes through, but for errors of its content's reader, which are the archive's faults.
        name: for messages; by default the file's name.

    Raises:
        ArchiveError: see `ArchiveFault`.
        CallerError: no such file.
    """
    label = name or (source.name if isinstance(source, Path) else "<bytes>")
    with _opened(source) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        head = file.read(512)
        file.seek(0)
        ledger = MemberLedger(label, caps, packed_bytes=size)
        try:
            if head.startswith(b"\x1f\x8b"):
                with _inflated(file, ledger, caps) as plain:
                    if not _is_tar(plain.read(512)):
                        raise ledger.fault(ArchiveFault.NOT_ARCHIVE, "a gzip stream of something else than a tar")
                    plain.seek(0)
                    _walk_tar(plain, ledger, visit)
            elif head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                _walk_zip(file, ledger, visit)
            elif _is_tar(head):
                _walk_tar(file, ledger, visit)
            else:
                raise ledger.fault(ArchiveFault.NOT_ARCHIVE, "it begins like none that is read here")
        except _PARSER_ERRORS as error:
            raise ledger.fault(ArchiveFault.DAMAGED, f"it cannot be read to its end: {error}") from error
        except OSError as error:
            # A parser that seeks where a broken header sends it.
            if error.errno == errno.EINVAL:
                raise ledger.fault(ArchiveFault.DAMAGED, "it points outside itself") from error
            raise UnavailableError(f"Archive {label} cannot be read: {error.strerror or error}.") from error
        ledger.finish()
    return ledger


def _is_tar(head: bytes) -> bool:
    """POSIX and GNU both write this; the format of 1979, which has no mark, is not read."""
    return head[257:262] == b"ustar"


@contextlib.contextmanager
def _opened(source: Path | bytes) -> Iterator[IO[bytes]]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
        return
    if not source.is_file():
        raise CallerError(f"No archive at {source}.", next_step="give the path of a .tar.gz, .zip or .whl file.")
    with source.open("rb") as file:
        yield file


@contextlib.contextmanager
def _inflated(file: IO[bytes], ledger: MemberLedger, caps: Caps) -> Iterator[IO[bytes]]:
    """The gzip stream's content, which must end where the file ends, with the check sum that it promises."""
    allowed = caps.bytes_max + _HEADER_BYTES * caps.members_max
    state = zlib.decompressobj(wbits=31)
    total, pending, ended = 0, b"", False
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as plain:
        while chunk := pending or file.read(_CHUNK_BYTES):
            if ended:  # RFC 1952 lets another gzip member follow, and tools pad with zeros
                chunk = chunk.lstrip(b"\0")
                pending = b""
                if not chunk:
                    continue
                state = zlib.decompressobj(wbits=31)
            data = state.decompress(chunk, _CHUNK_BYTES)
            ended = state.eof
            pending = state.unused_data if ended else state.unconsumed_tail
            total += len(data)
            if total > allowed:
                raise ledger.fault(ArchiveFault.TOO_LARGE, f"more than {allowed} bytes unpacked")
            ledger.check_ratio(total)
            plain.write(data)
        if not ended:
            raise ledger.fault(ArchiveFault.DAMAGED, "it is truncated")
        plain.seek(0)
        yield plain


def _walk_tar(file: IO[bytes], ledger: MemberLedger, visit: Visit) -> None:
    with open_tar(file) as tar:
        while (entry := tar.next()) is not None:
            path = ledger.enter(entry.name, directory=entry.isdir())
            member = _tar_member(entry, path, ledger)
            # `extractfile` follows links by itself: it is given regular files alone.
            visit(member, lambda entry=entry: _required(tar.extractfile(entry)))  # type: ignore[misc]
        end = tar.offset
    # The parser takes a broken header for the end: what follows must be the zeros of a real one.
    file.seek(end)
    rest = 0
    while chunk := file.read(_CHUNK_BYTES):
        if chunk.strip(b"\0"):
            raise ledger.fault(ArchiveFault.DAMAGED, "a broken header, or bytes after its end")
        rest += len(chunk)
    if rest < tarfile.BLOCKSIZE:
        raise ledger.fault(ArchiveFault.DAMAGED, "it is truncated")


def _tar_member(entry: tarfile.TarInfo, path: str, ledger: MemberLedger) -> Member:
    if entry.isdir():
        return Member(path=path, directory=True, executable=False, size=0, link=None)
    if entry.issym() or entry.islnk():
        base = path.rpartition("/")[0] if entry.issym() else ""
        link = _link_target(base, entry.linkname, path, ledger)
        ledger.link(link, member=path)
        return Member(path=path, directory=False, executable=False, size=0, link=link)
    if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        sparse = entry.type == tarfile.GNUTYPE_SPARSE
        fault = ArchiveFault.UNSUPPORTED if sparse else ArchiveFault.SPECIAL
        raise ledger.fault(fault, "neither file, directory nor link", member=path)
    if entry.sparse is not None:
        raise ledger.fault(ArchiveFault.UNSUPPORTED, "a sparse file", member=path)
    if entry.mode & (stat.S_ISUID | stat.S_ISGID):
        raise ledger.fault(ArchiveFault.SETUID, "a setuid or setgid file", member=path)
    ledger.count(entry.size, member=path)
    return Member(path=path, directory=False, executable=bool(entry.mode & 0o100), size=entry.size, link=None)


def _link_target(base: str, target: str, path: str, ledger: MemberLedger) -> str:
    if target.startswith("/"):
        raise ledger.fault(ArchiveFault.LINK, f"a link to {target[:200]!r}", member=path)
    parts = base.split("/") if base else []
    for part in target.split("/"):
        if part == "..":
            if not parts:
                raise ledger.fault(ArchiveFault.LINK, f"a link out of the archive, to {target[:200]!r}", member=path)
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _walk_zip(file: IO[bytes], ledger: MemberLedger, visit: Visit) -> None:
    with open_zip(file) as archive:
        for entry in archive.infolist():
            if entry.orig_filename != entry.filename:
                raise ledger.fault(ArchiveFault.NAME, "a name with a NUL in it", member=entry.filename)
            directory = entry.is_dir()
            path = ledger.enter(entry.filename, directory=directory)
            mode = entry.external_attr >> 16
            _check_zip_entry(entry, mode, path, ledger)
            if not directory:
                ledger.count(entry.file_size, member=path)
            member = Member(
                path=path, directory=directory, executable=bool(mode & 0o100) and not directory,
                size=0 if directory else entry.file_size, link=None,
            )  # fmt: skip
            visit(member, lambda entry=entry: archive.open(entry))  # type: ignore[misc]


def _check_zip_entry(entry: zipfile.ZipInfo, mode: int, path: str, ledger: MemberLedger) -> None:
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFLNK:
        raise ledger.fault(ArchiveFault.LINK, "a link in a zip", member=path)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ledger.fault(ArchiveFault.SPECIAL, "neither file nor directory", member=path)
    if not entry.is_dir() and mode & (stat.S_ISUID | stat.S_ISGID):
        raise ledger.fault(ArchiveFault.SETUID, "a setuid or setgid file", member=path)
    if entry.flag_bits & 0x1:
        raise ledger.fault(ArchiveFault.UNSUPPORTED, "it is encrypted", member=path)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ledger.fault(ArchiveFault.UNSUPPORTED, f"packed by method {entry.compress_type}", member=path)


def _required(content: IO[bytes] | None) -> IO[bytes]:
    assert content is not None
    return content
