"""The service: nothing is left behind, whatever fails; snapshots are found again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, UnavailableError
from ropewalk.core.ids import new_id
from ropewalk.core.records import canonical_bytes
from ropewalk.sandbox import Lease, Sandboxes, SandboxGoneError, SandboxRecord, SandboxSpec, SnapshotRecord
from ropewalk.sandbox.images import ImageRecord, ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.security.tenants import TenantContext
from ropewalk.store.layout import Layout
from ropewalk.testing.unsandboxed import (
    NoImages,
    NoLayers,
    UnsandboxedDriver,
    unsandboxed_spec,
)


class BrittleDriver(UnsandboxedDriver):
    """Fails the forks and creations whose number is told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failing: set[int] = set()
        self.made = 0
        self.destroyed: list[str] = []
        self.hang = False

    async def _maybe(self) -> None:
        self.made += 1
        if self.hang:
            await anyio.sleep_forever()
        if self.made in self.failing:
            raise UnavailableError("no room")

    async def create(self, spec: SandboxSpec, *, id: str) -> SandboxRecord:
        await self._maybe()
        return await super().create(spec, id=id)

    async def fork(self, snapshot: SnapshotRecord, *, id: str, lease: Lease = Lease.ATTACHED) -> SandboxRecord:
        record = await super().fork(snapshot, id=id, lease=lease)
        await self._maybe()
        return record

    async def destroy(self, id: str) -> None:
        self.destroyed.append(id)
        await super().destroy(id)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[BrittleDriver]:
    (tmp_path / "s").mkdir()
    driver = BrittleDriver(tmp_path / "s")
    yield driver
    assert not driver._agents, "a test left sandboxes behind"


@pytest.fixture
def service(driver: BrittleDriver, tmp_path: Path) -> Sandboxes:
    return Sandboxes(driver, Layout(tmp_path / "state").ensure(), images=NoImages(), layers=NoLayers())


async def test_a_failed_creation_leaves_nothing(service: Sandboxes, driver: BrittleDriver) -> None:
    driver.failing = {1}
    with pytest.raises(UnavailableError):
        await service.create(unsandboxed_spec())
    assert len(driver.destroyed) == 1


async def test_a_cancelled_creation_leaves_nothing(service: Sandboxes, driver: BrittleDriver) -> None:
    driver.hang = True
    with anyio.move_on_after(0.05):
        await service.create(unsandboxed_spec())
    assert len(driver.destroyed) == 1


async def test_a_given_id_makes_creation_idempotent(service: Sandboxes) -> None:
    name = new_id("sandbox")
    async with await service.create(unsandboxed_spec(), id=name) as first:
        again = await service.create(unsandboxed_spec(), id=name)
        assert again.record == first.record
        await again.disconnect()
    with pytest.raises(CallerError):
        await service.create(unsandboxed_spec(), id="sandbox:../../etc")


async def test_open_finds_what_runs(service: Sandboxes) -> None:
    async with await service.create(unsandboxed_spec()) as sandbox:
        await sandbox.write("x", "1")
        other = await service.open(sandbox.id)
        assert await other.read("x") == b"1"
        assert [record.id for record in await service.records()] == [sandbox.id]
        await other.disconnect()
        name = sandbox.id
    with pytest.raises(SandboxGoneError):
        await service.open(name)


async def test_a_sandbox_ends_however_its_block_is_left(service: Sandboxes, driver: BrittleDriver) -> None:
    with pytest.raises(ZeroDivisionError):
        async with await service.create(unsandboxed_spec()):
            raise ZeroDivisionError
    with anyio.move_on_after(0.2):
        async with await service.create(unsandboxed_spec()) as sandbox:
            await sandbox.exec("sleep 100")
    assert not driver._agents


async def test_forks_share_a_state_and_not_each_others(service: Sandboxes, driver: BrittleDriver) -> None:
    async with await service.create(unsandboxed_spec()) as sandbox:
        await sandbox.write("x", "1")
        snapshot = await sandbox.snapshot("ready")
        await sandbox.write("x", "2")
        async with snapshot.fork(4) as children:
            assert len({child.id for child in children}) == 4
            assert {child.record.snapshot for child in children} == {snapshot.id}
            await asyncio.gather(*(child.write("x", child.id) for child in children))
            assert [await child.read("x") for child in children] == [child.id.encode() for child in children]
        assert [record.id for record in await service.records()] == [sandbox.id]
        async with await service.snapshot(snapshot.id).fork_one() as child:
            assert await child.read("x") == b"1"


