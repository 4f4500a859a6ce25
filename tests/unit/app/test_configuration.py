"""The profiles that ship, and how one is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.app.configuration import SandboxSettings, open_profile, shipped_profiles
from ropewalk.core.errors import CallerError, DeniedError


def test_shipped_profiles_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPEWALK_PROFILE", raising=False)
    assert shipped_profiles() == ("air-gapped", "embedded")
    for name in shipped_profiles():
        assert open_profile(name).name == name
    assert open_profile().name == "embedded"
    monkeypatch.setenv("ROPEWALK_PROFILE", "air-gapped")
    assert open_profile().name == "air-gapped"


def test_air_gapped_refuses_the_network() -> None:
    profile = open_profile("air-gapped")
    profile.allow_source("directory")
    profile.allow_endpoint("http://127.0.0.1:8000/v1")
    with pytest.raises(DeniedError, match="sources"):
        profile.allow_source("pypi")
    with pytest.raises(DeniedError):
        profile.allow_endpoint("https://api.example.com/v1")


def test_own_profile_by_path(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text("[sandbox.defaults]\nmemory_mib = 128\n")
    assert open_profile(str(path)).family(SandboxSettings).defaults.memory_mib == 128
    for unknown in ("[sandbox.defaults]\nmemory = 128\n", "[sandbox]\nmemory_mib = 128\n"):
        path.write_text(unknown)
        with pytest.raises(CallerError, match="unknown field"):
            open_profile(str(path))


@pytest.mark.parametrize("name", ["cloud", "missing.toml", "/nonexistent/p.toml"])
def test_missing_profiles(name: str) -> None:
    with pytest.raises(CallerError, match="profile"):
        open_profile(name)
