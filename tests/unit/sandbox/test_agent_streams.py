"""Several connections over one pair of pipes: the agent at one end, its relay at the other."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.agent_peer import Peer, alive, opened, resident_bytes, wait_until

from ropewalk.sandbox.agent import program
from ropewalk.sandbox.protocol import ExecFlag, Fields, FrameKind, Key, field

RESET, READY, BOOT, OPEN, BYTES, CREDIT, CLOSE = range(1, 8)


class Pipes(NamedTuple):
    """Descriptors of both ends."""

    agent_in: int
    host_out: int
    host_in: int
    agent_out: int


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    agent_in, host_out = os.pipe()
    host_in, agent_out = os.pipe()
    made = Pipes(agent_in, host_out, host_in, agent_out)
    yield made
    for fd in made:
        with contextlib.suppress(OSError):
            os.close(fd)
    while opened:
        opened.pop().close()


@contextlib.contextmanager
def started(config: dict[str, object], *fds: int, mode: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([program(), *mode, json.dumps(config)], pass_fds=fds, env={})
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def agent(pipes: Pipes, folder: Path, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    config = {"in_fd": pipes.agent_in, "out_fd": pipes.agent_out, "workdir": str(folder), "idle_timeout_s": 60, **more}
    with started(config, pipes.agent_in, pipes.agent_out) as process:
        yield process


@contextlib.contextmanager
def relay(pipes: Pipes, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        config = {"in_fd": pipes.host_in, "out_fd": pipes.host_out, "listen_fd": listener.fileno()}
        with started(config, pipes.host_in, pipes.host_out, listener.fileno(), mode=("relay",)) as process:
            yield process


def test_many_connections_share_a_pipe(pipes: Pipes, tmp_path: Path) -> None:
    with agent(pipes, tmp_path), relay(pipes, tmp_path / "r.sock"):
        peers = [Peer(tmp_path / "r.sock") for _ in range(40)]
        assert all(peer.ping() for peer in peers)
        for at, peer in enumerate(peers):
            peer.start(1, "echo", str(at))
        assert [peer.until(FrameKind.STDOUT, 1) for peer in peers] == [f"{at}\n".encode() for at in range(40)]


def test_a_connection_that_reads_nothing_holds_up_no_other(pipes: Pipes, tmp_path: Path) -> None:
    with agent(pipes, tmp_path) as inside, relay(pipes, tmp_path / "r.sock") as outside:
        lazy, peer = Peer(tmp_path / "r.sock"), Peer(tmp_path / "r.sock")
        lazy.start(1, "cat", "/dev/zero", credit=1 << 40, cap=1 << 40)
        for _ in range(50):
            assert peer.ping()
        peer.start(1, "head", "-c", "20000000", "/dev/zero", credit=1 << 30)
        received = 0
        while (frame := peer.receive())[0] != FrameKind.EXIT:
            received += len(frame[2])
        assert received == 20_000_000
        assert resident_bytes(inside.pid) < 8e6 and resident_bytes(outside.pid) < 8e6


def test_every_byte_arrives_in_both_directions(pipes: Pipes, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) + bytes(1 << 20) + os.urandom(1 << 19)
    with agent(pipes, tmp_path), relay(pipes, tmp_path / "r.sock"):
        peer = Peer(tmp_path / "r.sock")
        peer.send(FrameKind.WRITE, 1, field(Key.PATH, b"file"))
        for at in range(0, len(data), 1 << 18):
            peer.send(FrameKind.DATA, 1, data[at : at + (1 << 18)])
        peer.send(FrameKind.END, 1)
        peer.until(FrameKind.DONE, 1)
        assert (tmp_path / "file").read_bytes() == data
        peer.send(FrameKind.READ, 2, field(Key.PATH, b"file") + field(Key.LENGTH, 1 << 30))
        received = b""
        while (frame := peer.receive())[0] != FrameKind.DONE:
            received += frame[2] if frame[0] == FrameKind.FILE_DATA else b""
        assert received == data


def test_closing_a_connection_ends_its_commands(pipes: Pipes, tmp_path: Path) -> None:
    with agent(pipes, tmp_path), relay(pipes, tmp_path / "r.sock"):
        peer, other = Peer(tmp_path / "r.sock"), Peer(tmp_path / "r.sock")
        plain, kept = peer.start(1, "sleep", "100"), peer.start(2, "sleep", "100", flags=ExecFlag.DETACH)
        peer.socket.close()
        wait_until(lambda: not alive(plain))
        assert alive(kept) and other.ping()


def test_what_the_agent_ends_ends_at_the_host(pipes: Pipes, tmp_path: Path) -> None:
    with agent(pipes, tmp_path), relay(pipes, tmp_path / "r.sock"):
        peer, other = Peer(tmp_path / "r.sock"), Peer(tmp_path / "r.sock")
        peer.send(FrameKind.HELLO, 1)
        assert peer.closed() and other.ping()


def test_another_host_end_takes_over_in_the_middle_of_a_packet(pipes: Pipes, tmp_path: Path) -> None:
    """As after a snapshot: old connections are gone, detached commands go on, half a packet is in the way."""
    with agent(pipes, tmp_path):
        with relay(pipes, tmp_path / "1.sock") as first:
            peer = Peer(tmp_path / "1.sock")
            plain, kept = peer.start(1, "sleep", "100"), peer.start(2, "sleep", "100", flags=ExecFlag.DETACH)
            peer.start(3, "cat", "/dev/zero", credit=1 << 40, cap=1 << 40)
            first.kill()
        os.write(pipes.host_out, b"\x05half")
        with relay(pipes, tmp_path / "2.sock"):
            peer = Peer(tmp_path / "2.sock")
            assert peer.ping()
            wait_until(lambda: not alive(plain))
            assert alive(kept)


def test_another_guest_end_takes_over(pipes: Pipes, tmp_path: Path) -> None:
    """As after a reboot, or a state that was loaded: the host's connections are closed, new ones work."""
    with relay(pipes, tmp_path / "r.sock"):
        with agent(pipes, tmp_path) as inside:
            peer = Peer(tmp_path / "r.sock")
            assert peer.ping()
            inside.kill()
        os.write(pipes.agent_out, b"\x05half")
        with agent(pipes, tmp_path):
            assert peer.closed()
            assert Peer(tmp_path / "r.sock").ping()


