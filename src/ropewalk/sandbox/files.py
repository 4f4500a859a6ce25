"""Files of a sandbox, over a connection to its agent. What comes back is bounded before it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Final, Literal

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record
from ropewalk.sandbox.connection import Connection, copy_of
from ropewalk.sandbox.contract import SandboxGoneError
from ropewalk.sandbox.process import encode_name
from ropewalk.sandbox.protocol import DATA_BYTES_MAX, Fields, FileFlag, FrameKind, Key, ProtocolError, field

_ENTRY_BYTES_MAX: Final = 8 * limits.KIB
_KINDS: Final[Mapping[bytes, Literal["file", "directory", "link", "other"]]] = {
    b"f": "file",
    b"d": "directory",
    b"l": "link",
    b"o": "other",
}


class FileEntry(Record):
    """What lstat says about something in a sandbox's file system."""

    path: str
    """As the listing's own path and what is below it, so that it can be read as it stands. Bytes that are not UTF-8
    appear as surrogates (PEP 383)."""
    kind: Literal["file", "directory", "link", "other"]
    size: int
    """In bytes."""
    mode: int
    """Permission bits."""
    mtime_ns: int
    sha256: str | None = None
    """Of a regular file's content, where it was asked for and could be read."""


class FileError(CallerError):
    """A file that cannot be read, written, listed or removed. `code` is the error's name: ENOENT, EISDIR, EFBIG …"""

    def __init__(self, message: str, *, code: str, path: str) -> None:
        super().__init__(message)
        self.code = code
        self.path = path


class DiskFullError(UnavailableError):
    """The sandbox's disk is full (its limit, or the machine's)."""

    termination = Termination.DISK_FULL


def file_error(fields: Fields, *, doing: str, path: str) -> FileError | DiskFullError:
    """The exception for an agent's ERROR or FILE_FAILED."""
    code, reason = fields.text(Key.ERRNO), fields.text(Key.MESSAGE)
    named = fields.bytes(Key.PATH).decode("utf-8", "replace") or path
    if code in ("ENOSPC", "EDQUOT"):
        return DiskFullError(f"Cannot {doing} {named}: the sandbox's disk is full.", next_step="ask for a larger one.")
    return FileError(f"Cannot {doing} {named}: {reason} ({code}).", code=code, path=named)


class _Call:
    """One request whose frames are gathered until its end."""

    def __init__(self, *, bytes_max: int) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.error: SandboxGoneError | None = None
        self.over = asyncio.Event()
        self._room = bytes_max

    def frame(self, kind: int, payload: bytes) -> None:
        self._room -= len(payload)
        if self._room < 0 or not FrameKind.FILE <= kind <= FrameKind.ERROR:
            raise ProtocolError("more than was asked for, or something else")
        self.frames.append((kind, payload))
        if kind in (FrameKind.DONE, FrameKind.ERROR):
            self.over.set()

    def lost(self, error: SandboxGoneError) -> None:
        self.error = error
        self.over.set()


async def _finish(connection: Connection, channel: int, call: _Call) -> list[tuple[int, bytes]]:
    try:
        reason = "its agent did not answer about files in time"
        if error := await connection.owed(call.over.wait, limits.FILE_CALL_TIMEOUT_S, reason):
            raise error
    finally:
        connection.release(channel)
        if not call.over.is_set():
            connection.send(FrameKind.CLOSE, channel)
    if call.error:
        raise copy_of(call.error)
    return call.frames


async def _request(
    connection: Connection, kind: FrameKind, payload: bytes, *, bytes_max: int
) -> list[tuple[int, bytes]]:
    call = _Call(bytes_max=bytes_max)
    return await _finish(connection, connection.request(kind, payload, call), call)


def _path(path: str) -> bytes:
    if not path or "\0" in path:
        raise CallerError(f"{path!r} is not a path in a sandbox.")
    return field(Key.PATH, encode_name(path))


async def read_files(
    connection: Connection,
    paths: Sequence[str],
    *,
    bytes_max: int,
    offset: int = 0,
    whole: bool = True,
    follow: bool = True,
) -> list[bytes]:
    """Contents in the order of the paths, in one round trip; at most `bytes_max` of all together.

    With `whole` false, what is past `bytes_max` is left unread instead of an error.

    Raises:
        FileError: one is missing, unreadable, no regular file, or (EFBIG) they are larger than `bytes_max`.
        SandboxGoneError: the sandbox died.
    """
    flags = (FileFlag.WHOLE if whole else 0) | (0 if follow else FileFlag.NOFOLLOW)
    request = b"".join(map(_path, paths)) + field(Key.LENGTH, bytes_max) + field(Key.OFFSET, offset)
    room = bytes_max + len(paths) * _ENTRY_BYTES_MAX + _ENTRY_BYTES_MAX
    frames = await _request(connection, FrameKind.READ, request + field(Key.FLAGS, int(flags)), bytes_max=room)
    contents: list[list[bytes]] = []
    for kind, payload in frames:
        if kind == FrameKind.FILE_DATA and contents:
            contents[-1].append(payload)
        elif kind == FrameKind.FILE:
            contents.append([])
        elif kind in (FrameKind.FILE_FAILED, FrameKind.ERROR):
            raise file_error(Fields(payload), doing="read", path=", ".join(paths))
    if len(contents) != len(paths):
        raise ProtocolError(f"The agent sent {len(contents)} files of {len(paths)}.")
    return [b"".join(pieces) for pieces in contents]


