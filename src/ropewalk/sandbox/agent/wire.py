"""Frames, fields and numbers of the protocol; see docs/design/formats/agent-protocol.md."""

from __future__ import annotations

import errno
import posix

VERSION = 1
FRAME_MAX = 1 << 20
CHUNK = 64 * 1024
FILE_CHUNK = 256 * 1024
STDIN_WINDOW = 256 * 1024
OUT_HIGH = 1 << 20  # a connection with more than this to send is not given more
CHANNELS_MAX = 4096
TEXT_MAX = 4096  # of a path or a reason in an answer, which may repeat a request of a whole frame
BATCH_MAX = 256 * 1024  # of entries, before the last one

# Frame types: to the agent below 0x80, from it above.
PING, EXEC, STDIN, STDIN_EOF, SIGNAL, RESIZE, CREDIT, CLOSE = 1, 2, 3, 4, 5, 6, 7, 8
READ, WRITE, DATA, END, LIST, STAT, REMOVE, STATS = 16, 17, 18, 19, 20, 21, 22, 23
HELLO, PONG, STARTED, STDOUT, STDERR, EXIT, STDIN_CREDIT = 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86
FILE, FILE_DATA, FILE_FAILED, ENTRIES, DONE, ERROR = 0x90, 0x91, 0x92, 0x93, 0x94, 0x95

# Field keys.
K_VERSION, K_FEATURES, K_ARGV, K_ENV, K_CWD, K_USER, K_TIMEOUT_MS, K_OUTPUT_MAX = 1, 2, 3, 4, 5, 6, 7, 8
K_FLAGS, K_ROWS, K_COLUMNS, K_CREDIT, K_PID, K_CODE, K_SIGNAL, K_MESSAGE = 9, 10, 11, 12, 13, 14, 15, 16
K_CPU_US, K_RSS_BYTES, K_STDOUT_BYTES, K_STDERR_BYTES, K_DURATION_US = 17, 18, 19, 20, 21
K_PATH, K_MODE, K_OFFSET, K_LENGTH, K_INDEX, K_SIZE, K_MTIME_NS, K_KIND = 32, 33, 34, 35, 36, 37, 38, 39
K_SHA256, K_ENTRY, K_ENTRIES_MAX, K_ERRNO, K_COUNT = 40, 41, 42, 43, 44

# Flags of EXEC, of EXIT and of file requests.
F_STDIN, F_PTY, F_DETACH = 1, 2, 4
F_TIMED_OUT, F_KILLED = 1, 2
F_NOFOLLOW, F_RECURSIVE, F_DIGESTS, F_WHOLE = 1, 2, 4, 8


class Malformed(Exception):
    """The peer does not speak the protocol; its connection is closed."""


class StartError(Exception):
    """A command that cannot be started: exit code for the shell's convention, and why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def field(key: int, value: bytes | int) -> bytes:
    """One field: u8 key, u32 length, value. Numbers are 64-bit, signed, big-endian."""
    raw = value.to_bytes(8, "big", signed=True) if isinstance(value, int) else value
    return bytes((key,)) + len(raw).to_bytes(4, "big") + raw


class Fields:
    """A payload of fields, read strictly."""

    def __init__(self, payload: bytes) -> None:
        self.values: dict[int, list[bytes]] = {}
        at = 0
        while at < len(payload):
            length = int.from_bytes(payload[at + 1 : at + 5], "big")
            start = at + 5
            if start + length > len(payload):
                raise Malformed("a field is longer than its frame")
            self.values.setdefault(payload[at], []).append(payload[start : start + length])
            at = start + length

    def all(self, key: int) -> list[bytes]:
        return self.values.get(key, [])

    def text(self, key: int, default: bytes = b"") -> bytes:
        value = self.values.get(key, [default])[0]
        if b"\0" in value:
            raise Malformed("a name holds a zero byte")
        return value

    def number(self, key: int, default: int = 0) -> int:
        values = self.values.get(key)
        if values is None:
            return default
        if len(values[0]) != 8:
            raise Malformed("a number is not 8 bytes")
        value = int.from_bytes(values[0], "big", signed=True)
        if value < 0:
            raise Malformed("a number is negative")
        return value


def failure(error: OSError, path: bytes) -> bytes:
    name = errno.errorcode.get(error.errno or 0, "EIO")
    why = (error.strerror or name).encode("utf-8", "replace")[:TEXT_MAX]
    return field(K_ERRNO, name.encode()) + field(K_MESSAGE, why) + field(K_PATH, path[:TEXT_MAX])


def log(message: str) -> None:
    """For whoever reads the sandbox's own error stream; a full pipe there never stops the agent."""
    try:
        posix.write(2, b"agent: " + message.encode("utf-8", "replace") + b"\n")
    except OSError:
        pass
