"""A `process` driver for tests: over a state directory of its own, with layers and images that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.sandbox.contract import SandboxDriver
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.sandbox.images import ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.store.layout import Layout
from ropewalk.testing.sandbox import SandboxWorld
from tests.shared_image import lend_default_image


@contextmanager
def process_world(state: Path, shared: Path) -> Iterator[SandboxWorld]:
    """A driver over `state`, closed at the end; layers, and the default image that is lent, lie below `shared`."""
    layout = Layout(state).ensure()
    lend_default_image(Layout(shared).ensure())
    layers = LayerStore(Layout(shared))
    images = ImageStore(Layout(shared), layers)
    made: list[ProcessDriver] = []

    def again() -> SandboxDriver:
        made.append(ProcessDriver(layout, layers=layers, images=images))
        return made[-1]

    def close(driver: SandboxDriver) -> None:
        assert isinstance(driver, ProcessDriver)
        driver.close()

    try:
        yield SandboxWorld(
            driver=again(), again=again, close=close, layout=layout, images=images, layers=layers,
            image=images.default().digest, add_layer=lambda files: layers.add_files(files).digest,
        )  # fmt: skip
    finally:
        for driver in made:
            driver.close()
