"""A sandbox as its user meets it: the real driver, the real agent, the default image."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from ropewalk.core.outcomes import Termination
from ropewalk.sandbox import Lease, Sandbox, Sandboxes, SandboxGoneError, TerminalSize
from ropewalk.testing.sandbox import SandboxWorld
from tests.processworld import process_world


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    with process_world(tmp_path / "state", tmp_path_factory.getbasetemp().parent / "ropewalk-shared") as made:
        if problems := () if (probe := made.driver.probe()).usable else probe.problems:
            pytest.skip(f"no process sandboxes here: {'; '.join(problems)}")
        yield made


@pytest.fixture
def service(world: SandboxWorld) -> Sandboxes:
    return world.sandboxes


@pytest.fixture
async def sandbox(world: SandboxWorld) -> AsyncIterator[Sandbox]:
    async with await world.make(env={"OWN": "1"}, processes_max=256, disk_bytes=128 << 20) as made:
        yield made


async def processes(sandbox: Sandbox) -> str:
    return (await sandbox.exec("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null")).stdout


async def test_the_everyday(sandbox: Sandbox) -> None:
    await sandbox.write("src/a.py", "import os\nprint(os.getcwd(), os.environ['OWN'], os.environ['MINE'], input())\n")
    result = await sandbox.exec("python3 src/a.py", env={"MINE": "2"}, stdin="hello")
    assert (result.stdout, result.stderr, result.ok) == ("/work 1 2 hello\n", "", True)
    async with await sandbox.start("read x; echo got $x; read y", stdin=True) as process:
        await process.send("one\n")
        async for chunk in process:
            assert chunk == ("stdout", b"got one\n")
            break
    assert {entry.path for entry in await sandbox.list(recursive=True)} >= {"src", "src/a.py"}


async def test_root_and_other_users_inside(sandbox: Sandbox, service: Sandboxes) -> None:
    assert (await sandbox.exec("id -u; whoami || true")).stdout.split()[0] == "0"
    result = await sandbox.exec("id -u; id -g; touch /root/x", user="1000")
    if "single_user" in service.driver.probe().declares:
        assert "cannot become user" in (result.start_error or "")
    else:
        assert result.stdout.split() == ["1000", "1000"]
        assert result.exit_code != 0


async def test_a_terminal(sandbox: Sandbox) -> None:
    async with await sandbox.start(["sh"], pty=TerminalSize(30, 91)) as process:
        await process.send("stty size; tty; exit 3\n")
        result = await process.wait()
    assert result.exit_code == 3
    assert "30 91" in result.stdout
    assert "/dev/pts/" in result.stdout


async def test_two_hundred_at_once(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.exec(["sh", "-c", f"sleep 0.1; echo {at}"]) for at in range(200)))
    # A shell may start and then find no room for its own child.
    assert [result.stdout for result in results if result.ok] == [
        f"{at}\n" for at, result in enumerate(results) if result.ok
    ]
    assert sum(result.ok for result in results) >= 120  # each takes two of the 256 processes


async def test_a_daemon_that_hides_ends_with_the_time_limit(sandbox: Sandbox) -> None:
    script = """
