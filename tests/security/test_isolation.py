"""Code in a sandbox that tries to get out, to see more than its own, or to take more than its share."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processworld import process_world

from ropewalk.core.outcomes import Termination
from ropewalk.sandbox.contract import SandboxGoneError
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.sandbox.drivers.process.folders import Folders
from ropewalk.sandbox.sandbox import Sandbox
from ropewalk.testing.sandbox import SandboxWorld, output

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be started as root")


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    with process_world(tmp_path / "state", tmp_path_factory.getbasetemp().parent / "ropewalk-shared") as made:
        yield made


async def python(sandbox: Sandbox, code: str, *, user: str | None = None) -> Any:
    """What a Python program printed, as JSON."""
    result = await sandbox.exec(["python3", "-c", code], user=user)
    assert result.exit_code == 0, result
    return json.loads(result.stdout)


def host_processes(world: SandboxWorld, sandbox: Sandbox) -> tuple[int, int]:
    """Pids on the host of bubblewrap and of the first process inside."""
    found = Folders(world.layout).of(sandbox.id).processes()
    assert found is not None
    return found.pid, found.init_pid


def command_line(pid: int) -> list[bytes]:
    """Its words; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def host_ids(pid: int) -> set[int]:
    """All user and group ids of a process, as the host counts."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {int(word) for line in lines if line.startswith(("Uid:", "Gid:", "Groups:")) for word in line.split()[1:]}


async def test_nobody_inside_is_the_hosts_root(world: SandboxWorld) -> None:
    async with await world.make() as sandbox:
        sleeper = await sandbox.start(["sleep", "100"])
        outer, init = host_processes(world, sandbox)
        assert await output(sandbox, "id -u") == "0"
        for pid in (outer, init):
            assert 0 not in host_ids(pid)
            if os.geteuid() == 0:
                assert min(host_ids(pid)) >= 200_000
        await sleeper.kill()


@as_root
async def test_two_tenants_never_share_user_ids(world: SandboxWorld) -> None:
    async with await world.make(tenant="one") as one, await world.make(tenant="two") as two:
        ids = [host_ids(host_processes(world, sandbox)[1]) for sandbox in (one, two)]
        assert abs(min(ids[0]) - min(ids[1])) >= 65_536


async def test_powers_are_few_and_final(world: SandboxWorld) -> None:
    async with await world.make() as sandbox:
        status = dict(
            line.split(":\t", 1)
            for line in (await output(sandbox, "cat /proc/self/status")).splitlines()
            if ":\t" in line
        )
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        allowed = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 10))
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            assert int(status[name], 16) & ~allowed == 0
        assert (await sandbox.exec(["chroot", "/work"])).exit_code != 0


CALLS = """
import ctypes, errno, json, platform
libc = ctypes.CDLL(None, use_errno=True)
column = 0 if platform.machine() == "x86_64" else 1
calls = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428), "fsopen": (430, 430),
    "move_mount": (429, 429), "mount_setattr": (442, 442), "setns": (308, 268), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "add_key": (248, 217), "keyctl": (250, 219),
    "request_key": (249, 218), "io_uring_setup": (425, 425), "kexec_load": (246, 104), "init_module": (175, 105),
    "finit_module": (313, 273), "swapon": (167, 224), "reboot": (169, 142), "quotactl": (179, 60),
    "open_by_handle_at": (304, 265), "unshare": (272, 97), "settimeofday": (164, 170), "syslog": (103, 116),
}
def outcome(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "ALLOWED"
seen = {name: outcome(numbers[column], 0x10000000, 0, 0, 0, 0) for name, numbers in calls.items()}
seen["clone into a namespace"] = outcome((56, 220)[column], 0x10000000 | 17, 0, 0, 0, 0)
seen["another personality"] = outcome((135, 92)[column], 0x0040000)
clone3 = outcome(435, 0, 0)
import socket
families = []
for family in (38, 17, 40, 15, 44, 29):
    try:
        socket.socket(family, {17: socket.SOCK_RAW, 38: socket.SOCK_SEQPACKET}.get(family, socket.SOCK_DGRAM))
        families.append(family)
    except OSError as error:
        if error.errno != errno.EPERM: families.append((family, error.errno))
print(json.dumps([seen, clone3, families]))
"""


async def test_dangerous_calls_are_refused(world: SandboxWorld) -> None:
    async with await world.make() as sandbox:
        seen, clone3, families = await python(sandbox, CALLS)
        assert {name: answer for name, answer in seen.items() if answer != "EPERM"} == {}
        assert clone3 == "ENOSYS"
        assert families == []
        assert (
            await output(sandbox, "python3 -c 'import threading; threading.Thread(target=print, args=(1,)).start()'")
            == "1"
        )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls of other architectures exist on x86-64")
async def test_calls_of_another_architecture_kill(world: SandboxWorld) -> None:
    x32 = "import ctypes; ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 + 39))"
    i386 = (
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, 20 (getpid); int 0x80; ret
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    )
    async with await world.make() as sandbox:
        for code in (x32, i386):
            result = await sandbox.exec(["python3", "-c", code])
            assert result.signal == 31, result  # SIGSYS


async def test_the_agent_cannot_be_touched(world: SandboxWorld) -> None:
    async with await world.make() as sandbox:
        attack = (
            "kill -9 1; kill -STOP 1; kill -9 -1; "
            "cat /proc/1/environ /proc/1/mem /proc/1/maps; ls -l /proc/1/fd/; cat /proc/1/fd/3 /proc/1/fd/7; "
            "echo x > /.ropewalk/agent/agent; rm -rf /.ropewalk; mv /.ropewalk /gone; "
            "echo 1000 > /proc/1/oom_score_adj; echo x > /proc/1/mem"
        )
        await sandbox.exec(attack, timeout_s=20)
        assert await output(sandbox, "echo alive; ls /.ropewalk") == "alive\nagent"
        for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/fd/3", "/proc/1/fd/7"):
            assert (await sandbox.exec(["cat", path])).exit_code != 0


async def test_what_a_sandbox_is_given_is_on_no_command_line(world: SandboxWorld) -> None:
    """Every user of the host may read all command lines, and every user inside those inside."""
    async with await world.make(env={"API_KEY": "known-to-few"}) as sandbox:
        outer, init = host_processes(world, sandbox)
        assert {b"bwrap", b"agent"} == {command_line(pid)[0].rpartition(b"/")[2] for pid in (outer, init)}
        assert not any(b"token" in word for pid in (outer, init) for word in command_line(pid))
        for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
            assert not any(b"known-to-few" in word for word in command_line(pid))
        assert await output(sandbox, "echo $API_KEY; ls /proc/self/fd") == "known-to-few\n0\n1\n2\n3"


async def test_the_agent_cannot_be_slowed_or_starved(world: SandboxWorld) -> None:
    code = """
import ctypes, json, os, platform, resource
libc = ctypes.CDLL(None, use_errno=True)
def io_priority(which, who):
    if libc.syscall(251 if platform.machine() == "x86_64" else 30, which, who, 3 << 13):
        raise OSError
seen = []
for name, attempt in {
    "limits": lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (5, 5)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    "priority of its group": lambda: os.setpriority(os.PRIO_PGRP, 1, 19),
    "priority of its user": lambda: os.setpriority(os.PRIO_USER, 0, 19),
    "disk priority": lambda: io_priority(1, 1),
    "disk priority of its group": lambda: io_priority(2, 1),
    "disk priority of its user": lambda: io_priority(3, 0),
    "policy": lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
    "cores": lambda: os.sched_setaffinity(1, {0}),
}.items():
    try: attempt(); seen.append(name)
    except OSError: pass
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.sched_setaffinity(0, os.sched_getaffinity(0)); os.nice(1)
io_priority(1, 0)
print(json.dumps(seen))
"""
    async with await world.make() as sandbox:
        assert await python(sandbox, code) == []


async def test_who_offers_the_agent_to_the_memory_killer_is_out_of_memory(world: SandboxWorld) -> None:
    if world.excused("no_memory_limit"):
        pytest.skip("the driver declares no_memory_limit")
    async with await world.make(memory_bytes=64 << 20) as sandbox:
        # Any process may raise its own user's score; so the end must be told as what it is, and not as our fault.
        attack = "echo 1000 > /proc/1/oom_score_adj; exec python3 -c 'x = bytearray(300 << 20)'"
        try:
            termination = (await sandbox.exec(attack)).termination
        except SandboxGoneError as error:
            termination = error.termination
        assert termination is Termination.OUT_OF_MEMORY


async def test_nothing_of_the_host_can_be_written(world: SandboxWorld) -> None:
    attempts = (
        "echo 1 > /proc/sys/kernel/panic", "echo h > /proc/sysrq-trigger", "echo core > /proc/sys/kernel/core_pattern",
        "echo x > /.ropewalk/agent/agent", "mknod /work/disk b 8 0", "mknod /dev/x c 1 1",
        "touch /dev/x", "cat /proc/kcore", "head -c 1 /dev/mem", "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "cat /sys/kernel/vmcoreinfo",
        "echo -1000 > /proc/self/oom_score_adj", "hostname evil", "date -s 2001-01-01",
    )  # fmt: skip
    async with await world.make() as sandbox:
        for attempt in attempts:
            assert (await sandbox.exec(attempt)).exit_code != 0, attempt


async def test_devices_are_the_harmless_ones_and_work(world: SandboxWorld) -> None:
    async with await world.make() as sandbox:
        names = set((await output(sandbox, "ls /dev")).split())
        assert names == {"null", "zero", "full", "random", "urandom", "tty", "stdin", "stdout", "stderr", "fd", "core",
                         "ptmx", "pts", "shm"}  # fmt: skip
        kinds = await output(sandbox, "cd /dev; stat -c '%F %t:%T' null zero full random urandom tty pts/ptmx")
        assert kinds.splitlines() == [
            f"character special file {number}" for number in ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2")
        ]
        assert await output(sandbox, "echo x | cat /dev/stdin /dev/fd/0") == "x"
        works = "head -c 3 /dev/zero | wc -c; echo x > /dev/null && echo y > /dev/shm/y && cat - /dev/shm/y"
        for user in (None, *(() if world.excused("single_user") else ("user",))):
            result = await sandbox.exec(works, user=user, stdin="z\n")
            assert (result.stdout, result.exit_code) == ("3\nz\ny\n", 0), (user, result)
            assert (await sandbox.exec("rm /dev/shm/y; echo x > /dev/full", user=user)).exit_code != 0
        assert "65536" in await output(sandbox, "df -k /dev/shm")
        writable = await output(sandbox, "grep ' /dev ' /proc/self/mountinfo")
        assert " ro,nosuid,nodev" in writable


async def test_roots_of_processes_lead_nowhere_else(world: SandboxWorld, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    async with await world.make() as sandbox:
        for root in ("/proc/self/root", "/proc/$$/cwd/../../../../..", "/proc/thread-self/root/../.."):
            assert (await sandbox.exec(f"cat {root}{tmp_path}/secret")).exit_code != 0
        mounts = await output(sandbox, "cat /proc/self/mountinfo")
        assert str(world.layout.root) not in mounts
        assert str(Path.home()) not in mounts.replace("/root/.ropewalk", "")


async def test_limits_cannot_be_raised(world: SandboxWorld) -> None:
    code = """
import json, resource
seen = []
for name in ("NOFILE", "CORE", "NPROC", "AS", "MEMLOCK", "MSGQUEUE", "SIGPENDING"):
    limit = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(limit)[1]
    if hard != resource.RLIM_INFINITY:
        try: resource.setrlimit(limit, (hard + 1, hard + 1)); seen.append(name)
        except (ValueError, OSError): pass
import os
try: os.nice(-5); seen.append("nice")
except OSError: pass
print(json.dumps(seen))
"""
    async with await world.make() as sandbox:
        assert await python(sandbox, code) == []
        assert (await sandbox.exec("ls /sys/fs/cgroup")).exit_code != 0


@as_root
async def test_setuid_programs_gain_nothing(world: SandboxWorld) -> None:
    code = (
        "import os, shutil\nshutil.copy('/bin/id', '/tmp/id'); os.chmod('/tmp/id', 0o4755)\n"
        "shutil.copy('/bin/cat', '/tmp/cat'); os.chmod('/tmp/cat', 0o4755)\n"
        "open('/tmp/secret', 'w').write('x'); os.chmod('/tmp/secret', 0o600); print(1)"
    )
    async with await world.make() as sandbox:
        await python(sandbox, code)
        asked = await sandbox.exec("/tmp/id -u; /tmp/cat /tmp/secret", user="1000")
        assert asked.stdout.strip() == "1000"
        assert asked.exit_code != 0
        powers = await sandbox.exec("grep CapEff /proc/self/status", user="1000")
        assert int(powers.stdout.split()[1], 16) == 0


async def test_a_snapshot_follows_no_link_of_the_sandbox(world: SandboxWorld, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    async with await world.make() as sandbox:
        await output(
            sandbox, f"ln -s {secret} link; ln -s / all; ln -s {tmp_path} folder; mkfifo pipe; ls -A /proc/1 > x"
        )
        snapshot = await sandbox.snapshot()
    driver = world.driver
    assert isinstance(driver, ProcessDriver)
    for digest in snapshot.record.layers:
        tree = driver.layers.path(digest)
        kept = {path.relative_to(tree).as_posix() for path in tree.rglob("*")}
        assert kept == {"work", "work/link", "work/all", "work/folder", "work/x"}
        assert (tree / "work/link").is_symlink()
    async with await snapshot.fork_one() as child:
        assert (await child.exec("cat link folder/secret")).exit_code != 0


async def test_abstract_sockets_of_the_host_are_out_of_reach(world: SandboxWorld) -> None:
    name = f"ropewalk-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        code = f"import socket; print(socket.socket(socket.AF_UNIX).connect_ex('\\0{name}'))"
        async with await world.make() as sandbox:
            assert await python(sandbox, code) != 0


async def test_the_state_is_for_its_owner_alone(world: SandboxWorld) -> None:
    async with await world.make() as sandbox:
        folder = Folders(world.layout).of(sandbox.id).path
        for path in (world.layout.root, world.layout.sandboxes, folder):
            assert path.stat().st_mode & 0o077 == 0
