"""The guest agent's protocol, host side: frames, fields and an incremental decoder that trusts nobody.

The agent runs beside untrusted code and may have been taken over by it. So every length is bounded before it is
believed, and whatever does not fit ends the connection. The wire: docs/design/formats/agent-protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.sandbox.contract import SandboxGoneError

VERSION: Final = 1
WINDOW_BYTES: Final = 256 * limits.KIB
"""Output that the agent may send, and input that the host may send, ahead of what the other side has taken."""
DATA_BYTES_MAX: Final = 256 * limits.KIB
"""Of a file, in one frame."""

_HEADER: Final = struct.Struct(">IBI")
_FIELD: Final = struct.Struct(">BI")
_NUMBER: Final = struct.Struct(">q")


class FrameKind(IntEnum):
    """What a frame is. Below 128: to the agent."""

    PING = 1
    EXEC = 2
    STDIN = 3
    STDIN_EOF = 4
    SIGNAL = 5
    RESIZE = 6
    CREDIT = 7
    CLOSE = 8
    READ = 16
    WRITE = 17
    DATA = 18
    END = 19
    LIST = 20
    STAT = 21
    REMOVE = 22
    STATS = 23
    WATCH = 24
    IDENTIFY = 25
    QUIESCE = 26
    CONFIGURE = 27
    HELLO = 128
    PONG = 129
    STARTED = 130
    STDOUT = 131
    STDERR = 132
    EXIT = 133
    STDIN_CREDIT = 134
    FILE = 144
    FILE_DATA = 145
    FILE_FAILED = 146
    ENTRIES = 147
    DONE = 148
    ERROR = 149
    WATCHING = 150
    CHANGES = 151
    IDENTITY = 152


class Key(IntEnum):
    """What a field is."""

    VERSION = 1
    FEATURES = 2
    ARGV = 3
    ENV = 4
    CWD = 5
    USER = 6
    TIMEOUT_MS = 7
    OUTPUT_MAX = 8
    FLAGS = 9
    ROWS = 10
    COLUMNS = 11
    CREDIT = 12
    PID = 13
    CODE = 14
    SIGNAL = 15
    MESSAGE = 16
    CPU_US = 17
    RSS_BYTES = 18
    STDOUT_BYTES = 19
    STDERR_BYTES = 20
    DURATION_US = 21
    PATH = 32
    MODE = 33
    OFFSET = 34
    LENGTH = 35
    INDEX = 36
    SIZE = 37
    MTIME_NS = 38
    KIND = 39
    SHA256 = 40
    ENTRY = 41
    ENTRIES_MAX = 42
    ERRNO = 43
    COUNT = 44
    MEMORY_BYTES = 48
    MEMORY_TOTAL = 49
    OOM_KILLS = 50
    HOSTNAME = 64
    MACHINE_ID = 65
    BOOT_ID = 66
    SEED = 67
    TIME_NS = 68
    TOKEN = 69
    INTERFACE = 70
    RANDOM = 71
    STEP = 72


class ExecFlag(IntFlag):
    """Of EXEC."""

    STDIN = 1
    PTY = 2
    DETACH = 4


class ExitFlag(IntFlag):
    """Of EXIT."""

    TIMED_OUT = 1
    KILLED = 2


class FileFlag(IntFlag):
    """Of READ, LIST and REMOVE."""

    NOFOLLOW = 1
    RECURSIVE = 2
    DIGESTS = 4
    WHOLE = 8


class ProtocolError(SandboxGoneError):
    """The agent does not speak the protocol (any more). Its connection is closed.

    That is put down to what runs beside the agent and may have taken it over: were it a fault of ours, code that is
    about to lose could call the game off.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, termination=Termination.POLICY_STOP)


class Frame(NamedTuple):
    """One message."""

    kind: int
    channel: int
    payload: bytes


def encode(kind: FrameKind, channel: int, payload: bytes = b"") -> bytes:
    """A frame's bytes.

    Raises:
        CallerError: longer than `limits.FRAME_BYTES_MAX`.
    """
    if len(payload) > limits.FRAME_BYTES_MAX:
        raise CallerError(
            f"A {kind.name} request of {len(payload)} bytes; {limits.FRAME_BYTES_MAX} are allowed.",
            next_step="pass long input as a file or as stdin.",
        )
    return _HEADER.pack(len(payload), kind, channel) + payload


def field(key: Key, value: bytes | int) -> bytes:
    """A field's bytes; numbers are 64-bit, signed, big-endian."""
    raw = _NUMBER.pack(value) if isinstance(value, int) else value
    return _FIELD.pack(key, len(raw)) + raw


class Fields:
    """The fields of a payload.

    Raises:
        ProtocolError: on construction and on reading: a field longer than its frame, a number of another size.
    """

    def __init__(self, payload: bytes) -> None:
        self._values: dict[int, list[bytes]] = {}
        at = 0
        while at < len(payload):
            if at + _FIELD.size > len(payload):
                raise ProtocolError("The agent sent half a field.")
            key, length = _FIELD.unpack_from(payload, at)
            at += _FIELD.size
            if at + length > len(payload):
                raise ProtocolError("The agent sent a field longer than its frame.")
            self._values.setdefault(key, []).append(payload[at : at + length])
            at += length

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def all(self, key: Key) -> list[bytes]:
        """Every value of a key, in order."""
        return self._values.get(key, [])

    def bytes(self, key: Key, default: bytes = b"") -> bytes:
        """The first value of a key."""
        return self._values.get(key, [default])[0]

    def text(self, key: Key) -> str:
        """For people: what is not UTF-8 is replaced."""
        return self.bytes(key).decode("utf-8", "replace")

    def number(self, key: Key, default: int = 0) -> int:
        """The first value of a key as a number."""
        values = self._values.get(key)
        if values is None:
            return default
        if len(values[0]) != _NUMBER.size:
            raise ProtocolError("The agent sent a number that is not 8 bytes long.")
        return int(_NUMBER.unpack(values[0])[0])


class Decoder:
    """Bytes in, in whatever pieces; frames out."""

    def __init__(self, *, frame_bytes_max: int = limits.FRAME_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. At most one frame's bytes are kept for later.

        Raises:
            ProtocolError: a frame says it is longer than allowed, or is of a kind that an agent does not send.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            length, kind, channel = _HEADER.unpack_from(self._buffer)
            if length > self._frame_bytes_max or kind < FrameKind.HELLO:
                raise ProtocolError(f"The agent sent a frame of kind {kind} and {length} bytes.")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            yield Frame(kind, channel, payload)
