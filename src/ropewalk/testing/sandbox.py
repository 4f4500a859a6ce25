"""The contract of sandbox drivers as tests. A driver's own test class inherits them and says how to make one:

    class TestMine(SandboxConformance):
        @pytest.fixture
        async def world(self, tmp_path): yield SandboxWorld(…)

What a driver declares in its probe excuses it from the clauses that need it. Nothing else does.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.ids import new_id
from ropewalk.core.outcomes import Termination
from ropewalk.sandbox.contract import (
    Lease,
    SandboxDriver,
    SandboxGoneError,
    SandboxSpec,
    SandboxStats,
    SupportsReap,
)
from ropewalk.sandbox.process import ExecResult
from ropewalk.sandbox.sandbox import Sandbox
from ropewalk.sandbox.sandboxes import Images, Layers, Sandboxes
from ropewalk.store.layout import Layout

MIB = 1 << 20


@dataclass
class SandboxWorld:
    """A driver over an empty state directory, and what is needed around it."""

    driver: SandboxDriver
    again: Callable[[], SandboxDriver]
    """Another driver over the same state, as another process would have it."""
    close: Callable[[SandboxDriver], None]
    """Ends a driver, as the end of its process would."""
    layout: Layout
    images: Images
    layers: Layers
    image: str
    """Digest of an image with a shell, coreutils and Python."""
    add_layer: Callable[[dict[str, bytes]], str]
    """Makes a layer of files; returns its digest."""

    @property
    def sandboxes(self) -> Sandboxes:
        """The service above the driver."""
        return Sandboxes(self.driver, self.layout, images=self.images, layers=self.layers)

    def spec(self, **fields: object) -> SandboxSpec:
        """A small sandbox's specification."""
        plain: dict[str, object] = {"tenant": "acme", "image": self.image, "memory_bytes": 128 * MIB,
                                    "disk_bytes": 32 * MIB, "processes_max": 64, **fields}  # fmt: skip
        return SandboxSpec(**plain)  # type: ignore[arg-type]

    async def make(self, **fields: object) -> Sandbox:
        """A sandbox."""
        return await self.sandboxes.create(self.spec(**fields))

    def excused(self, *words: str) -> bool:
        """Whether the driver declares one of these."""
        return bool(set(words) & set(self.driver.probe().declares))


async def output(sandbox: Sandbox, command: str) -> str:
    """What a command that must succeed printed."""
    result = await sandbox.exec(command)
    assert result.ok, result
    return result.stdout.strip()


async def until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 20.0) -> None:
    """Waits for a condition that other processes bring about."""
    with anyio.fail_after(timeout_s):
        while not await condition():  # noqa: ASYNC110 (no event can come from another process)
            await anyio.sleep(0.01)


async def gone(driver: SandboxDriver) -> bool:
    """Whether none of its sandboxes runs."""
    assert isinstance(driver, SupportsReap)
    return not await driver.records()


async def passed(sandbox: Sandbox, number: int) -> bool:
    """Whether the command that counts in the file `count` is past a number."""
    return await number_in(sandbox, "count") > number


async def number_in(sandbox: Sandbox, path: str) -> int:
    """What a counting command has reached; -1 before it began."""
    return int(await sandbox.read(path)) if await sandbox.exists(path) else -1


HARM = (
    "printf 'root:x:0:%05000d:r:/root:/bin/sh\\n' 1 > /etc/passwd; printf 'g:x:%05000d:root\\n' 1 > /etc/group",
    "printf 'root:x:0:0:r:/ro\\0ot:/bin/sh\\n' > /etc/passwd",
    "rm -f /etc/passwd /etc/group; mkdir /etc/passwd /etc/group",
    "mv /.ropewalk /was; ln -s /etc /.ropewalk",
    "mv /.ropewalk /was; echo x > /.ropewalk",
    "rm -rf /work /tmp /etc /root /home; ln -s /nowhere /work",
    "chmod 0 / /work /etc /tmp",
)
"""What root inside may do to what an agent reads or stands on."""


