"""Nothing is left of a sandbox when its lease ends, whatever ends it: no process, mount, namespace, group, file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ropewalk.core import limits
from ropewalk.core.errors import UnavailableError
from ropewalk.core.ids import new_id
from ropewalk.sandbox.contract import Lease, SandboxGoneError, SupportsReap
from ropewalk.sandbox.drivers.process import cgroups, snapshots
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.sandbox.drivers.process.folders import Folders, LeaseHolder
from ropewalk.sandbox.drivers.process.plan import group_parents
from ropewalk.sandbox.sandbox import Sandbox
from ropewalk.testing.sandbox import SandboxWorld, output
from tests.integration.processes import below
from tests.processworld import process_world

RUNNER = """
import sys
from pathlib import Path
import anyio
from ropewalk.core.ids import new_id
from ropewalk.sandbox.contract import Lease, SandboxSpec
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.sandbox.images import ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.store.layout import Layout

async def main():
    state, shared, leases = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
    layers = LayerStore(Layout(Path(shared)))
    images = ImageStore(Layout(Path(shared)), layers)
    driver = ProcessDriver(Layout(Path(state)), layers=layers, images=images)
    spec = dict(tenant="acme", image=images.default().digest, memory_bytes=128 << 20, disk_bytes=32 << 20)
    print("begin", flush=True)
    for lease in leases:
        await driver.create(SandboxSpec(lease=Lease(lease), **spec), id=new_id("sandbox"))
    print("ready", flush=True)
    await anyio.sleep(100)

