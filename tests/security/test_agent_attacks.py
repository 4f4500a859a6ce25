"""What code in a sandbox may try against the agent, which can have its user id, and against its time limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.interface.episode import ToolCall
from ropewalk.rollout.episodes.tools import perform
from ropewalk.sandbox import ExecResult, FileError, Sandbox
from ropewalk.testing.unsandboxed import namespaces_work, unsandboxed_service, unsandboxed_spec

LIMIT = "import resource; h = resource.getrlimit(10)[1]; resource.setrlimit(10, ({0}, {0}))\n"
FORGERS = {
    "nothing": "",
    "a number of nobody": LIMIT.format("h - 12345"),
    "the least number": LIMIT.format("0"),
    "a clean environment": (
        "import os, sys\nif os.environ.get('PATH'): os.execve(sys.executable, ['python3', *sys.argv], {})\n"
    ),
    "an own reaper": "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n",
}
HOPPER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 20
if os.fork(): os._exit(0) if "leave" in sys.argv else time.sleep(1000)
while time.monotonic() < end:  # a new process all the time, in a session of its own, its parent gone
    if os.fork(): os._exit(0)
    os.setsid()
"""

pytestmark = pytest.mark.skipif(not namespaces_work(), reason="this machine allows no process namespaces")


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    """The agent as process 1 with full rights inside: more than a real sandbox gives to code."""
    async with await unsandboxed_service(tmp_path).create(unsandboxed_spec()) as made:
        yield made


async def processes(sandbox: Sandbox) -> int:
    """Inside, without the agent and the counting itself."""
    count = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')) - 2)"
    return int((await sandbox.exec(["python3", "-c", count])).stdout)


async def test_killing_the_agent_does_nothing(sandbox: Sandbox) -> None:
    script = "for s in 1 2 3 9 10 13 14 15 17 18 19 20 29 34; do kill -$s 1; done; kill -9 -1; kill -9 -- -1"
    result = await sandbox.exec(["python3", "-c", f"import os; os.system({script!r})"])
    # Everything but process 1 is dead: the script's last words are those of a process that was killed.
    assert (result.termination, result.signal, result.exit_code) == (Termination.FINISHED, 9, None)
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_many_child_signals_starve_nobody(sandbox: Sandbox) -> None:
    async with await sandbox.start(["python3", "-c", "import os\nwhile True: os.kill(1, 17)"]):
        assert (await sandbox.exec("echo through")).ok


@pytest.mark.parametrize("forgery", FORGERS)
@pytest.mark.parametrize("leave", ["", "leave"])
async def test_whoever_hides_ends_with_its_command(sandbox: Sandbox, forgery: str, leave: str) -> None:
    await sandbox.write("hopper.py", FORGERS[forgery] + HOPPER)
    start = time.monotonic()
    result = await sandbox.exec(["python3", "hopper.py", *([leave] if leave else [])], timeout_s=1)
    assert result.termination is (Termination.FINISHED if leave else Termination.TIMEOUT)
    assert time.monotonic() - start < 10
    assert await processes(sandbox) == 0


async def test_a_forger_of_a_living_commands_number_ends_with_that_one(sandbox: Sandbox) -> None:
    """The most a forger reaches: the number of a newer command, for as long as that one runs."""
    own = "import resource; print(resource.getrlimit(10)[1], flush=True); import time; time.sleep(1000)"
    older = await sandbox.start(["python3", "-u", "-c", """
import os, resource, sys, time
number = int(input())
if os.fork() == 0:
    os.setsid()
    resource.setrlimit(10, (number, number))
    print("forged", flush=True)
    os.execve("/bin/sleep", ["sleep", "4321"], {})
os.wait()
"""], stdin=True)  # fmt: skip
    async with await sandbox.start(["python3", "-c", own]) as newer:
        async for chunk in newer:
            await older.send(chunk.data)
            break
        async for _ in older:
            break
        await older.kill()
    assert await processes(sandbox) == 0


async def test_a_child_that_closes_or_keeps_descriptors_changes_nothing(sandbox: Sandbox) -> None:
    start = time.monotonic()
    assert (await sandbox.exec("exec >&- 2>&- <&-; sleep 0.2; exit 5")).exit_code == 5
    assert (await sandbox.exec("setsid sleep 1000 & echo kept")).stdout == "kept\n"
    assert time.monotonic() - start < 8


async def test_floods_of_small_writes_and_of_children_starve_nobody(sandbox: Sandbox) -> None:
    children = "while :; do (:) ; done"
    async with await sandbox.start("while :; do echo x; done"), await sandbox.start(children):
        results = await asyncio.gather(*(sandbox.exec(["echo", str(at)]) for at in range(20)))
        assert [result.stdout for result in results] == [f"{at}\n" for at in range(20)]


