"""The handle, above the real agent as process 1 of a process namespace, without any other isolation."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pty
import signal
import socket
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import ByteStream, UNIXSocketStream

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, DeniedError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.sandbox import (
    DiskFullError,
    ExecResult,
    FileError,
    Process,
    Sandbox,
    Sandboxes,
    SandboxGoneError,
    TerminalSize,
    connection,
    process,
    silence,
)
from ropewalk.sandbox.attach import attach
from ropewalk.sandbox.contract import Held
from ropewalk.sandbox.protocol import VERSION, WINDOW_BYTES, FrameKind, Key, field
from ropewalk.testing.unsandboxed import UnsandboxedDriver, namespaces_work, unsandboxed_service, unsandboxed_spec

pytestmark = pytest.mark.skipif(not namespaces_work(), reason="this machine allows no process namespaces")

DAEMON = """
import os, signal, sys, time
print("started", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execve("/bin/sleep", ["sleep", "4321"], {})
    os._exit(0)
time.sleep(1000)
"""


@pytest.fixture
def service(tmp_path: Path) -> Sandboxes:
    return unsandboxed_service(tmp_path)


@pytest.fixture
async def sandbox(service: Sandboxes) -> AsyncIterator[Sandbox]:
    async with await service.create(unsandboxed_spec(env={"OWN": "é"})) as made:
        yield made


async def commands(sandbox: Sandbox) -> str:
    """All command lines inside."""
    return (await sandbox.exec("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null")).stdout


async def test_a_command_and_its_result(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.signal) == ("out\n", "err\n", 3, None)
    assert (result.stdout_bytes, result.stderr_bytes, result.truncated, result.ok) == (4, 4, False, False)
    assert result.termination is Termination.FINISHED
    assert 0 < result.duration_s < 30
    assert (await sandbox.exec(["true"])).ok


async def test_words_are_not_a_shell_line(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["echo", "$HOME; *"])).stdout == "$HOME; *\n"


async def test_variables_and_folders(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo $OWN $MINE $HOME $USER $LANG $TMPDIR; pwd", cwd="/tmp", env={"MINE": "2"})
    assert result.stdout == f"é 2 {Path('/root')} root C.UTF-8 /tmp\n/tmp\n"
    assert (await sandbox.exec("pwd")).stdout.endswith(sandbox.id.partition(":")[2] + "\n")
    await sandbox.write("below/x", "")
    assert (await sandbox.exec("pwd", cwd="below")).stdout.endswith("/below\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users to become")
async def test_another_user(sandbox: Sandbox) -> None:
    result = await sandbox.exec("id -u; id -g; echo $USER $HOME", user="nobody", cwd="/")
    assert result.stdout.split()[:3] == ["65534", "65534", "nobody"]
    assert (await sandbox.exec("id -u", user="4242", cwd="/")).stdout == "4242\n"
    assert (await sandbox.exec("kill -9 1; echo $?; cat /proc/1/environ", user="4242", cwd="/")).stdout == "1\n"
    assert (await sandbox.exec(["/no/such"], user="4242")).exit_code == 127


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ({"command": ["no-such-program"]}, 127, "not found"),
        ({"command": ["/etc/passwd"]}, 126, "Permission denied"),
        ({"command": ["/"]}, 126, "Permission denied"),
        ({"command": ["true"], "cwd": "/no/such"}, 126, "/no/such"),
        ({"command": ["true"], "user": "nosuch"}, 126, "nosuch"),
        ({"command": ["./script"]}, 127, "interpreter"),
    ],
)
async def test_what_cannot_be_started_is_a_result(
    sandbox: Sandbox, call: dict[str, object], code: int, words: str
) -> None:
    await sandbox.write("script", "#!/no/such/interpreter\n", mode=0o755)
    result = await sandbox.exec(**call)  # type: ignore[arg-type]
    assert (result.exit_code, result.ok) == (code, False)
    assert words in result.stderr
    assert result.start_error == result.stderr.strip()


@pytest.mark.parametrize(
    "call",
    [
        {"command": []},
        {"command": [""]},
        {"command": "a\0b"},
        {"command": "x", "env": {"A=B": "c"}},
        {"command": "x", "timeout_s": 0},
        {"command": "x", "output_bytes_max": -1},
        {"command": ["x"] * 300_000},
    ],
)
async def test_what_no_command_can_be_is_refused(sandbox: Sandbox, call: dict[str, object]) -> None:
    with pytest.raises(CallerError):
        await sandbox.exec(**call)  # type: ignore[arg-type]
    assert (await sandbox.exec("true")).ok


@pytest.mark.parametrize("size", [1, WINDOW_BYTES, 3 * WINDOW_BYTES + 17])
async def test_input(sandbox: Sandbox, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    result = await sandbox.exec("sha256sum", stdin=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


async def test_input_that_nobody_reads_is_no_problem(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("exec <&-; echo done", stdin=bytes(5_000_000))).stdout == "done\n"
    assert (await sandbox.exec("cat")).ok  # no input is the end of input


async def test_a_gigabyte_of_output_is_bounded(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 1000000000 /dev/zero; echo end >&2", output_bytes_max=1000)
    assert (result.stdout, result.stdout_bytes, result.truncated) == ("\0" * 1000, 1_000_000_000, True)
    assert (result.stderr, result.ok) == ("end\n", True)


async def test_a_time_limit_ends_the_whole_tree_and_keeps_the_output(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["python3", "-c", DAEMON], timeout_s=1.5)
    assert (result.stdout, result.termination, result.ok) == ("started\n", Termination.TIMEOUT, False)
    assert "4321" not in await commands(sandbox)


async def test_what_a_command_leaves_behind_ends_with_it(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["python3", "-c", DAEMON.replace("time.sleep(1000)", "")])).ok
    assert "4321" not in await commands(sandbox)


async def test_what_a_detached_command_leaves_behind_lives_on(sandbox: Sandbox) -> None:
    result = await sandbox.exec("(while sleep 0.01; do echo x; done) & sleep 4321 & echo started", detach=True)
    assert result.stdout.startswith("started")
    assert "4321" in await commands(sandbox)
    other = await sandbox.exec("sleep 999 & true")  # whose own leftovers end, without touching the first one's
    assert other.ok
    listed = await commands(sandbox)
    assert "4321" in listed
    assert "999" not in listed
    assert (await sandbox.exec("sleep 5432 & sleep 1000", detach=True, timeout_s=0.2)).termination == "timeout"
    listed = await commands(sandbox)
    assert "4321" in listed
    assert "5432" not in listed


async def test_cancelling_ends_the_whole_tree(sandbox: Sandbox) -> None:
    with anyio.move_on_after(0.3) as scope:
        await sandbox.exec("sleep 4321 & sleep 4321")
    assert scope.cancelled_caught
    assert "4321" not in await commands(sandbox)


async def test_zombies_are_reaped(sandbox: Sandbox) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'exit 0' & exec true) & done; sleep 0.2; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"  # noqa: E501
    assert (await sandbox.exec(script, detach=True)).stdout.strip() == "0"


async def test_orphans_count_for_their_command(sandbox: Sandbox) -> None:
    await sandbox.write("burn.py", "import time\nwhile time.process_time() < 0.3: pass\nopen('over', 'w')")
    result = await sandbox.exec("(python3 burn.py &); until [ -e over ]; do sleep 0.02; done; sleep 0.1")
    assert result.cpu_s > 0.25


async def test_two_hundred_at_once(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.exec(f"echo {at}; sleep 0.1; exit {at}") for at in range(200)))
    assert [(result.stdout, result.exit_code) for result in results] == [(f"{at}\n", at) for at in range(200)]


async def test_one_that_floods_or_waits_holds_up_no_other(sandbox: Sandbox) -> None:
    async with await sandbox.start("yes", output_bytes_max=1 << 40) as flood, await sandbox.start("yes") as unread:
        async for _ in flood:
            break
        start = time.monotonic()
        assert (await sandbox.exec("echo through")).stdout == "through\n"
        assert time.monotonic() - start < 5
        assert unread.pid
    assert "yes" not in await commands(sandbox)


async def test_talking_to_a_command(sandbox: Sandbox) -> None:
    async with await sandbox.start(["cat"], stdin=True) as process:
        for word in ("one", "two"):
            await process.send(word)
            async for chunk in process:
                assert chunk == ("stdout", word.encode())
                break
        await process.send_eof()
        result = await process.wait()
    assert (result.exit_code, result.stdout, result.stdout_bytes) == (0, "", 6)


async def test_both_outputs_and_what_was_not_read(sandbox: Sandbox) -> None:
    process = await sandbox.start("echo a; echo b >&2")
    result = await process.wait()
    assert (result.stdout, result.stderr) == ("a\n", "b\n")
    assert await process.wait() is result


async def test_output_is_held_back_while_nobody_reads_it(sandbox: Sandbox) -> None:
    process = await sandbox.start("head -c 3000000 /dev/zero; echo over >written")
    await asyncio.sleep(0.2)
    assert not await sandbox.exists("written")
    result = await process.wait()
    assert len(result.stdout) == 3_000_000


async def test_signals(sandbox: Sandbox) -> None:
    async with await sandbox.start("trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.01; done") as process:
        async for _ in process:
            break
        process.signal(signal.SIGUSR1)
        result = await process.wait()
    assert (result.stdout, result.exit_code) == ("got\n", 7)
    process = await sandbox.start("sleep 100")
    await process.kill()
    await process.kill()
    killed = await process.wait()
    assert (killed.signal, killed.exit_code, killed.termination) == (9, None, Termination.FINISHED)


async def test_input_needs_to_be_asked_for(sandbox: Sandbox) -> None:
    async with await sandbox.start("sleep 9") as process:
        with pytest.raises(CallerError):
            await process.send("x")
        with pytest.raises(CallerError):
            process.signal(0)


async def test_a_terminal(sandbox: Sandbox) -> None:
    seen = ""
    async with await sandbox.start(["sh"], pty=TerminalSize(33, 99), env={"PS1": "> "}) as process:

        async def until(text: str) -> None:
            nonlocal seen
            async for chunk in process:
                seen += chunk.data.decode()
                if text in seen:
                    return

        # The quotes tell what it says from the echo of what was typed.
        await process.send("stty size; tty -s && echo term; trap 'stty size' WINCH; echo s''et\n")
        await until("set\r\n")
        process.resize(TerminalSize(44, 88))
        await process.send(":\n")
        await until("44 88\r\n")
        await process.send("exit 5\n")
        result = await process.wait()
    assert result.exit_code == 5
    assert "33 99\r\n" in seen and "term\r\n" in seen and "44 88\r\n" in seen


async def test_interrupting_in_a_terminal(sandbox: Sandbox) -> None:
    async with await sandbox.start(["cat"], pty=TerminalSize()) as process:
        await process.send("x\n")
        async for _ in process:
            break
        await process.send(b"\x03")
        assert (await process.wait()).signal == signal.SIGINT
    async with await sandbox.start(["cat"], pty=TerminalSize()) as process:
        await process.send_eof()
        assert (await process.wait()).exit_code == 0


async def test_a_persons_terminal_is_passed_through_and_put_back(sandbox: Sandbox) -> None:
    person, terminal = pty.openpty()
    try:
        before = termios.tcgetattr(terminal)
        termios.tcsetwinsize(person, (20, 70))
        task = asyncio.create_task(attach(sandbox, ["sh"], input_fd=terminal, output_fd=terminal))
        os.write(person, b"stty size\n")
        seen = b""
        while b"20 70" not in seen:
            await anyio.wait_readable(person)
            seen += os.read(person, 4096)
        termios.tcsetwinsize(person, (30, 90))
        os.kill(os.getpid(), signal.SIGWINCH)
        await asyncio.sleep(0.1)
        os.write(person, b"stty size; exit 4\n")
        result = await task
        assert result.exit_code == 4
        while b"30 90" not in seen:
            await anyio.wait_readable(person)
            seen += os.read(person, 4096)
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(person)
        os.close(terminal)


async def test_files_come_back_as_they_were_written(sandbox: Sandbox) -> None:
    await sandbox.write("a/b/c.bin", bytes(range(256)), mode=0o640)
    await sandbox.write_many({"d": "é", "e": b""})
    assert await sandbox.read("a/b/c.bin") == bytes(range(256))
    assert await sandbox.read("a/b/c.bin", offset=250) == bytes(range(250, 256))
    assert await sandbox.read_many(["d", "e", "d"]) == {"d": "é".encode(), "e": b""}
    assert (await sandbox.stat("a/b/c.bin")).mode == 0o640
    assert (await sandbox.read("/proc/self/status")).startswith(b"Name:")  # has no size, and is read to its end


async def test_large_files_go_in_and_out_in_pieces(sandbox: Sandbox, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(10_000_019))
    await sandbox.upload(source, "big")
    assert await sandbox.download("big", back) == 10_000_019
    assert back.read_bytes() == source.read_bytes()
    with pytest.raises(FileError) as raised:
        await sandbox.download("big", tmp_path / "none", bytes_max=100)
    assert raised.value.code == "EFBIG"
    assert sorted(path.name for path in tmp_path.glob("*") if path.is_file()) == ["back", "source"]


@pytest.mark.parametrize(("data_class", "leaves"), [("internal", True), ("restricted", False), ("unheard-of", False)])
async def test_a_file_leaves_where_the_class_of_its_sandbox_allows_it(
    service: Sandboxes, tmp_path: Path, data_class: str, leaves: bool
) -> None:
    async with await service.create(unsandboxed_spec()) as made:
        spec = msgspec.structs.replace(made.record.spec, data_class=data_class)
        made.record = msgspec.structs.replace(made.record, spec=spec)
        await made.write("x", "secret")
        if leaves:
            assert await made.download("x", tmp_path / "out") == 6
        else:
            with pytest.raises(DeniedError) as denied:
                await made.download("x", tmp_path / "out")
            assert denied.value.rule == f"data_class:{data_class}:export" and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("path", "code"),
    [("none", "ENOENT"), ("folder", "EISDIR"), ("fifo", "EINVAL"), ("big", "EFBIG"), ("d/x", "ENOTDIR")],
)
async def test_what_cannot_be_read(sandbox: Sandbox, path: str, code: str) -> None:
    await sandbox.exec("mkdir folder; mkfifo fifo; head -c 2000 /dev/zero >big; echo d >d")
    with pytest.raises(FileError) as raised:
        await sandbox.read(path, bytes_max=1000)
    assert raised.value.code == code
    with pytest.raises(FileError):
        await sandbox.read_many(["d", path], bytes_max=1000)


async def test_links_are_followed_only_where_allowed(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir real; echo secret >real/file; ln -s real/file link; ln -s real folder")
    assert await sandbox.read("link") == await sandbox.read("folder/file") == b"secret\n"
    for path in ("link", "folder/file"):
        with pytest.raises(FileError):
            await sandbox.read(path, follow=False)
    assert await sandbox.read("real/file", follow=False) == b"secret\n"
    entries = {entry.path: entry.kind for entry in await sandbox.list(recursive=True)}
    assert entries == {"folder": "link", "link": "link", "real": "directory", "real/file": "file"}
    await sandbox.write("link", "new")  # replaced
    assert await sandbox.read("real/file") == b"secret\n"
    await sandbox.remove("folder", recursive=True)
    assert await sandbox.exists("real/file")


async def test_listing(sandbox: Sandbox) -> None:
    await sandbox.write_many({f"many/{at:04}": str(at) for at in range(1000)})
    entries = await sandbox.list("many", digests=True)
    assert [entry.path for entry in entries] == [f"many/{at:04}" for at in range(1000)]
    assert entries[7].sha256 == hashlib.sha256(b"7").hexdigest()
    assert [entry.path for entry in await sandbox.list()] == ["many"]
    with pytest.raises(FileError) as raised:
        await sandbox.list("many", entries_max=999)
    assert raised.value.code == "EOVERFLOW"
    with pytest.raises(FileError):
        await sandbox.list("many/0001")
    assert await sandbox.exec("mkdir -p deep/$(seq -s/ 250)")
    with pytest.raises(FileError) as raised:
        await sandbox.list("deep", recursive=True)
    assert raised.value.code == "EOVERFLOW"


async def test_removing(sandbox: Sandbox) -> None:
    await sandbox.write("a/b/c", "")
    with pytest.raises(FileError) as raised:
        await sandbox.remove("a")
    assert raised.value.code == "ENOTEMPTY"
    await sandbox.remove("a", recursive=True)
    assert not await sandbox.exists("a")
    with pytest.raises(FileError) as raised:
        await sandbox.remove("a")
    assert raised.value.code == "ENOENT"


async def test_downloads_to_one_place_do_not_meet_and_long_names_are_names(sandbox: Sandbox, tmp_path: Path) -> None:
    place = tmp_path / "d" / ("n" * 255)
    place.parent.mkdir()
    for number in range(4):
        await sandbox.write(str(number), bytes([number]) * 5_000_000)
    await asyncio.gather(*(sandbox.download(str(number), place) for number in range(4)))
    data = place.read_bytes()
    assert len(data) == 5_000_000 and len(set(data)) == 1
    assert list(place.parent.iterdir()) == [place]
    with pytest.raises(FileError):
        await sandbox.download("missing", place)
    assert list(place.parent.iterdir()) == [place] and place.read_bytes() == data


async def test_what_cannot_be_uploaded_is_the_callers_fault_and_waits_for_nobody(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "none", tmp_path, Path("/dev/zero")):
        with anyio.fail_after(10), pytest.raises(CallerError):
            await sandbox.upload(path, "x")
    assert not await sandbox.exists("x")


async def test_an_upload_that_breaks_off_leaves_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(200_000_000))
    with anyio.move_on_after(0.05) as patience:
        await sandbox.upload(tmp_path / "big", "big")
    assert patience.cancelled_caught
    assert (await sandbox.exec(["true"])).ok
    assert await sandbox.list() == ()


async def test_what_cannot_be_written(sandbox: Sandbox) -> None:
    await sandbox.write("file", "old")
    for path, code in (("file/below", "ENOTDIR"), (".", "EISDIR"), ("/dev/null", "EEXIST"), ("/proc/x", "ENOENT")):
        with pytest.raises(FileError) as raised:
            await sandbox.write_many({"first": "1", path: "2", "third": "3"})
        assert raised.value.code == code, path
    assert await sandbox.read("first") == b"1"
    assert not await sandbox.exists("third")
    assert {entry.path for entry in await sandbox.list()} == {"file", "first"}
    for path in ("", "a\0b"):
        with pytest.raises(CallerError):
            await sandbox.write(path, "x")


async def test_a_full_disk_is_its_own_error(sandbox: Sandbox) -> None:
    if not (await sandbox.exec("mkdir m && mount -t tmpfs -o size=64k none m")).ok:
        pytest.skip("no mounting here")
    with pytest.raises(DiskFullError):
        await sandbox.write("m/file", bytes(1_000_000))
    assert await sandbox.list("m") == ()
    await sandbox.exec("umount m")


async def test_a_kill_for_memory_is_told_from_another(sandbox: Sandbox, service: Sandboxes) -> None:
    assert isinstance(service.driver, UnsandboxedDriver)
    assert (await sandbox.exec("kill -9 $$")).termination is Termination.FINISHED
    service.driver.out_of_memory_kills += 1
    assert (await sandbox.exec("kill -9 $$")).termination is Termination.OUT_OF_MEMORY
    assert (await sandbox.exec("sh -c 'kill -9 $$'; exit 137")).termination is Termination.FINISHED  # the old one


async def test_an_earlier_kill_for_memory_is_none_of_a_later_handles_business(
    sandbox: Sandbox, service: Sandboxes
) -> None:
    assert isinstance(service.driver, UnsandboxedDriver)
    service.driver.out_of_memory_kills = 3
    other = await service.open(sandbox.id)
    assert (await other.exec("kill -9 $$")).termination is Termination.FINISHED
    service.driver.out_of_memory_kills += 1
    assert (await other.exec("kill -9 $$")).termination is Termination.OUT_OF_MEMORY
    await other.disconnect()
    assert (await other.exec("kill -9 $$")).termination is Termination.FINISHED
    await other.disconnect()


@pytest.mark.parametrize("kills", [0, 1])
async def test_the_death_of_a_sandbox_is_an_exception_for_all_who_wait(
    sandbox: Sandbox, service: Sandboxes, kills: int
) -> None:
    assert isinstance(service.driver, UnsandboxedDriver)
    process = await sandbox.start("sleep 100")
    waiting = [asyncio.create_task(sandbox.exec("sleep 100")) for _ in range(3)] + [asyncio.create_task(process.wait())]
    await sandbox.exec("true")
    service.driver.out_of_memory_kills += kills
    service.driver.process(sandbox.id).kill()
    expected = Termination.OUT_OF_MEMORY if kills else Termination.INFRASTRUCTURE
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, SandboxGoneError)
        assert result.termination is expected
        assert sandbox.id in str(result)
    with pytest.raises(SandboxGoneError):
        await sandbox.exec("true")
    with pytest.raises(SandboxGoneError):
        await sandbox.read("x")


async def test_closing_is_idempotent_and_final(sandbox: Sandbox) -> None:
    await sandbox.exec("true")
    pending = asyncio.create_task(sandbox.exec("sleep 100"))
    await asyncio.sleep(0.05)
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxGoneError):
        await pending
    with pytest.raises(SandboxGoneError) as raised:
        await sandbox.exec("true")
    assert raised.value.termination is Termination.EVICTED


async def test_a_lost_connection_is_made_again(sandbox: Sandbox) -> None:
    await sandbox.exec("sleep 4321 & true", detach=True)
    await sandbox.disconnect()
    assert "4321" in await commands(sandbox)


def driver_of(sandbox: Sandbox) -> UnsandboxedDriver:
    driver = sandbox._driver
    assert isinstance(driver, UnsandboxedDriver)
    return driver


@pytest.fixture
async def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Sandbox, Callable[[], None]]]:
    """A sandbox, and how to stop its agent for good, as code beside it could by starving it."""
    for module, name in (
        (limits, "EXEC_KILL_WAIT_S"), (limits, "EXEC_START_WAIT_S"), (limits, "FILE_CALL_TIMEOUT_S"),
        (process, "LAST_CHANCE_S"), (connection, "HELLO_TIMEOUT_S"), (silence, "SECOND_LOOK_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.3)
    service = unsandboxed_service(tmp_path, prefix=())
    driver = service.driver
    assert isinstance(driver, UnsandboxedDriver)
    async with await service.create(unsandboxed_spec()) as sandbox:
        await sandbox.exec(["true"])
        yield sandbox, lambda: driver.process(sandbox.id).send_signal(signal.SIGSTOP)


async def test_a_starved_agents_time_limit_is_kept_from_outside(stopped: tuple[Sandbox, Callable[[], None]]) -> None:
    sandbox, stop = stopped
    stop()
    start = time.monotonic()
    result = await sandbox.exec("sleep 100", timeout_s=0.2)
    assert time.monotonic() - start < 5
    assert (result.termination, result.signal, result.ok) == (Termination.TIMEOUT, signal.SIGKILL, False)
    for call in (lambda: sandbox.exec(["true"]), lambda: sandbox.read("x")):
        with pytest.raises(SandboxGoneError) as caught:
            await call()
        assert not caught.value.termination.ours


CALLS: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
    "read": lambda sandbox: sandbox.read("x"),
    "read many": lambda sandbox: sandbox.read_many(["x", "y"]),
    "write": lambda sandbox: sandbox.write("x", b"1"),
    "write much": lambda sandbox: sandbox.write("x", bytes(8 << 20)),
    "list": lambda sandbox: sandbox.list(),
    "stat": lambda sandbox: sandbox.stat("x"),
    "remove": lambda sandbox: sandbox.remove("x"),
    "start": lambda sandbox: sandbox.start("sleep 100"),
    "much input": lambda sandbox: sandbox.exec("sleep 100", stdin=bytes(8 << 20), timeout_s=0.2),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("again", [False, True], ids=["connected", "connects again"])
async def test_no_call_waits_for_ever_for_an_agent_that_says_nothing(
    stopped: tuple[Sandbox, Callable[[], None]], call: Callable[[Sandbox], Awaitable[object]], again: bool
) -> None:
    sandbox, stop = stopped
    if again:
        await sandbox.disconnect()
    stop()
    with anyio.fail_after(10):
        try:
            result = await call(sandbox)
        except SandboxGoneError as error:
            ended = error.termination
        else:
            assert isinstance(result, ExecResult)
            ended = result.termination
    assert ended is Termination.TIMEOUT


def busy(per_s: float) -> Callable[[], dict[str, Any]]:
    """Figures of a sandbox in which so much CPU time is used a second."""
    return lambda: {"cpu_s": per_s * time.monotonic()}


SOME_CALLS = {name: CALLS[name] for name in ("read", "start", "much input")}
BLAME: dict[str, tuple[Callable[[], dict[str, Any]], Termination]] = {
    "code inside is busy": (busy(0.5), Termination.TIMEOUT),
    "nothing inside could run": (busy(0.001), Termination.INFRASTRUCTURE),
    "it was stopped from outside": (lambda: {**busy(0.5)(), "held": Held.STOPPED}, Termination.INFRASTRUCTURE),
}


@pytest.mark.parametrize("call", SOME_CALLS.values(), ids=SOME_CALLS)
@pytest.mark.parametrize(("figures", "expected"), BLAME.values(), ids=BLAME)
async def test_who_is_blamed_for_silence(
    stopped: tuple[Sandbox, Callable[[], None]], call: Callable[[Sandbox], Awaitable[object]],
    figures: Callable[[], dict[str, Any]], expected: Termination,
) -> None:  # fmt: skip
    sandbox, stop = stopped
    driver_of(sandbox).figures = figures
    stop()
    with anyio.fail_after(10):
        try:
            result = await call(sandbox)
        except SandboxGoneError as error:
            assert error.termination is expected
            assert error.silence is not None and error.silence.cpu_s is not None
        else:
            assert isinstance(result, ExecResult)
            assert expected is Termination.TIMEOUT is result.termination
            assert result.cpu_s > 0
    assert await driver_of(sandbox).record(sandbox.id) is None


@pytest.mark.parametrize("call", SOME_CALLS.values(), ids=SOME_CALLS)
@pytest.mark.parametrize("again", [False, True], ids=["connected", "connects again"])
async def test_a_sandbox_that_is_being_saved_owes_no_answer(
    stopped: tuple[Sandbox, Callable[[], None]], call: Callable[[Sandbox], Awaitable[object]], again: bool
) -> None:
    """However long it takes; then the clock starts anew."""
    sandbox, stop = stopped
    if again:
        await sandbox.disconnect()
    stop()
    looks = 0

    def figures() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        if looks == 4:
            driver.process(sandbox.id).send_signal(signal.SIGCONT)
            driver.figures = lambda: {"cpu_s": 1.0}
        return {"cpu_s": 1.0, "held": Held.SAVED}

    driver = driver_of(sandbox)
    driver.figures = figures
    with anyio.fail_after(10):
        try:
            running = await call(sandbox)
            if isinstance(running, process.Process):
                await running.kill()
        except FileError as error:
            assert error.code == "ENOENT"  # an answer like any other
    assert looks == 4
    assert (await sandbox.exec("echo on")).stdout == "on\n"


async def test_an_answer_that_comes_late_counts(stopped: tuple[Sandbox, Callable[[], None]]) -> None:
    sandbox, stop = stopped
    stop()
    driver = driver_of(sandbox)

    def figures() -> dict[str, Any]:
        driver.process(sandbox.id).send_signal(signal.SIGCONT)
        return {"cpu_s": 0.0}

    driver.figures = figures
    await sandbox.write("late", "1")
    assert await sandbox.read("late") == b"1"


async def test_a_kill_by_the_machine_is_nobodys_inside(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("kill -9 $$")).termination is Termination.FINISHED
    driver_of(sandbox).figures = lambda: {"machine_kills": 1}
    assert (await sandbox.exec("kill -9 $$")).termination is Termination.INFRASTRUCTURE
    assert (await sandbox.exec("kill -9 $$")).termination is Termination.FINISHED  # that was the old one
    driver_of(sandbox).out_of_memory_kills += 1
    driver_of(sandbox).figures = lambda: {"machine_kills": 2}
    assert (await sandbox.exec("kill -9 $$")).termination is Termination.OUT_OF_MEMORY


async def test_output_that_never_ends_to_come_is_not_waited_for(stopped: tuple[Sandbox, Callable[[], None]]) -> None:
    sandbox, stop = stopped
    running = await sandbox.start("echo one; sleep 100", timeout_s=0.5)
    with anyio.fail_after(10), pytest.raises(SandboxGoneError) as caught:
        async for chunk in running:
            assert chunk.data == b"one\n"
            stop()
    assert caught.value.termination is Termination.TIMEOUT


def frame(kind: int, payload: bytes = b"", *, channel: int = 1) -> bytes:
    return len(payload).to_bytes(4, "big") + bytes((kind,)) + channel.to_bytes(4, "big") + payload


NONSENSE = {
    "a frame too long": (1 << 30).to_bytes(4, "big") + bytes((FrameKind.DONE, 0, 0, 0, 1)),
    "a request": frame(FrameKind.EXEC),
    "half a field": frame(FrameKind.ERROR, b"\x20"),
    "an answer to something else": frame(FrameKind.PONG),
    "a short number": frame(FrameKind.ENTRIES, field(Key.ENTRY, field(Key.SIZE, b"1"))) + frame(FrameKind.DONE),
    "nothing at all": frame(FrameKind.DONE),
    "no such version": frame(FrameKind.HELLO, field(Key.VERSION, 9), channel=0),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_of_an_agent_is_put_down_to_what_runs_beside_it(
    sandbox: Sandbox, service: Sandboxes, monkeypatch: pytest.MonkeyPatch, nonsense: bytes
) -> None:
    """Code that is about to lose may take its agent over: that must not call the game off."""
    ours, theirs = socket.socketpair()

    async def stream(id: str) -> ByteStream:
        return await UNIXSocketStream.from_socket(ours)

    monkeypatch.setattr(service.driver, "stream", stream)
    with theirs:
        theirs.sendall(frame(FrameKind.HELLO, field(Key.VERSION, VERSION), channel=0))
        asked = asyncio.create_task(sandbox.stat("x"))
        await anyio.wait_readable(theirs)
        theirs.sendall(nonsense)
        with pytest.raises(SandboxGoneError) as caught:
            await asked
    assert not caught.value.termination.ours


async def test_a_cancelled_start_leaves_no_command(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Process) -> None:
        await anyio.sleep_forever()

    await sandbox.exec(["true"])
    with monkeypatch.context() as patch:
        patch.setattr(Process, "started", never)
        with anyio.move_on_after(0.1):
            await sandbox.start(["sleep", "4321"])
    assert "4321" not in await commands(sandbox)


async def test_a_cancelled_connection_leaves_no_task(stopped: tuple[Sandbox, Callable[[], None]]) -> None:
    sandbox, stop = stopped
    await sandbox.disconnect()
    before = len(asyncio.all_tasks())
    stop()
    with anyio.move_on_after(0.05):
        await sandbox.exec(["true"])
    assert len(asyncio.all_tasks()) == before


async def test_whatever_ends_the_reader_ends_every_wait(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = await sandbox.start("sleep 100")

    def broken(self: Process, kind: int, payload: bytes) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(Process, "frame", broken)
    waiting.signal(signal.SIGTERM)
    with anyio.fail_after(5), pytest.raises(SandboxGoneError, match="a fault of ours"):
        await waiting.wait()


async def test_all_forks_are_closed_though_one_cannot_be(service: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    async def destroy(id: str) -> None:
        closed.append(id)
        first = len(closed) == 1
        await service.driver.destroy(id)
        if first:
            raise UnavailableError("the machine is on fire")

    async with await service.create(unsandboxed_spec()) as made:
        snapshot = await made.snapshot()
        with monkeypatch.context() as patch:
            patch.setattr(service, "destroy", destroy)
            with pytest.raises(UnavailableError, match="fire"):
                async with snapshot.fork(3):
                    pass
        assert len(closed) == 3
