"""Code in a sandbox that takes all it can of what the kernel counts per user or machine: others still get theirs."""

from __future__ import annotations

import ctypes
import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processworld import process_world

from ropewalk.sandbox.drivers.process import plan, rootfs
from ropewalk.sandbox.sandbox import Sandbox
from ropewalk.testing.sandbox import SandboxWorld, until


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    with process_world(tmp_path / "state", tmp_path_factory.getbasetemp().parent / "ropewalk-shared") as made:
        yield made


TAKE = """
import ctypes, errno, json, os, platform, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
most = json.loads(sys.argv[1])
queue = 240 if platform.machine() == "x86_64" else 180
def watched():
    return libc.inotify_init() >= 0
def queued(names=iter(range(1000))):
    return libc.syscall(queue, b"q%d" % next(names), os.O_RDWR | os.O_CREAT, 0o600, 0) >= 0
def opened():
    try: return os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    except OSError: return 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
def signalled():
    return libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0
def count(take):
    n = 0
    while n < most[take.__name__] and take(): n += 1
    return n
taken = {take.__name__: 0 for take in (watched, queued, opened, signalled)}
for user in range(4):  # what a namespace limits, it limits for each user in it
    try: os.seteuid(0); os.seteuid(user)
    except OSError: break
    for take in (watched, queued, opened): taken[take.__name__] += count(take)
# Of all signals that wait, one user's are counted together, whoever sent them.
try: os.seteuid(0)
except OSError: pass
taken["signalled"] = count(signalled)
with open("/work/new", "w") as file: json.dump(taken, file)
os.rename("/work/new", "/work/taken")
if len(sys.argv) > 2: time.sleep(100)
"""
ALL, ONE = (dict.fromkeys(("watched", "queued", "opened", "signalled"), most) for most in (2000, 1))


async def taken_by(sandbox: Sandbox) -> dict[str, int]:
    """What the program there says that it got."""

    async def told() -> bool:
        return any(entry.path.endswith("/taken") for entry in await sandbox.list("/work"))

    await until(told)
    counts: dict[str, int] = json.loads(await sandbox.read("/work/taken"))
    return counts


def least(world: SandboxWorld) -> dict[str, int]:
    """What every sandbox gets for each of the four users that it tries, whatever the others do."""
    return {"watched": 4, "queued": 4, "opened": 4, "signalled": 1} if not world.excused("single_user") else {
        "watched": 1, "queued": 0, "opened": 1, "signalled": 1,
    }  # fmt: skip


async def test_who_takes_all_shared_counts_takes_them_from_nobody(world: SandboxWorld) -> None:
    async with (
        await world.make(tenant="one") as taker,
        await world.make(tenant="one") as same,
        await world.make(tenant="two") as other,
    ):
        program = await taker.start(["python3", "-c", TAKE, json.dumps(ALL), "stay"])
        taken = await taken_by(taker)
        allowance = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
        rootless = world.excused("single_user")
        if not world.excused("no_inotify_limit"):
            assert 0 < taken["watched"] <= (rootfs.INOTIFY_INSTANCES_MAX if rootless else allowance)
        assert taken["opened"] == rootfs.TERMINALS_MAX
        assert taken["queued"] == 0 if rootless else 0 < taken["queued"] < 12
        assert 0 < taken["signalled"] <= plan.PENDING_SIGNALS_MAX
        async with await world.make(tenant="one") as later:
            for victim in (same, other, later):
                result = await victim.exec(["python3", "-c", TAKE, json.dumps(ONE)])
                assert result.ok, result
                got = await taken_by(victim)
                assert {name: got[name] for name in got if got[name] < least(world)[name]} == {}
        for fd in pty.openpty():
            os.close(fd)
        assert _watches_on_the_host()
        await program.kill()


def _watches_on_the_host() -> bool:
    """Whether this very user can still watch files."""
    fd: int = ctypes.CDLL(None).inotify_init()
    if fd >= 0:
        os.close(fd)
    return fd >= 0


async def test_the_machines_asynchronous_requests_are_out_of_reach(world: SandboxWorld) -> None:
    code = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
made = libc.syscall(206 if platform.machine() == "x86_64" else 0, 65536, ctypes.byref(ctypes.c_ulong()))
print(made, os.strerror(ctypes.get_errno()))
"""
    async with await world.make() as sandbox:
        assert (await sandbox.exec(["python3", "-c", code])).stdout == "-1 Operation not permitted\n"


async def test_limits_of_counts_cannot_be_raised_from_inside(world: SandboxWorld) -> None:
    async with await world.make() as sandbox:
        for name in ("user/max_inotify_instances", "user/max_inotify_watches", "fs/inotify/max_user_instances"):
            assert (await sandbox.exec(f"echo 100000 > /proc/sys/{name}")).exit_code != 0