async def test_a_swap_of_folders_and_links_cannot_bend_a_careful_read(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p good evil; echo good >good/f; echo evil >evil/f")
    swap = "while :; do mv good was; ln -s evil good; rm good; mv was good; done"
    async with await sandbox.start(swap):
        for _ in range(200):
            try:
                assert await sandbox.read("good/f", follow=False) == b"good\n"
            except FileError as error:
                assert error.code in ("ENOENT", "ELOOP", "ENOTDIR")


async def test_pipes_devices_and_endless_files_hold_up_nothing(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo fifo; ln -s /dev/zero zero; ln -s loop loop; truncate -s 1T huge")
    for path in ("fifo", "/dev/zero", "zero", "loop", "huge", "/dev/tty"):
        with pytest.raises(FileError):
            await sandbox.read(path, bytes_max=1000)
    assert {entry.path for entry in await sandbox.list(recursive=True)} == {"fifo", "zero", "loop", "huge"}
    listed = {entry.path: entry.sha256 for entry in await sandbox.list("/dev", digests=True) if entry.kind != "file"}
    assert set(listed.values()) == {None}


DEEP = """
import os
os.chdir("/tmp"); os.makedirs("deep", exist_ok=True); os.chdir("deep")
for level in range(36):
    os.mkdir("d" * 250); os.chdir("d" * 250)
for number in range(400):
    open(f"{number:0>250}", "w").close()
"""


async def test_long_names_in_deep_folders_are_listed_or_refused(sandbox: Sandbox) -> None:
    """The path of each entry is 9 KB long here: no frame may become longer than one may be."""
    assert (await sandbox.exec(["python3", "-c", DEEP])).ok
    try:
        assert len(await sandbox.list("/tmp/deep", recursive=True, digests=True)) == 436
        with pytest.raises(FileError) as raised:
            await sandbox.list("/tmp/deep", recursive=True, bytes_max=1 << 20)
        assert raised.value.code == "EOVERFLOW"
        assert (await sandbox.exec("echo alive")).ok
    finally:
        await sandbox.remove("/tmp/deep", recursive=True)


HUGE = {
    "1 MiB": "a" * ((1 << 20) - 46), "70 KB": "a" * 70_000, "folders": "a/" * 40_000, "wide": "é" * 300_000,
    "absolute": "/" + "a" * ((1 << 20) - 46), "more than a frame": "a" * (2 << 20),
}  # fmt: skip


@pytest.mark.parametrize("huge", HUGE.values(), ids=HUGE)
async def test_no_argument_is_so_long_that_the_sandbox_is_lost(sandbox: Sandbox, huge: str) -> None:
    """The agent repeats names in its answers: whatever asks may be long, what comes back may not."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: sandbox.read(huge), lambda: sandbox.read(huge, follow=False), lambda: sandbox.write(huge, b"x"),
        lambda: sandbox.list(huge), lambda: sandbox.stat(huge), lambda: sandbox.remove(huge),
        lambda: sandbox.exec(huge), lambda: sandbox.exec([huge]), lambda: sandbox.exec("true", cwd=huge),
        lambda: sandbox.exec("true", user=huge), lambda: sandbox.exec("false", env={huge: "x"}),
        lambda: sandbox.read_many([huge[:60_000], huge[1:60_000]]),
    ]  # fmt: skip
    for call in calls:
        try:
            result = await call()
        except CallerError:
            continue
        assert isinstance(result, ExecResult) and not result.ok
    assert (await sandbox.exec("rm -rf a; echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("huge", HUGE.values(), ids=HUGE)
async def test_no_tool_call_ends_the_episode(sandbox: Sandbox, huge: str) -> None:
    calls = [
        ("shell", {"command": huge}), ("shell", {"command": f"echo {huge}"}), ("read", {"path": huge}),
        ("edit", {"path": huge, "old": "", "new": "x"}), ("edit", {"path": huge, "old": "x", "new": "y"}),
        ("edit", {"path": "file", "old": huge, "new": huge}), ("edit", {"path": huge, "old": huge, "new": huge}),
        ("read", {"path": "file", "start_line": 2**53 - 1, "lines": 2**53 - 1}), (huge, {}), ("read", {huge: huge}),
    ]  # fmt: skip
    await sandbox.write("file", "x\n")
    for name, arguments in calls:
        call = ToolCall(name=name, arguments=arguments)
        result = await perform(call, sandbox, workdir=await workdir(sandbox), timeout_s_max=10)
        assert not result.termination.ours
    assert (await sandbox.exec("rm -rf a; echo alive")).stdout == "alive\n"


async def workdir(sandbox: Sandbox) -> str:
    return (await sandbox.exec("pwd")).stdout.strip()


async def test_names_that_are_no_text(sandbox: Sandbox) -> None:
    await sandbox.exec(["python3", "-c", "open(b'a\\xff\\nb', 'w').write('x')"])
    (entry,) = await sandbox.list()
    assert entry.path == "a\udcff\nb"
    assert await sandbox.read(entry.path) == b"x"
    await sandbox.remove(entry.path)


async def test_removing_follows_no_link(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir keep dir; echo x >keep/file; ln -s ../keep dir/link; ln -s keep outer")
    await sandbox.remove("dir", recursive=True)
    await sandbox.remove("outer", recursive=True)
    assert (await sandbox.read("keep/file")) == b"x\n"
    for path in ("/", ".", "..", "keep/.."):
        with pytest.raises(FileError):
            await sandbox.remove(path, recursive=True)
    assert await sandbox.exists("keep/file")
