"""The guest agent by itself, as a process of this machine, and a host that speaks to it in raw frames."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ropewalk.sandbox.agent import program
from ropewalk.sandbox.protocol import Fields, FrameKind, Key, field

opened: list[socket.socket] = []


class Peer:
    """A blocking connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        opened.append(self.socket)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.hello = self.receive()

    def send(self, kind: int, channel: int = 0, payload: bytes = b"") -> None:
        self.socket.sendall(len(payload).to_bytes(4, "big") + bytes((kind,)) + channel.to_bytes(4, "big") + payload)

    def receive(self) -> tuple[int, int, bytes]:
        header = self.exactly(9)
        return header[4], int.from_bytes(header[5:], "big"), self.exactly(int.from_bytes(header[:4], "big"))

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def until(self, kind: int, channel: int) -> bytes:
        while (frame := self.receive())[:2] != (kind, channel):
            pass
        return frame[2]

    def start(self, channel: int, *argv: str, credit: int = 1 << 18, flags: int = 0, cap: int = 1 << 30) -> int:
        words = b"".join(field(Key.ARGV, word.encode()) for word in argv)
        limits = field(Key.CREDIT, credit) + field(Key.OUTPUT_MAX, cap) + field(Key.FLAGS, flags)
        self.send(FrameKind.EXEC, channel, words + limits)
        return Fields(self.until(FrameKind.STARTED, channel)).number(Key.PID)

    def closed(self) -> bool:
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def ping(self) -> bool:
        self.send(FrameKind.PING, 7, b"?")
        return self.until(FrameKind.PONG, 7) == b"?"


@contextlib.contextmanager
def running(folder: Path, **config: object) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    path = folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        full = {"listen_fd": listener.fileno(), "idle_timeout_s": 60, "workdir": str(folder), "env": {}, **config}
        process = subprocess.Popen(
            [program(), json.dumps(full)], pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL, env={}
        )
    try:
        yield process, path
    finally:
        process.terminate()
        process.wait()


def wait_until(condition: Callable[[], bool], *, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def resident_bytes(pid: int) -> int:
    """Memory in use; 0 for a build whose checks take more than what they look at."""
    if os.environ.get("ROPEWALK_AGENT"):
        return 0
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