anyio.run(main)
"""


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp().parent / "ropewalk-shared"


@pytest.fixture
def world(tmp_path: Path, shared: Path) -> Iterator[SandboxWorld]:
    with process_world(tmp_path / "state", shared) as made:
        yield made


def run(world: SandboxWorld, shared: Path, *leases: str) -> subprocess.Popen[str]:
    """A runner with these sandboxes, in a process of its own."""
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(world.layout.root), str(shared), ",".join(leases)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert runner.stdout is not None
    assert runner.stdout.readline() == "begin\n"
    return runner


def finish(runner: subprocess.Popen[str], number: int) -> None:
    os.killpg(runner.pid, number)
    runner.wait()
    assert runner.stdout is not None
    runner.stdout.close()


def left_of(pids: set[int]) -> set[int]:
    """Those that still run; a dead one that nobody waited for is no leak of ours."""
    left = set()
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                left.add(pid)
        except OSError:
            continue
    return left


async def until_nothing_runs(pids: set[int]) -> None:
    with anyio.fail_after(15):
        while left_of(pids):  # noqa: ASYNC110 (no event can come from a stranger's process)
            await anyio.sleep(0.02)


def groups_of(world: SandboxWorld) -> list[str]:
    return list(cgroups.children(group_parents(world.layout)))


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


async def reap(world: SandboxWorld) -> tuple[str, ...]:
    assert isinstance(world.driver, SupportsReap)
    return await world.driver.reap()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_a_killed_runner_takes_its_sandboxes_along(world: SandboxWorld, shared: Path, number: int) -> None:
    before = mounts()
    runner = run(world, shared, "attached", "attached", "attached")
    assert runner.stdout is not None
    assert runner.stdout.readline() == "ready\n"
    pids = below(runner.pid)
    assert len(pids) >= 7  # the spawner, and two processes for each sandbox
    finish(runner, number)
    await until_nothing_runs(pids)
    with anyio.fail_after(10):
        while list(world.layout.sandboxes.iterdir()) or groups_of(world):  # noqa: ASYNC110
            await anyio.sleep(0.02)
    assert await reap(world) == ()
    assert mounts() == before
    left_groups(world)


async def test_a_killed_runner_leaves_detached_ones_until_they_are_destroyed(world: SandboxWorld, shared: Path) -> None:
    runner = run(world, shared, "attached", "detached")
    assert runner.stdout is not None
    assert runner.stdout.readline() == "ready\n"
    pids = below(runner.pid)
    finish(runner, signal.SIGKILL)
    reaped = await reap(world)
    (record,) = await world.sandboxes.records()
    assert record.id not in reaped
    assert record.spec.lease is Lease.DETACHED
    sandbox = await world.sandboxes.open(record.id)
    assert await output(sandbox, "echo here") == "here"
    await sandbox.close()
    await until_nothing_runs(pids)
    assert not list(world.layout.sandboxes.iterdir())
    assert groups_of(world) == []


async def test_a_runner_killed_at_any_instant_leaves_nothing_after_a_new_start(
    world: SandboxWorld, shared: Path
) -> None:
    for delay_s in (0.0, 0.02, 0.05, 0.08, 0.12, 0.2):
        runner = run(world, shared, *["attached"] * 20)
        await anyio.sleep(delay_s)
        pids = below(runner.pid)
        finish(runner, signal.SIGKILL)
        await until_nothing_runs(pids)
        await reap(world)
        assert not list(world.layout.sandboxes.iterdir())
        assert groups_of(world) == []


async def test_a_killed_spawner_is_replaced(world: SandboxWorld) -> None:
    driver = world.driver
    assert isinstance(driver, ProcessDriver)
    sandbox = await world.make()
    mine = below(os.getpid())
    spawner = next(pid for pid in mine if "spawner" in Path(f"/proc/{pid}/cmdline").read_text())
    pids = below(spawner)
    os.kill(spawner, signal.SIGKILL)
    await until_nothing_runs(pids)
    with pytest.raises(SandboxGoneError):
        await driver.stream(sandbox.id)
    async with await world.make() as other:
        assert await output(other, "echo again") == "again"
    await sandbox.close()
    assert not list(world.layout.sandboxes.iterdir())
    assert groups_of(world) == []


async def test_a_dead_sandbox_tells_why_until_it_is_destroyed(world: SandboxWorld) -> None:
    sandbox = await world.make()
    folder = world.layout.sandboxes / sandbox.id.partition(":")[2]
    known = json.loads((folder / "processes.json").read_text())
    os.kill(known["init_pid"], signal.SIGKILL)
    await until_nothing_runs({known["pid"], known["init_pid"]})
    with anyio.fail_after(5):
        while not (folder / "end.json").exists():  # noqa: ASYNC110
            await anyio.sleep(0.01)
    for call in (world.driver.stream, world.driver.snapshot):
        with pytest.raises(SandboxGoneError):
            await call(sandbox.id)
    stats = await world.driver.stats(sandbox.id)
    assert stats.processes == 0
    assert (stats.cpu_s or 0) > 0
    await sandbox.close()
    assert not folder.exists()


async def test_cancelled_creates_leave_nothing(world: SandboxWorld) -> None:
    for delay_s in (0.0, 0.005, 0.02, 0.04):
        with anyio.move_on_after(delay_s):
            await world.driver.create(world.spec(), id=new_id("sandbox"))
        for record in await world.sandboxes.records():  # it was faster
            await world.driver.destroy(record.id)
        assert not list(world.layout.sandboxes.iterdir())
        assert groups_of(world) == []


async def test_damaged_and_half_made_folders_are_reaped(world: SandboxWorld) -> None:
    half = world.layout.sandboxes / ".new-01ARZ3NDEKTSV4RRFFQ69G5FAV-1-1-x"
    empty = world.layout.sandboxes / "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    damaged = world.layout.sandboxes / "01ARZ3NDEKTSV4RRFFQ69G5FAW"
    for folder in (half, empty, damaged):
        folder.mkdir()
    (damaged / "record.json").write_text("{")
    (damaged / "owner.json").write_text("not JSON")
    (damaged / "processes.json").write_text('{"pid": 1}')
    assert set(await reap(world)) == {f"sandbox:{empty.name}", f"sandbox:{damaged.name}"}
    assert not list(world.layout.sandboxes.iterdir())


async def test_what_another_process_is_making_is_not_reaped(
    world: SandboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a folder that is not whole yet nor the groups of one that appears while a reaper looks around."""
    owner = LeaseHolder.me()
    fresh = world.layout.sandboxes / f".new-01ARZ3NDEKTSV4RRFFQ69G5FAV-{owner.pid}-{owner.started}-x"
    fresh.mkdir()
    made: list[Sandbox] = []
    list_groups = cgroups.children

    def slowly(under: cgroups.Groups) -> dict[str, cgroups.Groups]:
        if not made:
            anyio.from_thread.run(create)
        return list_groups(under)

    async def create() -> None:
        made.append(await world.make())

    monkeypatch.setattr(cgroups, "children", slowly)
    assert await reap(world) == ()
    assert fresh.is_dir()
    assert await output(made[0], "echo alive") == "alive"
    await made[0].close()
    fresh.rmdir()