def test_a_signal_begins_anew(pipes: Pipes, tmp_path: Path) -> None:
    with agent(pipes, tmp_path), relay(pipes, tmp_path / "r.sock") as outside:
        peer = Peer(tmp_path / "r.sock")
        outside.send_signal(signal.SIGHUP)
        assert peer.closed()
        assert Peer(tmp_path / "r.sock").ping()


def test_a_relay_that_connects_comes_back_when_its_guest_does(tmp_path: Path) -> None:
    """As with the socket of a virtual machine's port."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as port:
        port.bind(str(tmp_path / "port.sock"))
        port.listen(1)
        listener.bind(str(tmp_path / "r.sock"))
        listener.listen(64)
        config = {"connect": str(tmp_path / "port.sock"), "listen_fd": listener.fileno()}
        with started(config, listener.fileno(), mode=("relay",)):
            for _ in range(2):
                guest, _ = port.accept()
                with guest:
                    inside = {"in_fd": guest.fileno(), "out_fd": guest.fileno(), "workdir": str(tmp_path)}
                    with started(inside, guest.fileno()):
                        peer = Peer(tmp_path / "r.sock")
                        assert peer.ping()
                assert peer.closed()


def stuffed(data: bytes) -> bytes:
    """Consistent overhead byte stuffing, the slow way."""
    out = bytearray()
    for number, run in enumerate(runs := data.split(b"\0")):
        while len(run) >= 254:
            out += b"\xff" + run[:254]
            run = run[254:]
            if not run and number == len(runs) - 1:
                break
        else:
            out += bytes((len(run) + 1,)) + run
    return bytes(out) + b"\0"


def packet(generation: int, kind: int, link: int, data: bytes = b"") -> bytes:
    head = generation.to_bytes(8, "big") + bytes((kind,)) + link.to_bytes(4, "big") + len(data).to_bytes(4, "big")
    return b"\0" + stuffed(head + data)


class Guest:
    """The agent's end of a stream, by hand."""

    def __init__(self, pipes: Pipes) -> None:
        self.pipes, self.rest, self.generation = pipes, b"", 0
        self.whole: deque[bytes] = deque()

    def packets(self, *, within_s: float = 10) -> Iterator[tuple[int, int, int, bytes]]:
        while self.whole or select.select([self.pipes.agent_in], [], [], within_s)[0]:
            if not self.whole:
                *whole, self.rest = (self.rest + os.read(self.pipes.agent_in, 65536)).split(b"\0")
                self.whole.extend(filter(None, whole))
            while self.whole:
                each, data, at = self.whole.popleft(), b"", 0
                while at < len(each):
                    code = each[at]
                    data += each[at + 1 : at + code] + (b"\0" if code < 255 else b"")
                    at += code
                data = data.removesuffix(b"\0")
                head, body = data[:17].ljust(17, b"\0"), data[17:]
                yield int.from_bytes(head[:8], "big"), head[8], int.from_bytes(head[9:13], "big"), body

    def expect(self, wanted: int) -> tuple[int, bytes]:
        for generation, kind, link, body in self.packets():
            if kind == RESET:
                self.generation = generation
            if kind == wanted:
                return link, body
        raise AssertionError(f"no packet of kind {wanted}")

    def say(self, kind: int, link: int = 0, data: bytes = b"", *, generation: int | None = None) -> None:
        os.write(self.pipes.agent_out, packet(self.generation if generation is None else generation, kind, link, data))