import os, signal, time
print("partial", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in range(3): os.close(fd)
        os.execve("/bin/sleep", ["sleep", "4321"], {})
    os._exit(0)
time.sleep(1000)
"""
    result = await sandbox.exec(["python3", "-c", script], timeout_s=2)
    assert (result.stdout, result.termination) == ("partial\n", Termination.TIMEOUT)
    assert "4321" not in await processes(sandbox)


async def test_a_fork_bomb_ends_with_its_time_limit(sandbox: Sandbox) -> None:
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass\n"
    start = time.monotonic()
    result = await sandbox.exec(["python3", "-c", bomb], timeout_s=1)
    assert result.termination is Termination.TIMEOUT
    assert time.monotonic() - start < 20
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"
    assert "os.fork" not in await processes(sandbox)


async def test_a_gigabyte_of_output_is_bounded(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 1000000000 /dev/zero")
    assert (result.stdout_bytes, len(result.stdout), result.truncated) == (1_000_000_000, 1 << 20, True)


async def test_too_much_memory_is_told(sandbox: Sandbox, service: Sandboxes) -> None:
    if "no_memory_limit" in service.driver.probe().declares:
        pytest.skip("no memory limit on this machine")
    result = await sandbox.exec(["python3", "-c", "x = []\nwhile True: x.append(b'x' * 10_000_000)"])
    assert result.termination is Termination.OUT_OF_MEMORY
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_a_large_file_streams_in_and_out(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1 << 20) * 40)
    await sandbox.upload(source, "/work/big")
    assert await sandbox.download("big", tmp_path / "back") == 40 << 20
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


async def test_the_agents_memory_and_descriptors_are_out_of_reach(sandbox: Sandbox) -> None:
    for script in (
        "cat /proc/1/environ",
        "cat /proc/1/maps",
        "readlink -v /proc/1/fd/3",
        "dd if=/proc/1/mem bs=1 count=1 skip=4194304",
        "cat /proc/1/stack",
        "python3 -c 'import os; os.open(\"/proc/1/fd/3\", os.O_RDWR)'",
    ):
        result = await sandbox.exec(script)
        assert not result.ok, script
        assert "denied" in result.stderr, script


async def test_a_command_cannot_cut_the_agents_limits(sandbox: Sandbox) -> None:
    cut = "import resource\nfor n in (0, 2, 7, 9): resource.prlimit(1, n, (5, 5))"
    assert not (await sandbox.exec(["python3", "-c", cut])).ok
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_another_process_reaches_a_detached_sandbox_by_its_id(world: SandboxWorld) -> None:
    script = f"""
import asyncio
from pathlib import Path
from ropewalk.sandbox import Sandboxes, drivers
from ropewalk.store.layout import Layout

async def main():
    layout = Layout(Path({str(world.layout.root)!r}))
    driver = drivers.load("process", layout)
    service = Sandboxes(driver, layout, images=driver.images, layers=driver.layers)
    sandbox = await service.open(NAME)
    print((await sandbox.exec("cat note; echo two >note")).stdout)
    await sandbox.disconnect()
    driver.close()

asyncio.run(main())
"""
    async with await world.make(lease=Lease.DETACHED) as sandbox:
        await sandbox.write("note", "one")
        answer = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script.replace("NAME", repr(sandbox.id))],
            capture_output=True, text=True, timeout=50,
        )  # fmt: skip
        assert (answer.returncode, answer.stdout.strip()) == (0, "one"), answer.stderr
        assert await sandbox.read("note") == b"two\n"


async def test_an_idle_sandbox_ends_itself(world: SandboxWorld, service: Sandboxes) -> None:
    sandbox = await world.make(lease=Lease.DETACHED, idle_timeout_s=0.5)
    await sandbox.exec("true")
    await sandbox.disconnect()
    with anyio.fail_after(20):
        while sandbox.id in {record.id for record in await service.records()}:  # noqa: ASYNC110 no event tells it
            await asyncio.sleep(0.05)
    with pytest.raises(SandboxGoneError):
        await sandbox.exec("true")
    await sandbox.close()


async def test_a_group_of_forks(sandbox: Sandbox) -> None:
    await sandbox.write("/work/state", "saved")
    snapshot = await sandbox.snapshot("ready")
    async with snapshot.fork(4) as children:
        calls = (child.exec(f"cat state; echo {at} >state") for at, child in enumerate(children))
        results = await asyncio.gather(*calls)
        assert {result.stdout for result in results} == {"saved"}
        assert [await child.read("state") for child in children] == [f"{at}\n".encode() for at in range(4)]
    assert await sandbox.read("state") == b"saved"


async def test_the_death_of_a_sandbox_is_an_exception(sandbox: Sandbox, service: Sandboxes) -> None:
    other = await service.open(sandbox.id)
    pending = asyncio.create_task(sandbox.exec("sleep 100"))
    await sandbox.exec("true")
    await service.destroy(other.id)
    with pytest.raises(SandboxGoneError):
        await pending