async def write_files(connection: Connection, files: Iterable[tuple[str, bytes | AsyncIterable[bytes], int]]) -> None:
    """Path, content (whole or in pieces) and mode of each. Every one appears whole or not at all, with the folders
    above it; all belong to the agent's user.

    Raises:
        FileError: the first that cannot be written; those before it are.
        DiskFullError, SandboxGoneError: see there.
    """
    call = _Call(bytes_max=64 * limits.KIB)
    channel = 0
    names = []
    try:
        for path, content, mode in files:
            names.append(path)
            head = _path(path) + field(Key.MODE, mode)
            if channel == 0:
                channel = connection.request(FrameKind.WRITE, head, call)
            else:
                connection.send(FrameKind.WRITE, channel, head)
            if isinstance(content, bytes):
                await _send_data(connection, channel, call, content)
                continue
            async for piece in content:
                await _send_data(connection, channel, call, piece)
    except BaseException:
        if channel:
            connection.release(channel)
            connection.send(FrameKind.CLOSE, channel)
        raise
    if channel == 0:
        return
    connection.send(FrameKind.END, channel)
    for kind, payload in await _finish(connection, channel, call):
        if kind == FrameKind.ERROR:
            raise file_error(Fields(payload), doing="write", path=", ".join(names))


async def _send_data(connection: Connection, channel: int, call: _Call, data: bytes) -> None:
    view = memoryview(data)
    while view and not call.over.is_set():
        connection.send(FrameKind.DATA, channel, bytes(view[:DATA_BYTES_MAX]))
        view = view[DATA_BYTES_MAX:]
        if error := await connection.owed(
            connection.drain, limits.FILE_CALL_TIMEOUT_S, "its agent took no more of a file"
        ):
            raise error


async def list_folder(
    connection: Connection, path: str, *, recursive: bool, digests: bool, entries_max: int, bytes_max: int
) -> tuple[FileEntry, ...]:
    """What is in a folder, sorted by path. Links are entries, never followed.

    Raises:
        FileError: it is no folder, or (EOVERFLOW) holds more than `entries_max` entries, `bytes_max` bytes of them, or
            200 levels.
    """
    flags = (FileFlag.RECURSIVE if recursive else 0) | (FileFlag.DIGESTS if digests else 0)
    bounds = field(Key.ENTRIES_MAX, entries_max) + field(Key.LENGTH, bytes_max)
    request = _path(path) + field(Key.FLAGS, int(flags)) + bounds
    frames = await _request(connection, FrameKind.LIST, request, bytes_max=bytes_max + 64 * limits.KIB)
    entries = list(_entries(frames, doing="list", path=path))
    if len(entries) > entries_max:
        raise ProtocolError("The agent sent more entries than were asked for.")
    return tuple(sorted(entries, key=lambda entry: entry.path))


async def stat_path(connection: Connection, path: str) -> FileEntry:
    """What lstat says.

    Raises:
        FileError: there is nothing (ENOENT), or it cannot be reached.
    """
    frames = await _request(connection, FrameKind.STAT, _path(path), bytes_max=64 * limits.KIB)
    for entry in _entries(frames, doing="look at", path=path):
        return entry
    raise ProtocolError("The agent sent no entry.")


async def remove_path(connection: Connection, path: str, *, recursive: bool) -> None:
    """Removes a file, a link itself, or a folder.

    Raises:
        FileError: there is nothing (ENOENT), or without `recursive` a folder is not empty (ENOTEMPTY).
    """
    request = _path(path) + field(Key.FLAGS, int(FileFlag.RECURSIVE if recursive else 0))
    for kind, payload in await _request(connection, FrameKind.REMOVE, request, bytes_max=64 * limits.KIB):
        if kind == FrameKind.ERROR:
            raise file_error(Fields(payload), doing="remove", path=path)


def _entries(frames: list[tuple[int, bytes]], *, doing: str, path: str) -> Iterable[FileEntry]:
    for kind, payload in frames:
        if kind == FrameKind.ERROR:
            raise file_error(Fields(payload), doing=doing, path=path)
        if kind == FrameKind.ENTRIES:
            for packed in Fields(payload).all(Key.ENTRY):
                fields = Fields(packed)
                digest = fields.bytes(Key.SHA256)
                yield FileEntry(
                    path=fields.bytes(Key.PATH).decode("utf-8", "surrogateescape"),
                    kind=_KINDS.get(fields.bytes(Key.KIND), "other"),
                    size=fields.number(Key.SIZE),
                    mode=fields.number(Key.MODE) & 0o7777,
                    mtime_ns=fields.number(Key.MTIME_NS),
                    sha256=digest.hex() if len(digest) == 32 else None,
                )
