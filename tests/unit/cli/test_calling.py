"""Commands that are printed to be copied work where they are printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ropewalk.cli.calling import program


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in a virtual environment below the current directory, which the shell does not find."""
    called = tmp_path / ".venv" / "bin" / "ropewalk"
    called.parent.mkdir(parents=True)
    called.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return called


@pytest.mark.parametrize("argument", [".venv/bin/ropewalk", "{there}"])
def test_a_program_that_the_shell_does_not_find_is_named_by_its_path(
    there: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    monkeypatch.setattr(sys, "argv", [argument.format(there=there)])
    assert program() == ".venv/bin/ropewalk"
    monkeypatch.chdir(there.parent.parent)
    monkeypatch.setattr(sys, "argv", ["bin/ropewalk"])
    assert program() == "bin/ropewalk"
    elsewhere = there.parents[2] / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "argv", [str(there)])
    assert program() == str(there)


def test_one_that_the_shell_finds_is_named_as_it_is(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(there.parent))
    monkeypatch.setattr(sys, "argv", [str(there)])
    assert program() == "ropewalk"


def test_a_module_is_called_as_one_and_whatever_else_calls_us_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "argv", ["/x/ropewalk/__main__.py"])
    assert program() == f"{sys.executable.removeprefix('/')} -m ropewalk"
    monkeypatch.setattr(sys, "argv", ["/x/pytest"])
    assert program() == "ropewalk"
