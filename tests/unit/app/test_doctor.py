"""A diagnosis comes to its end whatever is wrong with the machine, and speaks plainly."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.app import doctor
from ropewalk.app.configuration import open_profile
from ropewalk.app.doctor import Diagnosis, examine
from ropewalk.core.errors import CallerError
from ropewalk.orchestration.contract import Capacity, FleetProbe
from ropewalk.sandbox.contract import Probe
from ropewalk.store.layout import Layout


def probe(*declares: str) -> Callable[[], Probe]:
    return lambda: Probe(driver="x", usable=True, version="1", isolation="walls", declares=declares, problems=())


def denied(*_: object) -> bool:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/root/keys/keys.json")


def room(*, usable: bool = True) -> Callable[[], FleetProbe]:
    capacity = Capacity(cpus=8, cpus_free=8, memory_bytes=6 << 30, memory_bytes_free=6 << 30, hosts=1)
    return lambda: FleetProbe(driver="y", usable=usable, capacity=capacity, notes=("some note",))


def look(folder: Path, found: Callable[[], Probe], *, fleet: Callable[[], FleetProbe] | None = None) -> Diagnosis:
    return examine(
        open_profile("embedded"), Layout(folder / "state"), probe=found, fleet=fleet or room(), network=False
    )


def test_keys_of_another_user_are_one_line_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", denied)
    (keys,) = (check for check in look(tmp_path, probe()).checks if check.area == "keys")
    assert keys.state == "limited" and "another user" in keys.detail and "ROPEWALK_STATE" in keys.next_step


def test_the_fleet_says_what_it_has_room_for(tmp_path: Path) -> None:
    (line,) = (check for check in look(tmp_path, probe()).checks if check.area == "fleet")
    assert (line.name, line.state) == ("driver y", "ok")
    assert line.detail == "room for sandboxes of 8 CPUs and 6.0 GiB together; some note"
    found = look(tmp_path, probe(), fleet=room(usable=False))
    (line,) = (check for check in found.checks if check.area == "fleet")
    assert (line.state, line.next_step, found.ready) == ("missing", "some note", False)


def test_a_driver_that_the_system_stops_is_missing(tmp_path: Path) -> None:
    def stopped() -> Probe:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/sys/fs/cgroup")

    found = look(tmp_path, stopped)
    (driver,) = (check for check in found.checks if check.area == "sandbox")
    assert driver.state == "missing" and "/sys/fs/cgroup" in driver.detail and not found.ready
    assert found.checks[-1].area == "keys", "the rest was looked at"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "it broke"), CallerError("it broke", next_step="mend it.")])
def test_what_cannot_be_looked_at_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr(doctor, "_kernel_settings", broken)
    found = look(tmp_path, probe())
    (kernel,) = (check for check in found.checks if check.area == "kernel")
    assert kernel.state == "limited" and "it broke" in kernel.detail and kernel.next_step
    assert found.checks[-1].area == "keys"


def test_what_a_driver_declares_is_said_in_words(tmp_path: Path) -> None:
    words = ("disk_in_memory", "single_user", "no_memory_limit", "no_processes_limit", "no_cpu_limit",
             "no_cpu_accounting", "memory_fork", "no_isolation")  # fmt: skip
    (said,) = (check.detail for check in look(tmp_path, probe(*words)).checks if check.name == "good to know")
    assert "_" not in said and len(said.split("; ")) == len(words)
    assert set(words) <= set(doctor._IN_WORDS)


V1 = """
30 25 0:26 / {root}/memory rw,nosuid - cgroup cgroup rw,memory
31 25 0:27 / {root}/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / {root}/freezer rw,nosuid - cgroup cgroup rw,freezer
"""
PIDS = "33 25 0:29 / {root}/pids rw,nosuid - cgroup cgroup rw,pids\n"


@pytest.mark.parametrize(
    ("mounts", "state", "said"),
    [
        (V1 + PIDS, "ok", "v1 (cpu memory pids)"),
        (V1, "limited", "v1 (cpu memory), not wholly ours"),
        ("", "limited", "no cgroup v2"),
    ],
)
def test_control_groups_of_version_1_limit_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str, state: str, said: str
) -> None:
    for name in ("memory", "cpu,cpuacct", "pids"):
        (tmp_path / name).mkdir()
    files = {"/proc/self/mountinfo": mounts.format(root=tmp_path).strip()}
    monkeypatch.setattr(doctor, "_read", files.get)
    (groups,) = (check for check in doctor._kernel_settings() if check.name == "cgroups")
    assert groups.state == state and groups.detail.startswith(said)
