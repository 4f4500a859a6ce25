"""What the machine does to a sandbox is not put down to the code in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ropewalk.benchmarks.killed_sandboxes import end
from ropewalk.core import limits
from ropewalk.core.outcomes import Termination
from ropewalk.sandbox import Sandbox, SandboxGoneError, connection, silence
from ropewalk.sandbox.contract import Held
from ropewalk.sandbox.drivers.process import cgroups, processes
from ropewalk.sandbox.drivers.process.folders import Folders, Processes
from ropewalk.sandbox.drivers.process.plan import group_parents
from ropewalk.testing.sandbox import SandboxWorld, output
from tests.processworld import process_world


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    shared = tmp_path_factory.getbasetemp().parent / "ropewalk-shared"
    with process_world(tmp_path / "state", shared) as world:
        yield world


def known(world: SandboxWorld, sandbox: Sandbox) -> Processes:
    found = Folders(world.layout).of(sandbox.id).processes()
    assert found is not None
    return found


def freeze(found: Processes) -> None:
    if "freezer" not in found.groups:
        pytest.skip("no control group can be frozen here")
    assert cgroups.freeze(found.groups, frozen=True)


def stop(found: Processes) -> None:
    os.kill(found.init_pid, signal.SIGSTOP)
    while processes.state(found.init_pid) != b"T":
        os.sched_yield()


@pytest.mark.parametrize("hold", [freeze, stop])
async def test_a_sandbox_that_was_stopped_from_outside_is_our_loss(
    world: SandboxWorld, monkeypatch: pytest.MonkeyPatch, hold: object
) -> None:
    for module, name in ((connection, "HELLO_TIMEOUT_S"), (silence, "SECOND_LOOK_S"), (limits, "FILE_CALL_TIMEOUT_S")):
        monkeypatch.setattr(module, name, 0.2)
    async with await world.make() as sandbox:
        await output(sandbox, "true")
        other = Sandbox(world.driver, sandbox.record, world.sandboxes)
        assert callable(hold)
        hold(known(world, sandbox))
        assert (await sandbox.stats()).held is Held.STOPPED
        for call in (other.exec("echo"), sandbox.read("x")):
            with anyio.fail_after(20), pytest.raises(SandboxGoneError) as caught:
                await call
            assert caught.value.termination is Termination.INFRASTRUCTURE
        await other.disconnect()
    assert await world.sandboxes.records() == ()


async def test_a_long_save_ends_nothing(world: SandboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot takes longer than every time limit of this side."""
    for module, name in (
        (connection, "HELLO_TIMEOUT_S"), (silence, "SECOND_LOOK_S"), (limits, "FILE_CALL_TIMEOUT_S"),
        (limits, "EXEC_START_WAIT_S"), (limits, "EXEC_KILL_WAIT_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.1)
    async with await world.make() as sandbox:
        await output(sandbox, "echo 1 > x")
        looks = anyio.Semaphore(0)
        look = sandbox._driver.stats

        async def counted(id: str) -> object:
            stats = await look(id)
            looks.release()
            return stats

        monkeypatch.setattr(sandbox._driver, "stats", counted)
        handles = [sandbox, *(Sandbox(world.driver, sandbox.record, world.sandboxes) for _ in range(2))]
        calls = (handles[0].read("x"), handles[1].exec("cat x", timeout_s=60), handles[2].start("cat x"))
        with Folders(world.layout).of(sandbox.id).saving(wait=True):
            freeze(known(world, sandbox))
            assert (await look(sandbox.id)).held is Held.SAVED
            async with anyio.create_task_group() as group:
                results: list[object] = []

                async def keep(call: object) -> None:
                    results.append(await call)  # type: ignore[misc]

                for call in calls:
                    group.start_soon(keep, call)
                for _ in range(12):
                    await looks.acquire()
                assert not results
                cgroups.freeze(known(world, sandbox).groups, frozen=False)
        assert len(results) == 3
        assert await output(sandbox, "cat x") == "1"
        for handle in handles[1:]:
            await handle.disconnect()


@pytest.mark.parametrize("way", ["init", "bubblewrap", "spawner"])
async def test_a_kill_from_outside_is_our_loss_and_others_can_be_made(world: SandboxWorld, way: str) -> None:
    sandbox = await world.make()
    async with anyio.create_task_group() as group:
        started = anyio.Event()

        async def work() -> None:
            process = await sandbox.start("sleep 100")
            started.set()
            with pytest.raises(SandboxGoneError) as caught:
                await process.wait()
            assert caught.value.termination is Termination.INFRASTRUCTURE

        group.start_soon(work)
        await started.wait()
        end(known(world, sandbox), way)
    async with await world.make() as other:
        assert await output(other, "echo on") == "on"
    await sandbox.close()
    assert await world.sandboxes.records() == ()
    assert list(world.layout.sandboxes.iterdir()) == []


async def test_a_kill_for_want_of_the_machines_memory(world: SandboxWorld) -> None:
    """Where all sandboxes together may use less than each: whose limit is hit, the kernel counts the same kill."""
    async with await world.make(memory_bytes=512 * limits.MIB) as sandbox:
        await output(sandbox, "true")
        parent = group_parents(world.layout).get("memory")
        if parent is None:
            pytest.skip("no memory limits here")
        file = next(
            file for file in (Path(parent, "memory.max"), Path(parent, "memory.limit_in_bytes")) if file.exists()
        )
        file.write_text(str(96 * limits.MIB))
        try:
            termination = (await sandbox.exec(["python3", "-c", "x = bytearray(300 << 20)"])).termination
        except SandboxGoneError as error:
            termination = error.termination
        stats = await world.driver.stats(sandbox.id)
        assert (stats.out_of_memory_kills, (stats.machine_kills or 0) > 0) == (0, True)
        assert termination is Termination.INFRASTRUCTURE