class SandboxConformance:
    """Inherit, and provide the fixture `world`."""

    async def test_probe_says_what_can_be_done(self, world: SandboxWorld) -> None:
        started = time.monotonic()
        probe = world.driver.probe()
        assert probe.usable, probe.problems
        assert probe.version
        assert probe.isolation
        assert time.monotonic() - started < 10  # 2 s where the machine is idle

    async def test_a_created_sandbox_answers(self, world: SandboxWorld) -> None:
        async with await world.make() as sandbox:
            assert sandbox.record.driver == world.driver.probe().driver
            assert sandbox.record.snapshot is None
            assert await output(sandbox, "echo hello && pwd") == "hello\n/work"

    async def test_create_is_idempotent_by_id(self, world: SandboxWorld) -> None:
        id = new_id("sandbox")
        first = await world.driver.create(world.spec(), id=id)
        assert await world.driver.create(world.spec(), id=id) == first
        with pytest.raises(CallerError, match="another"):
            await world.driver.create(world.spec(hostname="else"), id=id)
        await world.driver.destroy(id)

    async def test_concurrent_creates_with_one_id_make_one_sandbox(self, world: SandboxWorld) -> None:
        id = new_id("sandbox")
        records = []

        async def create() -> None:
            records.append(await world.driver.create(world.spec(), id=id))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(create)
        assert records[0] == records[1] == records[2]
        await world.driver.destroy(id)

    @pytest.mark.parametrize(
        "fields",
        [
            {"tenant": ""}, {"tenant": "Acme"}, {"tenant": "../x"}, {"tenant": "a" * 40}, {"image": "0" * 64},
            {"image": "../x"}, {"layers": ("0" * 64,)}, {"layers": ("..",)}, {"workdir": "work"},
            {"workdir": "/a/../b"}, {"hostname": "a b"}, {"hostname": ""}, {"memory_bytes": 0}, {"disk_bytes": -1},
            {"processes_max": 0}, {"cpus": 0.0}, {"cpus": float("nan")}, {"idle_timeout_s": 0.0},
            {"idle_timeout_s": float("nan")}, {"env": {"A=B": "c"}}, {"env": {"A": "b\0"}},
            {"env": {"A": "b" * 200_000}},
        ],
    )  # fmt: skip
    async def test_a_bad_field_is_refused_and_leaves_nothing(
        self, world: SandboxWorld, fields: dict[str, object]
    ) -> None:
        with pytest.raises(CallerError):
            await world.driver.create(world.spec(**fields), id=new_id("sandbox"))
        assert not list(world.layout.sandboxes.iterdir())

    async def test_a_bad_id_is_refused(self, world: SandboxWorld) -> None:
        for id in ("", "sandbox:", "sandbox:../../x", "snapshot:" + "0" * 32, new_id("image")):
            with pytest.raises(CallerError):
                await world.driver.create(world.spec(), id=id)
            with pytest.raises(CallerError):
                await world.driver.destroy(id)

    async def test_the_specification_reaches_commands(self, world: SandboxWorld) -> None:
        os.environ["ROPEWALK_TEST_SECRET"] = "of the host"
        try:
            async with await world.make(workdir="/srv/deep/er", env={"COLOUR": "blue"}, hostname="box") as sandbox:
                assert await output(sandbox, "pwd; hostname; echo $COLOUR") == "/srv/deep/er\nbox\nblue"
                assert "ROPEWALK" not in await output(sandbox, "env; cat /proc/*/environ 2>/dev/null || true")
        finally:
            del os.environ["ROPEWALK_TEST_SECRET"]

    async def test_higher_layers_hide_lower_ones(self, world: SandboxWorld) -> None:
        low = world.add_layer({"work/a": b"low", "work/b": b"low"})
        high = world.add_layer({"work/b": b"high"})
        async with await world.make(layers=(low, high)) as sandbox:
            assert await output(sandbox, "cat a b") == "lowhigh"

    async def test_many_at_once_leave_nothing(self, world: SandboxWorld) -> None:
        async def use() -> None:
            for _ in range(2):
                async with await world.make() as sandbox:
                    assert await output(sandbox, "echo $$") != ""

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(use)
        assert not list(world.layout.sandboxes.iterdir())

    async def test_what_is_written_stays_in_the_sandbox(self, world: SandboxWorld) -> None:
        layer = world.add_layer({"work/a": b"original"})
        async with await world.make(layers=(layer,)) as one, await world.make(layers=(layer,)) as two:
            await output(one, "echo changed > a; rm -r /usr/share; echo x > /etc/passwd")
            assert await output(two, "cat a; ls -d /usr/share; head -c 4 /etc/passwd") == "original/usr/share\nroot"

    async def test_several_streams_at_once(self, world: SandboxWorld) -> None:
        async with await world.make() as sandbox:
            others = [Sandbox(world.driver, sandbox.record, world.sandboxes) for _ in range(3)]
            for number, other in enumerate(others):
                assert await output(other, f"echo {number}") == str(number)
            for other in others:
                await other.disconnect()

    async def test_too_much_memory_ends_typed(self, world: SandboxWorld) -> None:
        if world.excused("no_memory_limit"):
            pytest.skip("the driver declares no_memory_limit")
        async with await world.make(memory_bytes=64 * MIB) as sandbox:
            result: ExecResult | None = None
            try:
                result = await sandbox.exec(["python3", "-c", "x = bytearray(300 << 20)"])
            except SandboxGoneError as error:
                assert error.termination is Termination.OUT_OF_MEMORY
            if result is not None:
                assert result.termination is Termination.OUT_OF_MEMORY, result
                assert await output(sandbox, "echo alive") == "alive"
            assert ((await world.driver.stats(sandbox.id)).out_of_memory_kills or 0) >= 1

    async def test_a_full_disk_is_an_error_inside(self, world: SandboxWorld) -> None:
        async with await world.make() as sandbox:
            result = await sandbox.exec("head -c 60M /dev/zero > big")
            assert result.exit_code != 0
            assert "space" in result.stderr.lower()
            assert ((await sandbox.stats()).disk_bytes or 0) >= 31 * MIB
            assert await output(sandbox, "rm big; echo more > small; cat small") == "more"

    async def test_a_fork_bomb_stays_inside(self, world: SandboxWorld) -> None:
        if world.excused("no_processes_limit", "single_user"):
            pytest.skip("the driver limits processes per user")
        async with await world.make(processes_max=32) as sandbox:
            bomb = "import os\ntry:\n  while True: os.fork()\nexcept OSError: os._exit(3)"
            result = await sandbox.exec(["python3", "-c", bomb], timeout_s=20)
            assert result.exit_code == 3 or result.termination is Termination.TIMEOUT
            assert await output(sandbox, "echo alive") == "alive"

    async def test_resources_are_measured(self, world: SandboxWorld) -> None:
        async with await world.make() as sandbox:
            burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
            await output(sandbox, f"python3 -c '{burn}'")
            stats = await sandbox.stats()
            assert isinstance(stats, SandboxStats)
            if not world.excused("no_cpu_accounting"):
                assert stats.cpu_s is not None
                assert 0.25 <= stats.cpu_s <= 5
            assert stats.processes is not None
            assert stats.processes >= 1
            assert stats.memory_bytes_unique is None or stats.memory_bytes_unique > 0

    async def test_a_snapshot_loses_nothing_and_the_sandbox_runs_on(self, world: SandboxWorld) -> None:
        async with await world.make() as sandbox:
            writer = await sandbox.start(
                "n=0; while true; do n=$((n+1)); echo $n > count.new; mv count.new count; done"
            )
            await until(lambda: passed(sandbox, 0))
            snapshot = await sandbox.snapshot(label="busy")
            before = await number_in(sandbox, "count")
            await until(lambda: passed(sandbox, before))
            await writer.kill()
            async with await snapshot.fork_one() as child:
                assert 0 < int(await child.read("count")) <= before + 1

    async def test_equal_states_have_equal_ids(self, world: SandboxWorld) -> None:
        async with await world.make() as one, await world.make() as two:
            ids = []
            for sandbox in (one, two):
                await output(sandbox, "echo 1 > a; mkdir d; touch d/x; chmod 700 d")
                ids.append((await sandbox.snapshot()).id)
            assert ids[0] == ids[1] == (await one.snapshot()).id
            await output(two, "chmod 755 d")
            assert (await two.snapshot()).id != ids[0]

    async def test_a_fork_has_the_saved_state(self, world: SandboxWorld) -> None:
        layer = world.add_layer({"work/gone": b"1", "work/tree/old": b"1", "work/kept": b"1"})
        async with await world.make(layers=(layer,)) as sandbox:
            await output(sandbox, STATE)
            if not world.excused("single_user"):
                await output(sandbox, "chown 1000:1000 owned")
            seen = await output(sandbox, LOOK)
            snapshot = await sandbox.snapshot()
            assert (await sandbox.exec("ls gone")).exit_code != 0
        async with await snapshot.fork_one() as child:
            assert await output(child, LOOK) == seen
            assert (
                await output(child, "cat kept; ls -A tree; test ! -e gone && test ! -e pipe && test ! -u suid")
                == "1new"
            )

    async def test_forks_are_apart_and_have_identities_of_their_own(self, world: SandboxWorld) -> None:
        async with await world.make() as sandbox:
            await sandbox.write("a", "1")
            snapshot = await sandbox.snapshot()
            async with snapshot.fork(2) as (one, two):
                identity = "hostname; cat /proc/sys/kernel/random/boot_id"
                seen = {await output(each, identity) for each in (sandbox, one, two)}
                assert len(seen) == 3
                assert one.id != two.id
                assert one.record.snapshot == two.record.snapshot == snapshot.id
                await one.write("a", "2")
                assert await two.read("a") == await sandbox.read("a") == b"1"
                grandchild = await one.snapshot()
                assert grandchild.record.parent == snapshot.id
                async with await grandchild.fork_one() as third:
                    assert await third.read("a") == b"2"

    async def test_forks_nest_deeply(self, world: SandboxWorld) -> None:
        sandbox = await world.make()
        for level in range(20):
            await sandbox.exec(f"echo {level} > level; echo {level} > f{level}; rm -f f{level - 2}")
            snapshot = await sandbox.snapshot()
            await sandbox.close()
            sandbox = await snapshot.fork_one()
        assert await output(sandbox, "cat level; echo f*") == "19\nf18 f19"
        await sandbox.close()

    @pytest.mark.parametrize("harm", HARM)
    async def test_no_state_that_can_be_saved_keeps_its_forks_from_starting(
        self, world: SandboxWorld, harm: str
    ) -> None:
        async with await world.make() as sandbox:
            await sandbox.exec(harm)
            snapshot = await sandbox.snapshot()
        async with await snapshot.fork_one() as child:
            assert (await child.exec(["echo", "on"], cwd="/")).stdout == "on\n"
            assert (await child.exec("id -u", user="0")).termination is Termination.FINISHED

    async def test_holes_are_not_written_out_on_the_host(self, world: SandboxWorld) -> None:
        async with await world.make() as sandbox:
            await output(sandbox, "truncate -s 1T hole; echo kept > kept")
            with pytest.raises(CallerError, match="larger"):
                await sandbox.snapshot()
            await output(sandbox, "truncate -s 1M hole")
            async with await (await sandbox.snapshot()).fork_one() as child:
                assert await output(child, "cat kept; stat -c %s hole") == f"kept\n{MIB}"

    async def test_forks_get_no_idle_time_limit_or_labels_of_whoever_saved_the_state_first(
        self, world: SandboxWorld
    ) -> None:
        ids = set()
        for idle_s in (100.0, 200.0):
            async with await world.make(idle_timeout_s=idle_s, labels={"of": str(idle_s)}) as sandbox:
                await sandbox.write("a", "1")
                snapshot = await sandbox.snapshot()
                ids.add(snapshot.id)
        assert len(ids) == 1
        async with await snapshot.fork_one(idle_timeout_s=300.0) as child:
            assert (child.record.spec.idle_timeout_s, child.record.spec.labels) == (300.0, {})
        async with await snapshot.fork_one(labels={"job": "17"}) as child:
            assert child.record.spec.labels == {"job": "17"}
        async with snapshot.fork(2, labels={"job": "18"}) as children:
            assert [each.record.spec.labels for each in children] == [{"job": "18"}] * 2

    async def test_an_id_of_a_dead_sandbox_is_not_answered_for(self, world: SandboxWorld) -> None:
        id, spec, other = new_id("sandbox"), world.spec(lease=Lease.DETACHED, idle_timeout_s=0.2), world.again()
        await other.create(spec, id=id)
        world.close(other)
        await until(lambda: gone(world.driver))
        with pytest.raises(UnavailableError):
            await world.driver.create(spec, id=id)
        await world.driver.destroy(id)

    async def test_unknown_and_foreign_snapshots_are_refused(self, world: SandboxWorld) -> None:
        async with await world.make() as sandbox:
            await sandbox.write("a", "1")
            record = (await sandbox.snapshot()).record
        wrong: tuple[dict[str, Any], ...] = (
            {"id": "snapshot:" + "0" * 32}, {"driver": "another"}, {"layers": ("0" * 64,)},
        )  # fmt: skip
        for others in wrong:
            with pytest.raises((CallerError, IntegrityError)):
                await world.driver.fork(msgspec.structs.replace(record, **others), id=new_id("sandbox"))
        assert not list(world.layout.sandboxes.iterdir())

    async def test_destroy_is_idempotent_and_final(self, world: SandboxWorld) -> None:
        sandbox = await world.make()
        await world.driver.destroy(sandbox.id)
        await world.driver.destroy(sandbox.id)
        await world.driver.destroy(new_id("sandbox"))
        for call in (world.driver.stream, world.driver.snapshot, world.driver.stats):
            with pytest.raises(SandboxGoneError):
                await call(sandbox.id)
        await sandbox.disconnect()

    async def test_there_is_no_network(self, world: SandboxWorld) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            code = (
                "import socket\nfor host in ('127.0.0.1', '192.0.2.1', '8.8.8.8'):\n"
                f"  s = socket.socket(); s.settimeout(2); print(s.connect_ex((host, {port})) != 0)"
            )
            async with await world.make() as sandbox:
                assert await output(sandbox, f'python3 -c "{code}"') == "True\nTrue\nTrue"
                assert await output(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo"

    async def test_the_host_is_out_of_sight(self, world: SandboxWorld, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("x")
        secret.chmod(0o644)
        async with await world.make() as sandbox:
            assert (await sandbox.exec(["cat", str(secret)])).exit_code != 0
            assert (await sandbox.exec(["ls", str(world.layout.root)])).exit_code != 0
            processes = (await output(sandbox, "cat /proc/[0-9]*/comm")).split()
            assert "pytest" not in processes
            assert len(processes) < 5

    async def test_tenants_are_apart(self, world: SandboxWorld) -> None:
        async with await world.make(tenant="one") as one, await world.make(tenant="two") as two:
            await one.write("/tmp/a", "1")
            sleeper = await one.start(["sleep", "100"])
            assert not await two.exists("/tmp/a")
            assert "sleep" not in await output(two, "cat /proc/[0-9]*/comm")
            await sleeper.kill()

    async def test_attached_sandboxes_end_with_their_driver(self, world: SandboxWorld) -> None:
        other = world.again()
        record = await other.create(world.spec(), id=new_id("sandbox"))
        world.close(other)
        with pytest.raises(SandboxGoneError):
            await world.driver.stream(record.id)
        assert not list(world.layout.sandboxes.iterdir())

    async def test_detached_sandboxes_outlive_their_driver(self, world: SandboxWorld) -> None:
        other = world.again()
        assert isinstance(world.driver, SupportsReap)
        record = await other.create(world.spec(lease=Lease.DETACHED), id=new_id("sandbox"))
        world.close(other)
        assert await world.driver.reap() == ()
        assert await world.driver.records() == (record,)
        sandbox = await world.sandboxes.open(record.id)
        assert await output(sandbox, "echo still here") == "still here"
        snapshot = await sandbox.snapshot()
        async with await snapshot.fork_one(lease=Lease.DETACHED) as child:
            assert child.record.spec.lease is Lease.DETACHED
        await sandbox.close()
        assert await world.driver.records() == ()
        assert not list(world.layout.sandboxes.iterdir())

    async def test_an_idle_sandbox_ends_itself(self, world: SandboxWorld) -> None:
        other = world.again()
        record = await other.create(world.spec(lease=Lease.DETACHED, idle_timeout_s=0.3), id=new_id("sandbox"))
        world.close(other)
        assert isinstance(world.driver, SupportsReap)
        await until(lambda: gone(world.driver))
        await world.driver.reap()
        with pytest.raises(SandboxGoneError):
            await world.driver.stats(record.id)
        assert not list(world.layout.sandboxes.iterdir())


STATE = """
rm gone; rm -r tree; mkdir tree; touch tree/new; mkfifo pipe; ln -s nowhere link; echo hard > one; ln one two
touch -d '2001-02-03 04:05:06.123456789' kept; chmod 640 one; mkdir -p secret/deep; chmod 500 secret; touch owned
cp /bin/true suid; chmod 4755 suid; printf 'x' > "$(printf 'odd\\nname')"; rm -rf /usr/share; mkdir /usr/share
"""
LOOK = """
chmod u-s suid; rm -f pipe
find . /usr/share -printf '%p %y %m %U:%G %n %s %l\\n' | sed 's/^\\(.* d [0-9]* [0-9:]*\\) .*/\\1/' | sort
stat -c %y kept; cat one two kept
"""
