"""Which index is asked: the order, and that no host stands in the code."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

import ropewalk.lake
from ropewalk.core.errors import UnavailableError
from ropewalk.lake import index as module
from ropewalk.lake.index import VARIABLES, index_url


@pytest.fixture(autouse=True)
def _forget() -> None:
    module._ask_pip.cache_clear()


def test_the_argument_comes_first_then_the_variables_in_order() -> None:
    environ = {name: f"http://{name.lower()}/" for name in VARIABLES}
    assert index_url("http://mine/simple/", environ=environ) == "http://mine/simple"
    while environ:
        first = next(name for name in VARIABLES if name in environ)
        assert index_url(environ=environ) == f"http://{first.lower()}"
        environ[first] = ""
        assert (len(set(environ.values())) == 1) or index_url(environ=environ) != f"http://{first.lower()}"
        del environ[first]


def fake_python(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_pips_configuration_comes_before_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'case "$*" in *"config get"*) echo http://configured/simple ;; *) echo http://default/simple ;; esac'
    monkeypatch.setattr(module, "_interpreters", lambda: [fake_python(tmp_path / "python", script)])
    assert index_url(environ={}) == "http://configured/simple"


def test_pips_default_is_asked_of_the_first_python_that_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = fake_python(tmp_path / "without", "echo no such module >&2; exit 1")
    with_pip = fake_python(
        tmp_path / "with", 'case "$*" in *"config get"*) exit 1 ;; *) echo http://default/simple ;; esac'
    )
    monkeypatch.setattr(module, "_interpreters", lambda: [str(tmp_path / "absent"), without, with_pip])
    assert index_url(environ={}) == "http://default/simple"


def test_without_any_pip_the_error_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_interpreters", lambda: [])
    with pytest.raises(UnavailableError, match="ROPEWALK_INDEX_URL"):
        index_url(environ={})


def test_the_interpreters_are_this_one_first_and_real() -> None:
    found = module._interpreters()
    assert found[0] == sys.executable
    assert all(os.access(path, os.X_OK) for path in found)


def test_no_host_stands_in_the_code() -> None:
    for source in Path(ropewalk.lake.__file__).parent.rglob("*.py"):
        text = source.read_text()
        assert not re.search(r"https?://[a-z]", text)
