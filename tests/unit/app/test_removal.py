"""Images go only where nothing stands on them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ropewalk.app.removal import remove_image, remove_run
from ropewalk.core.errors import CallerError, DeniedError, UnavailableError
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.episodes.context import AgentContext
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan
from ropewalk.rollout.policies.contract import ContextKind
from ropewalk.rollout.run import RunLoop
from ropewalk.sandbox import Sandboxes
from ropewalk.sandbox.images import ImageRecord, ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.security.tenants import TenantContext
from ropewalk.store.blobs import open_blobs
from ropewalk.store.layout import Layout
from ropewalk.testing.unsandboxed import UnsandboxedDriver, unsandboxed_spec
from tests.unit.rollout.worlds import Durable


class Place:
    """A state directory with a default image and another one."""

    def __init__(self, root: Path) -> None:
        layout = Layout(root / "state").ensure()
        self.layers = LayerStore(layout)
        self.images = ImageStore(layout, self.layers)
        self.default = self._image("python", "default")
        (layout.images / f"default-{'0' * 32}").write_text(self.default.digest)
        self.other = self._image("other", "other")
        (root / "s").mkdir()
        driver = UnsandboxedDriver(root / "s")

        def service(tenant: str) -> Sandboxes:
            return Sandboxes(
                driver, layout, images=self.images, layers=self.layers, tenant=TenantContext(tenant=tenant)
            )  # fmt: skip

        self.mine, self.theirs = service("tests"), service("theirs")
        self._custody: Any = SimpleNamespace(layout=layout, blobs=open_blobs(layout.blobs))
        self._machines: Any = SimpleNamespace(
            images=self.images, layers=self.layers, sandboxes=self.mine, tenant="tests"
        )

    def _image(self, name: str, label: str) -> ImageRecord:
        layer = self.layers.add_files({name: name.encode()})
        return self.images.add(ImageRecord(layers=(layer.digest,), label=label))

    async def remove(self, name: str) -> str:
        return await remove_image(self._custody, self._machines, name)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_an_image_that_nothing_stands_on_goes_with_its_layers(place: Place) -> None:
    assert await place.remove("other") == place.other.digest
    assert list(place.images.records()) == [place.default]
    assert place.layers.digests() == set(place.default.layers)
    assert await place.remove("default") == place.default.digest
    with pytest.raises(CallerError):
        await place.remove("default")


@pytest.mark.parametrize("theirs", [False, True], ids=["mine", "another tenant's"])
async def test_an_image_under_a_sandbox_stays(place: Place, theirs: bool) -> None:
    service, tenant = (place.theirs, "theirs") if theirs else (place.mine, "tests")
    async with await service.create(unsandboxed_spec(tenant=tenant, image=place.other.digest)) as sandbox:
        with pytest.raises(DeniedError) as refused:
            await place.remove("other")
        assert (sandbox.id in str(refused.value)) is not theirs
    await place.remove("other")


async def test_the_default_image_stays_while_any_sandbox_runs_whatever_its_own_image(place: Place) -> None:
    """Every agent runs Python out of it."""
    async with await place.theirs.create(unsandboxed_spec(tenant="theirs", image=place.other.digest)):
        with pytest.raises(DeniedError, match="agent"):
            await place.remove("default")
        assert place.layers.digests() >= set(place.default.layers)
    await place.remove("default")


async def test_a_runs_states_go_and_its_rewards_and_what_others_need_stay(tmp_path: Path) -> None:
    durable = Durable(tmp_path)
    journal = durable.journal()
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=2, concurrency=1, keep_failed=True))
    ids = []
    for name in ("mine", "theirs"):
        world = durable.world()
        ids.append(begin_run(world, journal, plan, [durable.task(name)]))
        await RunLoop(world, journal, ids[-1], policies={"noop": Clumsy(name)}).work()
    mine, theirs = ({s for s, owners in journal.holds().items() if any(id in owner for owner in owners)} for id in ids)
    assert mine & theirs, "both began from the same state"
    kept = {row.id for row in journal.episodes(ids[1])}
    custody: Any = SimpleNamespace(journal=journal)
    machines: Any = SimpleNamespace(sandboxes=durable.world().sandboxes)
    removed = await remove_run(custody, machines, ids[0])
    assert len(removed) == 1 and set(removed).isdisjoint(mine), (
        "the states of its unpaid episodes, of which both are one"
    )
    assert set(durable.snapshots) == set(journal.holds())
    assert {owner for owners in journal.holds().values() for owner in owners} - kept == {
        f"{ids[1]}/{durable.task('theirs').id}"
    }
    assert [row.value for row in journal.episodes(ids[0])] == [0.0, 0.0]
    assert len(durable.loaded(ids[0]).episodes) == 2
    assert await remove_run(custody, machines, ids[0]) == ()
    with pytest.raises(CallerError, match="There is no"):
        await remove_run(custody, machines, "run:01JDY0000000000000000000AA")
    with journal.own(ids[1]), pytest.raises(UnavailableError, match="Another process"):
        await remove_run(custody, machines, ids[1])


class Clumsy:
    """Writes what is not wanted."""

    context: ClassVar[ContextKind] = ContextKind.AGENT
    name = "noop"

    def __init__(self, text: str) -> None:
        self.text = text

    async def run(self, context: AgentContext) -> None:
        await context.shell(f"write pkg/code.py {self.text}")

    async def close(self) -> None:
        pass
