"""The agent by itself, as a process of this machine, spoken to in raw frames."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.sandbox import protocol
from ropewalk.sandbox.agent import program
from ropewalk.sandbox.protocol import ExecFlag, Fields, FrameKind, Key, field

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


Start = Callable[..., tuple["subprocess.Popen[bytes]", Path]]


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


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    with running(tmp_path) as (_, path):
        yield path


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running(tmp_path_factory.mktemp("agent")) as (_, path):
        yield path


@pytest.fixture(autouse=True)
def closed_after() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


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


def test_it_greets_with_its_version(agent: Path) -> None:
    kind, channel, payload = Peer(agent).hello
    assert (kind, channel, Fields(payload).number(Key.VERSION)) == (FrameKind.HELLO, 0, protocol.VERSION)
    assert b"untraceable" in Fields(payload).all(Key.FEATURES)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(noise=st.binary(min_size=1, max_size=200))
def test_noise_closes_its_own_connection_at_most(lasting: Path, noise: bytes) -> None:
    other, peer = Peer(lasting), Peer(lasting)
    peer.socket.sendall(noise)
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.closed()
    assert other.ping()


keys = st.integers(1, 44).filter(lambda key: key not in (Key.ARGV, Key.PATH))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    kind=st.sampled_from([2, 3, 4, 5, 6, 7, 8, 16, 17, 18, 19, 20, 21, 23, 9, 99]),
    pairs=st.lists(st.tuples(keys, st.one_of(st.binary(max_size=12), st.integers(0, 2**63 - 1))), max_size=6),
)
def test_odd_requests_close_their_own_connection_at_most(
    lasting: Path, kind: int, pairs: list[tuple[int, bytes | int]]
) -> None:
    peer = Peer(lasting)
    # Never a random program or path: this agent works on this machine, perhaps as root.
    payload = field(Key.ARGV, b"true") + field(Key.PATH, b"some/name")
    payload += b"".join(field(key, value) for key, value in pairs)
    try:
        peer.send(kind, 1, payload)
        peer.send(kind, 1, payload)
        peer.ping()
    except (EOFError, ConnectionError):
        pass
    other = Peer(lasting)
    assert other.ping()
    peer.socket.close()


@pytest.mark.parametrize(
    "frames",
    [
        [(FrameKind.EXEC, 0, field(Key.ARGV, b"true"))],
        [(FrameKind.EXEC, 1, field(Key.ARGV, b"cat") + field(Key.FLAGS, ExecFlag.STDIN)), (FrameKind.EXEC, 1, b"")],
        [(FrameKind.WRITE, 1, field(Key.PATH, b"x")), (FrameKind.STDIN, 1, b"x")],
        [(FrameKind.EXEC, 1, field(Key.ARGV, b"cat") + field(Key.CWD, b"a\0b"))],
        [(FrameKind.EXEC, 1, field(Key.ARGV, b"sleep") + field(Key.ARGV, b"9") + field(Key.FLAGS, ExecFlag.STDIN)),
         *[(FrameKind.STDIN, 1, bytes(1 << 18))] * 3],
        [(FrameKind.HELLO, 1, b"")],
    ],
)  # fmt: skip
def test_what_is_against_the_protocol_closes_the_connection(agent: Path, frames: list[tuple[int, int, bytes]]) -> None:
    peer = Peer(agent)
    with contextlib.suppress(BrokenPipeError):
        for frame in frames:
            peer.send(*frame)
    assert peer.closed()
    assert Peer(agent).ping()


def test_a_frame_may_come_in_pieces(agent: Path) -> None:
    peer = Peer(agent)
    for byte in b"\0\0\0\x01\x01\0\0\0\x07!":
        peer.socket.sendall(bytes((byte,)))
    assert peer.until(FrameKind.PONG, 7) == b"!"


def test_output_waits_for_credit_and_holds_up_nobody_else(agent: Path) -> None:
    peer = Peer(agent)
    peer.start(1, "head", "-c", "1000000", "/dev/zero", credit=1000)
    assert len(peer.until(FrameKind.STDOUT, 1)) == 1000
    peer.start(2, "echo", "other")
    assert peer.until(FrameKind.STDOUT, 2) == b"other\n"
    peer.until(FrameKind.EXIT, 2)
    assert peer.ping()  # still nothing for 1
    peer.send(FrameKind.CREDIT, 1, field(Key.CREDIT, 1 << 20))
    end = Fields(peer.until(FrameKind.EXIT, 1))
    assert (end.number(Key.CODE, 1), end.number(Key.STDOUT_BYTES)) == (0, 1_000_000)


def test_output_past_the_cap_is_counted_and_never_blocks(agent: Path) -> None:
    peer = Peer(agent)
    peer.start(1, "head", "-c", "50000000", "/dev/zero", credit=100, cap=10)
    assert peer.until(FrameKind.STDOUT, 1) == bytes(10)
    assert Fields(peer.until(FrameKind.EXIT, 1)).number(Key.STDOUT_BYTES) == 50_000_000


def test_a_peer_that_reads_nothing_costs_the_agent_little(agent: Path) -> None:
    lazy = Peer(agent)
    for channel in range(1, 40):
        lazy.send(FrameKind.EXEC, channel, field(Key.ARGV, b"yes") + field(Key.CREDIT, 1 << 40)
                  + field(Key.OUTPUT_MAX, 1 << 40))  # fmt: skip
    peer = Peer(agent)
    own = Fields(peer.hello[2]).number(Key.PID)
    for _ in range(100):
        assert peer.ping()
    resident = int(Path(f"/proc/{own}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident < 40e6


def test_commands_end_with_their_connection_but_for_detached_ones(agent: Path) -> None:
    peer = Peer(agent)
    plain, detached = peer.start(1, "sleep", "100"), peer.start(2, "sleep", "100", flags=ExecFlag.DETACH)
    peer.socket.close()
    wait_until(lambda: not alive(plain))
    assert alive(detached)


def test_files_half_sent_leave_nothing(agent: Path, tmp_path: Path) -> None:
    peer = Peer(agent)
    peer.send(FrameKind.WRITE, 1, field(Key.PATH, b"deep/file"))
    peer.send(FrameKind.DATA, 1, b"half")
    assert peer.ping()
    assert list((tmp_path / "deep").iterdir())
    peer.socket.close()
    wait_until(lambda: not list((tmp_path / "deep").iterdir()))


def test_it_ends_when_nothing_ran_for_the_idle_time(tmp_path: Path) -> None:
    with running(tmp_path, idle_timeout_s=0.3) as (process, path):
        peer = Peer(path)
        peer.start(1, "sleep", "0.8", flags=ExecFlag.DETACH)
        peer.socket.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.6)  # the detached command keeps it
        assert process.wait(10) == 0


def test_an_open_connection_keeps_it(tmp_path: Path) -> None:
    with running(tmp_path, idle_timeout_s=0.1) as (process, path):
        peer = Peer(path)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.4)
        assert peer.ping()


def test_variables_of_the_host_stay_outside(agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(agent)
    peer.start(1, "env")
    names = {line.split(b"=")[0] for line in peer.until(FrameKind.STDOUT, 1).splitlines()}
    assert names == {b"PATH", b"HOME", b"USER", b"LANG", b"TMPDIR"}


def test_commands_inherit_no_descriptors_and_go_first_when_memory_is_short(agent: Path) -> None:
    peer = Peer(agent)
    peer.start(1, "sh", "-c", "ls /proc/self/fd; cat /proc/self/oom_score_adj; umask")
    output = b""
    while (frame := peer.receive())[0] != FrameKind.EXIT:
        output += frame[2]
    assert output.split() == [b"0", b"1", b"2", b"3", b"500", b"0022"]


def test_many_connections(agent: Path) -> None:
    peers = [Peer(agent) for _ in range(100)]
    assert all(peer.ping() for peer in peers)
    for peer in peers:
        peer.socket.close()
