"""Driver tables: unknown names list the known ones, missing packages say what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.machinery import drivers
from ropewalk.machinery.drivers import DriverEntry
from ropewalk.sandbox.contract import SandboxDriver, SupportsReap
from ropewalk.sandbox.drivers import DRIVERS, load
from ropewalk.store.layout import Layout

TABLE = {
    "json": DriverEntry(target="json:JSONDecoder", extra="", summary="decodes"),
    "cloud": DriverEntry(target="tests_no_such_package.cloud:Driver", extra="cloud", summary="far away"),
}


def test_a_driver_is_loaded_by_name_or_uri() -> None:
    assert drivers.load("x", TABLE, "json").__name__ == "JSONDecoder"
    assert drivers.load("x", TABLE, "json://somewhere").__name__ == "JSONDecoder"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CallerError, match="cloud, json"):
        drivers.load("x", TABLE, "jsn")


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "needs_more.py").write_text("import tests_no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for extra, advice in (("cloud", r"ropewalk\[cloud\]"), ("", "tests_no_such_package")):
        table = {"far": DriverEntry(target="needs_more:Driver", extra=extra, summary="")}
        with pytest.raises(UnavailableError, match=f"pip install '{advice}'"):
            drivers.load("x", table, "far")


def test_our_own_missing_file_is_not_blamed_on_the_installation() -> None:
    with pytest.raises(ModuleNotFoundError):
        drivers.load("x", TABLE, "cloud")


def test_every_driver_in_the_table_keeps_its_contract(tmp_path: Path) -> None:
    for name, entry in DRIVERS.items():
        driver = load(name, Layout(tmp_path).ensure())
        assert isinstance(driver, SandboxDriver)
        assert isinstance(driver, SupportsReap)
        assert entry.summary