def test_a_guest_that_lies_ends_its_own_links_at_most(pipes: Pipes, tmp_path: Path) -> None:
    guest = Guest(pipes)
    with relay(pipes, tmp_path / "r.sock") as outside:
        guest.expect(RESET)
        guest.say(READY)
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
            for each in (one, other):
                each.settimeout(10)
                each.connect(str(tmp_path / "r.sock"))
            first, second = guest.expect(OPEN)[0], guest.expect(OPEN)[0]
            guest.say(OPEN, 77)  # not the guest's to open
            guest.say(BYTES, 4711, b"for nobody")
            guest.say(BYTES, first, b"old", generation=guest.generation ^ 1)
            guest.say(99, first)
            os.write(pipes.agent_out, os.urandom(5000).replace(b"\0", b"\1") + b"\0")
            os.write(pipes.agent_out, b"\xff" * 100_000)  # longer than any packet
            guest.say(BYTES, first, b"fresh")
            assert one.recv(100) == b"fresh"
            guest.say(CREDIT, first, (1 << 30).to_bytes(4, "big"))  # more than a window
            assert one.recv(100) == b""
            for _ in range(40):  # more than was allowed ahead, to one who does not read
                guest.say(BYTES, second, bytes(32 * 1024))
            received = 0
            while piece := other.recv(65536):
                received += len(piece)
            assert received < 40 * 32 * 1024
        assert outside.poll() is None
        assert resident_bytes(outside.pid) < 8e6


def test_a_guest_that_never_answers_makes_connections_wait(pipes: Pipes, tmp_path: Path) -> None:
    with relay(pipes, tmp_path / "r.sock"), socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(tmp_path / "r.sock"))
        guest = Guest(pipes)
        guest.expect(RESET)
        guest.expect(RESET)  # said again
        guest.say(READY)
        assert guest.expect(OPEN)


def test_it_can_be_told_later_what_it_is(pipes: Pipes, tmp_path: Path) -> None:
    with agent(pipes, tmp_path, configure=True), relay(pipes, tmp_path / "r.sock"):
        peer = Peer(tmp_path / "r.sock")
        assert b"unconfigured" in Fields(peer.hello[2]).all(Key.FEATURES)
        peer.send(FrameKind.STAT, 1, field(Key.PATH, b"/"))
        assert peer.closed()
        peer = Peer(tmp_path / "r.sock")
        peer.send(FrameKind.CONFIGURE, 1, b'{"workdir": "relative"}')
        assert "absolute" in Fields(peer.until(FrameKind.ERROR, 1)).text(Key.MESSAGE)
        peer.send(FrameKind.CONFIGURE, 2, json.dumps({"env": {"MARK": "é\udcff"}}).encode())
        peer.until(FrameKind.DONE, 2)
        peer.start(3, "sh", "-c", 'printf "$MARK"')
        assert peer.until(FrameKind.STDOUT, 3) == b"\xc3\xa9\xff"


def test_nothing_wakes_up_while_nothing_happens(pipes: Pipes, tmp_path: Path) -> None:
    with agent(pipes, tmp_path) as inside, relay(pipes, tmp_path / "r.sock") as outside:
        assert Peer(tmp_path / "r.sock").ping()

        def switches(pid: int) -> int:
            text = Path(f"/proc/{pid}/status").read_text()
            return int(text.split("voluntary_ctxt_switches:")[1].split()[0])

        before = [switches(process.pid) for process in (inside, outside)]
        time.sleep(0.5)  # the time itself is what is measured
        after = [switches(process.pid) for process in (inside, outside)]
        assert all(late - early <= 2 for early, late in zip(before, after, strict=True))
