"""The synchronous face and the asynchronous one do the same; the driver underneath is a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk import Ropewalk, RopewalkSync
from ropewalk.core.errors import CallerError
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.store.layout import Layout
from tests.shared_image import lend_default_image

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    driver = ProcessDriver(Layout(tmp_path / "probe").ensure())
    probe = driver.probe()
    driver.close()
    if not probe.usable:
        pytest.skip(f"no process sandboxes here: {'; '.join(probe.problems)}")
    lend_default_image(Layout(tmp_path / "state"))
    return tmp_path / "state"


def test_the_synchronous_face(state: Path) -> None:
    with RopewalkSync.open(state=state) as rw:
        with rw.sandbox("default", memory_mib=256) as sandbox:
            sandbox.write("/work/a.txt", "six by seven")
            assert sandbox.exec("cat a.txt").stdout == "six by seven"
            ready = sandbox.snapshot(label="ready")
            with sandbox.start("echo one; echo two") as process:
                assert b"".join(chunk.data for chunk in process) == b"one\ntwo\n"
        with ready.fork(2) as children:
            assert [child.exec("cat a.txt").stdout for child in children] == ["six by seven"] * 2
            assert len({child.id for child in children}) == 2
        assert rw.sandboxes.records() == ()
        assert rw.profile.name == "embedded"
        with pytest.raises(CallerError, match="no setting"):
            rw.create_sandbox(memory=3)


async def test_errors_come_out_as_they_are(state: Path) -> None:
    with pytest.raises(CallerError, match="images are called"):
        async with Ropewalk.open(state=state) as rw, rw.sandbox("nowhere"):
            pass
    with pytest.raises(CallerError, match="cannot be read"):
        async with Ropewalk.open(state=state) as rw:
            await rw.run(state / "missing.toml")
    with pytest.raises(ZeroDivisionError):
        async with Ropewalk.open(state=state):
            1 / 0  # noqa: B018