async def test_one_failed_fork_gives_its_error_and_no_fork(service: Sandboxes, driver: BrittleDriver) -> None:
    async with await service.create(unsandboxed_spec()) as sandbox:
        snapshot = await sandbox.snapshot()
        driver.failing = {4}
        with pytest.raises(UnavailableError, match="no room"):
            async with snapshot.fork(4):
                raise AssertionError("not reached")
        assert [record.id for record in await service.records()] == [sandbox.id]
        with pytest.raises(CallerError):
            async with snapshot.fork(0):
                pass


async def test_snapshots_are_found_after_a_restart(service: Sandboxes, tmp_path: Path) -> None:
    async with await service.create(unsandboxed_spec()) as sandbox:
        saved = await sandbox.snapshot("one")
        other = await sandbox.snapshot("two")
    again = Sandboxes(service.driver, Layout(tmp_path / "state"), images=NoImages(), layers=NoLayers())
    assert [record.label for record in again.snapshots()] == ["one", "two"]
    assert again.snapshot(saved.id).record == saved.record
    await again.drop_snapshot(other.id)
    assert [record.label for record in again.snapshots()] == ["one"]
    with pytest.raises(CallerError):
        again.snapshot(other.id)
    with pytest.raises(CallerError):
        await again.drop_snapshot(other.id)
    file = next((tmp_path / "state" / "snapshots").glob("*.json"))
    file.write_bytes(file.read_bytes().replace(b"one", b"one\0"))
    with pytest.raises(IntegrityError):
        again.snapshot(saved.id)


def saved(number: int, layers: tuple[str, ...], *, tenant: str = "tests") -> SnapshotRecord:
    return SnapshotRecord(
        id=f"snapshot:{number:032x}", driver="x", tenant=tenant, parent=None, spec=unsandboxed_spec(tenant=tenant),
        layers=layers, memory=False, unique_bytes=0, data_class="public", label=f"{number}", created_s=number,
    )  # fmt: skip


async def test_dropping_a_snapshot_removes_only_what_snapshots_made_and_nothing_needs(tmp_path: Path) -> None:
    """A task's, a grader's or an image's layers stay, whoever else stood on them; so do those of running sandboxes."""
    layout = Layout(tmp_path / "state").ensure()
    layers = LayerStore(layout)
    (tmp_path / "disk").mkdir()

    def written(name: str) -> str:
        (tmp_path / "disk" / name).write_text(name)
        return layers.add_tree(tmp_path / "disk", transient=True).digest

    wheel = layers.add_files({"wheel": b""}).digest
    low, middle, high, common = (written(name) for name in ("low", "middle", "high", "common"))
    # Made by a snapshot first, and then by a task, too: now it is the task's.
    assert layers.add_tree(tmp_path / "disk").digest == common
    driver = UnsandboxedDriver(tmp_path / "s")
    service = Sandboxes(driver, layout, images=NoImages(), layers=layers)
    for record in (saved(0, (wheel, low)), saved(1, (wheel, low, middle, common)), saved(2, (wheel, low, high))):
        service._store(record)
    async with await service.create(unsandboxed_spec(layers=(wheel, low, high))):
        await service.drop_snapshot(saved(0, ()).id)
        await service.drop_snapshot(saved(2, ()).id)
        assert layers.digests() == {wheel, low, middle, high, common}
        await service.drop_snapshot(saved(1, ()).id)
        assert layers.digests() == {wheel, low, high, common}
    service._store(saved(3, (wheel,)))
    await service.drop_snapshot(saved(3, ()).id)  # what an earlier one had to leave goes with the next
    assert layers.digests() == {wheel, common}


@pytest.mark.parametrize("durable", [True, False])
async def test_layers_are_on_the_disk_before_a_record_speaks_of_them(tmp_path: Path, durable: bool) -> None:
    layout = Layout(tmp_path / "state").ensure()
    settled: list[tuple[tuple[str, ...], list[Path]]] = []

    class Settling(NoLayers):
        def settle(self, digests: Iterable[str]) -> None:
            settled.append((tuple(digests), list(layout.snapshots.glob("*.json"))))

    service = Sandboxes(UnsandboxedDriver(tmp_path / "s"), layout, images=NoImages(), layers=Settling())
    async with await service.create(unsandboxed_spec()) as sandbox:
        snapshot = await sandbox.snapshot(durable=durable)
        assert settled == ([(snapshot.record.layers, [])] if durable else [])
        await sandbox.snapshot()  # the same state, of which it matters now
        assert len(settled) == 1 + durable