async def test_a_process_that_outlives_bubblewrap_is_ended(world: SandboxWorld) -> None:
    sandbox = await world.make(lease=Lease.DETACHED)
    folder = world.layout.sandboxes / sandbox.id.partition(":")[2]
    known = json.loads((folder / "processes.json").read_text())
    os.kill(known["pid"], signal.SIGKILL)
    await until_nothing_runs({known["pid"]})
    await sandbox.close()
    assert left_of({known["init_pid"]}) == set()
    assert groups_of(world) == []


async def test_a_snapshot_whose_taker_died_leaves_nothing_frozen(world: SandboxWorld) -> None:
    async with await world.make() as sandbox:
        found = Folders(world.layout).of(sandbox.id).processes()
        assert found is not None
        if "freezer" not in found.groups:
            pytest.skip("no control group can be frozen here")
        assert cgroups.freeze(found.groups, frozen=True)
        with Folders(world.layout).of(sandbox.id).saving(wait=True):
            await reap(world)
            assert cgroups.is_frozen(found.groups)  # somebody is at work
        await reap(world)
        assert await output(sandbox, "echo on") == "on"


async def test_what_cannot_be_frozen_is_not_gone(world: SandboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await world.make() as sandbox:
        monkeypatch.setattr(snapshots, "FREEZE_TIMEOUT_S", 0.0)
        with pytest.raises(UnavailableError) as caught:
            await world.driver.snapshot(sandbox.id)
        assert not isinstance(caught.value, SandboxGoneError)
        assert await output(sandbox, "echo on") == "on"


async def test_a_reused_pid_is_not_killed(world: SandboxWorld) -> None:
    with stranger_process() as stranger:
        folder = world.layout.sandboxes / "01ARZ3NDEKTSV4RRFFQ69G5FAV"
        folder.mkdir()
        known = {"pid": stranger.pid, "started": 1, "init_pid": stranger.pid, "init_started": 1, "groups": {}}
        (folder / "processes.json").write_text(json.dumps(known))
        await world.driver.destroy(f"sandbox:{folder.name}")
        assert not folder.exists()
        assert stranger.poll() is None
        stranger.kill()


async def test_a_hundred_nested_forks(world: SandboxWorld) -> None:
    """Six flattenings, each of what the one before made."""
    sandbox = await world.make()
    deepest = 0
    for level in range(100):
        await output(sandbox, f"echo {level} > level; touch f{level}; rm -f f{level - 3}")
        snapshot = await sandbox.snapshot(durable=False)
        deepest = max(deepest, len(snapshot.record.layers))
        await sandbox.close()
        sandbox = await snapshot.fork_one()
    assert await output(sandbox, "cat level; echo f*") == "99\nf97 f98 f99"
    assert deepest == limits.SNAPSHOT_LAYERS_MAX
    await sandbox.close()


def stranger_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "100"])


def left_groups(world: SandboxWorld) -> None:
    """The folder for this state directory's groups goes with the last sandbox."""
    parents = group_parents(world.layout)
    cgroups.tidy(parents)
    assert not any(Path(path).exists() for path in parents.values())
