"""What callers say of sandboxes, rightly and wrongly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ropewalk.app.machines import Machines, on_disk, open_machines
from ropewalk.app.ropewalk import Ropewalk
from ropewalk.core.errors import CallerError
from ropewalk.sandbox.contract import Lease
from ropewalk.sandbox.drivers.process.plan import check_spec
from ropewalk.sandbox.images import ImageRecord
from ropewalk.sandbox.process import shell


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: Any, **__: Any) -> ImageRecord:
        return ImageRecord(layers=(), env={}, label="x")

    monkeypatch.setattr(Machines, "image", found)


@pytest.mark.usefixtures("image")
async def test_sizes_are_whole_numbers_and_settings_have_names(tmp_path: Path) -> None:
    async with open_machines(state=tmp_path / "state") as machines:
        spec = await machines.spec("default", memory_mib=256, disk_mib=128, cpus=1, lease=Lease.DETACHED)
        assert (spec.memory_bytes >> 20, spec.disk_bytes >> 20, spec.lease) == (256, 128, Lease.DETACHED)
        with pytest.raises(CallerError, match="'memory'") as refused:
            await machines.spec("default", memory=256)
        assert "memory_mib" in refused.value.next_step
        wrong: Any
        for wrong in ("256", 0, -1, True, 2.5):
            with pytest.raises(CallerError, match="memory_mib is"):
                await machines.spec("default", memory_mib=wrong)
        with pytest.raises(CallerError, match="cpus: Expected"):
            await machines.spec("default", cpus="two")


@pytest.mark.usefixtures("image")
async def test_no_sandbox_has_more_memory_than_the_machine(tmp_path: Path) -> None:
    there_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    async with open_machines(state=tmp_path / "state") as machines:
        check_spec(await machines.spec("default", memory_mib=there_mib - 1))
        with pytest.raises(CallerError, match=f"this machine has {there_mib} MiB"):
            check_spec(await machines.spec("default", memory_mib=999_999_999))


@pytest.mark.parametrize("command", [5, None, b"ls", ["ls", 5]])
def test_a_command_is_text_or_words(command: Any) -> None:
    with pytest.raises(CallerError, match="command"):
        shell(command)
    assert shell("ls") == ("/bin/sh", "-c", "ls") and shell(["ls"]) == ("ls",)


def test_a_plain_with_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(CallerError) as refused, Ropewalk.open(state=tmp_path / "state"):
        pass
    assert "async with" in refused.value.next_step and "RopewalkSync" in refused.value.next_step


def test_a_folder_of_a_plain_name_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool.tar").touch()
    assert on_disk("tool") is None and on_disk("default") is None and on_disk("./missing") is None
    for name in ("./tool", str(tmp_path / "tool"), ".", "tool.tar", "./tool.tar"):
        assert on_disk(name) == Path(name)