async def test_a_record_that_goes_while_all_are_read_is_not_missed(
    service: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing takes no lock."""
    for number in range(3):
        service._store(saved(number, ()))
    read = Path.read_bytes

    def racing(path: Path) -> bytes:
        if path == service._file(saved(1, ()).id):
            path.unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", racing)
    assert [record.id for record in service.snapshots()] == [saved(number, ()).id for number in (0, 2)]


async def test_a_sandbox_stands_on_what_is_its_tenants_or_everybodys(tmp_path: Path) -> None:
    """Also an administrator's service makes nobody a sandbox of another tenant's layers; and what a snapshot saved is
    its tenant's alone."""
    layout = Layout(tmp_path / "state").ensure()
    layers = LayerStore(layout)
    images = ImageStore(layout, layers)
    mine = layers.add_files({"mine": b""}, tenant="tests").digest
    ours = layers.add_files({"ours": b""}).digest
    private = ImageStore(layout, layers, tenant="tests").add(ImageRecord(layers=(mine,)))
    public = images.add(ImageRecord(layers=(ours,)))
    service = Sandboxes(UnsandboxedDriver(tmp_path / "s"), layout, images=images, layers=layers)

    async def make(tenant: str, image: str, *stack: str) -> None:
        async with await service.create(unsandboxed_spec(tenant=tenant, image=image, layers=stack)):
            pass

    await make("tests", private.digest, mine, ours)
    await make("theirs", public.digest, ours)
    for image, stack in ((private.digest, ()), (public.digest, (mine,)), ("0" * 64, ()), (public.digest, ("0" * 64,))):
        with pytest.raises(CallerError, match=f"There is no (image|layer) '{(*stack, image)[0]}'"):
            await make("theirs", image, *stack)
    (tmp_path / "disk").mkdir()
    saved_layer = layers.add_tree(tmp_path / "disk", transient=True).digest
    assert not layers.is_usable(saved_layer, "tests")
    record = msgspec.structs.replace(
        saved(1, (saved_layer,)), spec=unsandboxed_spec(tenant="tests", image=private.digest, layers=(saved_layer,))
    )
    service._store(record)
    assert layers.is_usable(saved_layer, "tests") and not layers.is_usable(saved_layer, "theirs")
    stolen = msgspec.structs.replace(record, id=f"snapshot:{2:032x}", tenant="theirs")
    on_ours = msgspec.structs.replace(stolen, spec=unsandboxed_spec(tenant="theirs", image=public.digest))
    on_theirs = msgspec.structs.replace(stolen, layers=())
    for each, kind in ((stolen, "(image|layer)"), (on_ours, "layer"), (on_theirs, "image")):
        (layout.snapshots / f"{2:032x}.json").write_bytes(canonical_bytes(each))
        with pytest.raises(CallerError, match=f"There is no {kind}"):
            await service.fork(stolen.id)


def test_a_layer_of_before_there_were_tenants_is_everybodys(tmp_path: Path) -> None:
    layers = LayerStore(Layout(tmp_path / "state").ensure())
    old = layers.add_files({"old": b""}, tenant="tests").digest
    assert not layers.is_usable(old, "theirs")
    shutil.rmtree(layers.path(old).parent / "tenants")
    assert layers.is_usable(old, "theirs")
    layers.claim(old, "tests")
    assert layers.is_usable(old, "theirs")


async def test_no_snapshot_is_dropped_while_somebody_keeps_one(service: Sandboxes, tmp_path: Path) -> None:
    """In this process or another: the lock is the file's."""
    service._store(saved(0, ()))
    other = Sandboxes(service.driver, Layout(tmp_path / "state"), images=NoImages(), layers=NoLayers())
    async with service.keeping(), other.keeping():
        with anyio.move_on_after(0.1) as patience:
            await other.drop_snapshot(saved(0, ()).id)
        assert patience.cancelled_caught
    async with other.dropping() as drop:
        with anyio.move_on_after(0.1) as patience:
            async with service.keeping():
                raise AssertionError("not reached")
        assert patience.cancelled_caught
        await drop(saved(0, ()).id)
    assert service.snapshots() == ()


@pytest.mark.parametrize("start", ["create", "fork"])
async def test_nothing_is_dropped_under_a_sandbox_that_is_being_made(
    service: Sandboxes, driver: BrittleDriver, tmp_path: Path, start: str
) -> None:
    """Nobody but its maker knows yet what it stands on."""
    other = Sandboxes(service.driver, Layout(tmp_path / "state"), images=NoImages(), layers=NoLayers())
    service._store(saved(0, ()))
    driver.workdir(saved(0, ()).id).mkdir()
    driver.hang = True
    async with anyio.create_task_group() as group:
        group.start_soon(service.create, unsandboxed_spec()) if start == "create" else group.start_soon(
            service.fork, saved(0, ()).id
        )
        while not driver.made:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        with anyio.move_on_after(0.1) as patience:
            async with other.dropping():
                raise AssertionError("not reached")
        assert patience.cancelled_caught
        group.cancel_scope.cancel()
    await other.drop_snapshot(saved(0, ()).id)
    with pytest.raises(CallerError):
        await service.fork(saved(0, ()).id)


async def test_whoever_wants_to_drop_gets_a_turn_among_many_who_keep(service: Sandboxes, tmp_path: Path) -> None:
    over = anyio.Event()
    turns = 0

    async def keeps(mine: Sandboxes) -> None:
        nonlocal turns
        while not over.is_set():
            async with mine.keeping():
                turns += 1
                await anyio.sleep(0.02)
                async with mine.keeping():  # one within another never waits for who waits for it
                    await anyio.sleep(0.02)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(
                keeps,
                Sandboxes(service.driver, Layout(tmp_path / "state"), images=NoImages(), layers=NoLayers()),
            )
        while turns < 8:  # noqa: ASYNC110
            await anyio.sleep(0.005)
        with anyio.fail_after(5):
            for _ in range(5):
                async with service.dropping():
                    before = turns
                    await anyio.sleep(0.05)
                    assert turns == before
        over.set()


async def test_a_lock_held_by_a_block_within_outlives_the_outer_one(service: Sandboxes, tmp_path: Path) -> None:
    entered, leave = anyio.Event(), anyio.Event()

    async def within() -> None:
        async with service.keeping():
            entered.set()
            await leave.wait()

    async with service.keeping():
        child = asyncio.create_task(within())
        await entered.wait()
    with anyio.move_on_after(0.1) as patience:
        async with service.dropping():
            raise AssertionError("not reached")
    assert patience.cancelled_caught
    leave.set()
    await child
    async with service.dropping():
        pass


async def test_equal_states_are_one_snapshot_that_never_changes(service: Sandboxes) -> None:
    first = service._store(saved(0, ()))
    assert service._store(msgspec.structs.replace(first, label="again", created_s=9)) == first
    assert service.snapshots() == (first,)


async def test_a_tenant_sees_and_touches_only_its_own(service: Sandboxes, tmp_path: Path) -> None:
    def of(tenant: str) -> Sandboxes:
        return Sandboxes(
            service.driver, Layout(tmp_path / "state"), images=NoImages(), layers=NoLayers(),
            tenant=TenantContext(tenant=tenant),
        )  # fmt: skip

    mine, theirs = of("mine"), of("theirs")
    service._store(saved(0, (), tenant="mine"))
    snapshot = saved(0, ()).id
    async with await mine.create(unsandboxed_spec(tenant="mine")) as sandbox:
        assert [record.id for record in await mine.records()] == [sandbox.id]
        assert await theirs.records() == ()
        assert [record.id for record in mine.snapshots()] == [snapshot]
        assert theirs.snapshots() == ()
        with pytest.raises(SandboxGoneError):
            await theirs.open(sandbox.id)
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: theirs.create(unsandboxed_spec(tenant="mine")), lambda: theirs.destroy(sandbox.id),
            lambda: theirs.fork(snapshot), lambda: theirs.drop_snapshot(snapshot), lambda: theirs.save(sandbox.id),
        ]  # fmt: skip
        for call in refused:
            with pytest.raises(DeniedError):
                await call()
        with pytest.raises(DeniedError):
            theirs.snapshot(snapshot)
        other = await of("mine").open(sandbox.id)
        assert (await other.exec(["true"])).ok
        await other.disconnect()
        # Dead or half made, and so not among those that run, it is still another's.
        process = service.driver.process(sandbox.id)  # type: ignore[attr-defined]
        process.kill()
        await asyncio.to_thread(process.wait)
        assert await mine.records() == ()
        for dead in (lambda: theirs.destroy(sandbox.id), lambda: theirs.save(sandbox.id)):
            with pytest.raises(DeniedError):
                await dead()
    destroyed = service.driver.destroyed  # type: ignore[attr-defined]
    await theirs.destroy(new_id("sandbox"))
    with pytest.raises(SandboxGoneError):
        await theirs.save(new_id("sandbox"))
    assert destroyed == [sandbox.id]


async def test_an_unknown_snapshot_or_a_strange_id_is_refused(service: Sandboxes) -> None:
    with pytest.raises(CallerError):
        await service.fork("snapshot:" + "0" * 32)
    for name in ("snapshot:../x", "x", "sandbox:" + "0" * 32):
        with pytest.raises(CallerError):
            service.snapshot(name)
    with pytest.raises(CallerError):
        await service.destroy("snapshot:" + "0" * 32)
