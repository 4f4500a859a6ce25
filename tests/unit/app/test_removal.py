"""Images go only where nothing stands on them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.app.removal import remove_image
from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.sandbox import Sandboxes
from ropewalk.sandbox.images import ImageRecord, ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.security.tenants import TenantContext
from ropewalk.store.blobs import open_blobs
from ropewalk.store.layout import Layout
from ropewalk.testing.unsandboxed import UnsandboxedDriver, unsandboxed_spec


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
