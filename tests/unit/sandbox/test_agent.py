"""The agent by itself, as a process of this machine, spoken to in raw frames."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent_peer import Peer, alive, opened, resident_bytes, running, wait_until

from ropewalk.sandbox import protocol
from ropewalk.sandbox.agent import program
from ropewalk.sandbox.protocol import ExecFlag, Fields, FileFlag, FrameKind, Key, field
from ropewalk.testing.unsandboxed import NAMESPACE, namespaces_work


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
    assert resident_bytes(own) < 10e6


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


def test_it_is_small(agent: Path) -> None:
    peer = Peer(agent)
    own = Fields(peer.hello[2]).number(Key.PID)
    for channel in range(1, 30):
        peer.start(channel, "true")
        peer.until(FrameKind.EXIT, channel)
    assert resident_bytes(own) <= 1 << 20
    assert program().stat().st_size <= 200_000 or "ROPEWALK_AGENT" in os.environ


def test_what_cannot_be_started_says_why_and_runs_nothing(agent: Path, tmp_path: Path) -> None:
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "lost").chmod(0o755)
    peer = Peer(agent)
    calls = [("no-such", 127, "not found"), ("/etc/passwd", 126, "denied"), ("./lost", 127, "interpreter")]
    for channel, (name, code, words) in enumerate(calls, start=1):
        peer.send(FrameKind.EXEC, channel, field(Key.ARGV, name.encode()))
        kind, _, payload = peer.receive()
        assert (kind, Fields(payload).number(Key.CODE)) == (FrameKind.EXIT, code)
        assert words in Fields(payload).text(Key.MESSAGE)


def test_its_configuration_is_not_for_everybody(agent: Path) -> None:
    own = Fields(Peer(agent).hello[2]).number(Key.PID)
    assert b"listen_fd" not in Path(f"/proc/{own}/cmdline").read_bytes()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"listen_fd": 3', '{"env": {"A": 1}}', '{"workdir": "x"}', '{"in_fd": 1}', "{}"]
)
def test_what_it_cannot_work_with_ends_it_with_a_reason(text: str) -> None:
    answer = subprocess.run([program(), text], capture_output=True, text=True, check=False, timeout=20)
    assert (answer.returncode, answer.stdout) == (64, "")
    assert answer.stderr.startswith("agent: it cannot start: ")


def test_nothing_is_left_of_many_commands(agent: Path) -> None:
    """10,000 by hand, with ROPEWALK_MANY_COMMANDS; descriptors, zombies and memory stay where they were."""
    peer = Peer(agent)
    own = Fields(peer.hello[2]).number(Key.PID)

    def state() -> tuple[int, int]:
        descriptors = len(list(Path(f"/proc/{own}/fd").iterdir()))
        return descriptors, len(Path(f"/proc/{own}/task/{own}/children").read_text().split())

    peer.start(1, "true")
    peer.until(FrameKind.EXIT, 1)
    before = state()
    words = b"".join(field(Key.ARGV, word) for word in (b"sh", b"-c", b"true & echo x"))
    count = int(os.environ.get("ROPEWALK_MANY_COMMANDS", "300"))
    for channel in range(2, count, 50):
        for each in range(channel, channel + 50):
            peer.send(FrameKind.EXEC, each, words + field(Key.CREDIT, 100) + field(Key.OUTPUT_MAX, 100))
        for _ in range(50):
            while peer.receive()[0] != FrameKind.EXIT:
                pass
    wait_until(lambda: state() == before)  # the last orphan may be a zombie for a moment
    assert resident_bytes(own) < 2e6


def test_two_hundred_commands_at_once(agent: Path) -> None:
    peer = Peer(agent)
    for channel in range(1, 201):
        words = field(Key.ARGV, b"sh") + field(Key.ARGV, b"-c") + field(Key.ARGV, b"read x; echo %d" % channel)
        limits = field(Key.CREDIT, 100) + field(Key.OUTPUT_MAX, 100) + field(Key.FLAGS, ExecFlag.STDIN)
        peer.send(FrameKind.EXEC, channel, words + limits)
    for channel in range(1, 201):
        peer.send(FrameKind.STDIN, channel, b"go\n")
    output, ends = {}, 0
    while ends < 200:
        kind, channel, payload = peer.receive()
        ends += kind == FrameKind.EXIT
        if kind == FrameKind.STDOUT:
            output[channel] = payload
    assert output == {channel: b"%d\n" % channel for channel in range(1, 201)}


def test_much_output_takes_little_memory(agent: Path) -> None:
    """1 GB by hand, with ROPEWALK_MUCH_OUTPUT."""
    total = int(os.environ.get("ROPEWALK_MUCH_OUTPUT", "60000000"))
    peer = Peer(agent)
    own = Fields(peer.hello[2]).number(Key.PID)
    peer.start(1, "head", "-c", str(total), "/dev/zero", cap=1 << 40)
    received = most = 0
    while (frame := peer.receive())[0] != FrameKind.EXIT:
        received += len(frame[2])
        peer.send(FrameKind.CREDIT, 1, field(Key.CREDIT, len(frame[2])))
        most = max(most, resident_bytes(own))
    assert received == total
    assert most < 4e6


def changes_of(payload: bytes) -> set[tuple[str, str]]:
    return {(Fields(entry).text(Key.KIND), Fields(entry).text(Key.PATH)) for entry in Fields(payload).all(Key.ENTRY)}


def gather(peer: Peer, wanted: set[tuple[str, str]]) -> None:
    """Reads changes until these have come."""
    while wanted:
        wanted -= changes_of(peer.until(FrameKind.CHANGES, 1))


def test_changes_of_a_folder_are_told(agent: Path, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("w")
    peer = Peer(agent)
    peer.send(FrameKind.WATCH, 1, field(Key.PATH, b"w") + field(Key.FLAGS, FileFlag.RECURSIVE))
    assert Fields(peer.until(FrameKind.WATCHING, 1)).number(Key.COUNT) == 2
    (folder / "inner" / "a").write_text("x")
    gather(peer, {("c", "w/inner/a"), ("m", "w/inner/a")})
    (folder / "new" / "deep").mkdir(parents=True)
    gather(peer, {("c", "w/new"), ("c", "w/new/deep")})
    (folder / "new" / "deep" / "b").write_text("x")
    gather(peer, {("c", "w/new/deep/b")})
    (folder / "new").rename(folder / "old")
    gather(peer, {("d", "w/new"), ("c", "w/old"), ("c", "w/old/deep")})
    (folder / "old" / "deep" / "b").unlink()
    gather(peer, {("d", "w/old/deep/b")})
    peer.send(FrameKind.CLOSE, 1)
    assert peer.ping()


def test_more_folders_than_may_be_watched_are_an_overflow(agent: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / "w" / name).mkdir(parents=True)
    peer = Peer(agent)
    bound = field(Key.ENTRIES_MAX, 3) + field(Key.FLAGS, FileFlag.RECURSIVE)
    peer.send(FrameKind.WATCH, 1, field(Key.PATH, b"w") + bound)
    watching = Fields(peer.until(FrameKind.WATCHING, 1))
    assert (watching.number(Key.COUNT), watching.number(Key.FLAGS)) == (3, 1)
    peer.send(FrameKind.WATCH, 2, field(Key.PATH, b"no/such"))
    assert Fields(peer.until(FrameKind.ERROR, 2)).text(Key.ERRNO) == "ENOENT"


def test_quiescing_answers_and_lets_go_of_every_connection(agent: Path) -> None:
    peer, other = Peer(agent), Peer(agent)
    kept = peer.start(1, "sleep", "100", flags=ExecFlag.DETACH)
    peer.send(FrameKind.QUIESCE, 2)
    assert Fields(peer.until(FrameKind.DONE, 2)).number(Key.COUNT) == 2
    assert peer.closed() and other.closed() and alive(kept)
    assert Peer(agent).ping()


@pytest.mark.skipif(not namespaces_work(), reason="this machine allows no process namespaces")
def test_a_machines_first_process_mounts_counts_and_turns_off(tmp_path: Path) -> None:
    """In a process namespace, where turning off is the end of its first process alone (reboot(2))."""
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        config = json.dumps({"listen_fd": listener.fileno(), "idle_timeout_s": 0.2, "init": True, "workdir": "/"})
        process = subprocess.Popen([*NAMESPACE, program(), config], pass_fds=[listener.fileno()])
    peer = Peer(path)
    assert b"first" in Fields(peer.hello[2]).all(Key.FEATURES)
    peer.send(FrameKind.STATS, 1)
    stats = Fields(peer.until(FrameKind.DONE, 1))
    assert stats.number(Key.MEMORY_TOTAL) > stats.number(Key.MEMORY_BYTES) > 0
    mounted = " && ".join(f"mountpoint -q {place}" for place in ("/proc", "/dev", "/dev/pts", "/run", "/tmp"))
    peer.start(2, "sh", "-c", f"(sleep 0.01 &); {mounted} && echo all")
    assert peer.until(FrameKind.STDOUT, 2) == b"all\n"
    peer.socket.close()
    process.wait(10)


def test_turning_off_is_for_process_1(tmp_path: Path) -> None:
    answer = subprocess.run([program(), '{"init": true, "listen_fd": 0}'], capture_output=True, text=True, check=False)
    assert answer.returncode == 64 and "process 1" in answer.stderr
