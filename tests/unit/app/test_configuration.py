"""The profiles that ship, and how one is found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ropewalk.app.configuration import BlobSettings, SandboxSettings, check_drivers, open_profile, shipped_profiles
from ropewalk.app.custody import Custody
from ropewalk.app.ground import open_ground
from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.lake.ingest import Terms


def test_shipped_profiles_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPEWALK_PROFILE", raising=False)
    assert shipped_profiles() == ("air-gapped", "embedded")
    for name in shipped_profiles():
        assert open_profile(name).name == name
        assert open_profile(name).tenant == "local"
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


@pytest.mark.parametrize("text", ["", "[sandbox.defaults]\nmemory_mib = 128\n", 'tenant = ""\n'])
def test_only_the_profiles_that_ship_have_a_tenant_by_themselves(tmp_path: Path, text: str) -> None:
    path = tmp_path / "clinic.toml"
    path.write_text(text)
    state = tmp_path / "state"
    with pytest.raises(CallerError, match="names no tenant") as caught:
        open_ground(str(path), state=state)
    assert "tenant = " in caught.value.next_step and not state.exists()
    path.write_text(f'tenant = "clinic"\n{text}' if "tenant" not in text else 'tenant = "clinic"\n')
    assert open_ground(str(path), state=state).tenant == "clinic"
    path.write_text('tenant = "Clinic"\n')
    with pytest.raises(CallerError, match="not the name of a tenant"):
        open_ground(str(path), state=state)


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("", ""),
        ('[blobs]\nuri = "file:///data"\n', ""),
        ('[blobs]\nuri = "s3://bucket"\n', "blobs:s3"),
        ('[keys]\ndriver = "vault:https://kms"\n', "keys:vault"),
        ('[fleet]\ndriver = "kubernetes:"\n', "fleet:kubernetes"),
        ('[sandbox]\ndriver = "cloud"\n', "sandbox:cloud"),
    ],
)
def test_restricted_data_meets_only_drivers_of_this_machine_in_any_family(tmp_path: Path, text: str, met: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    profile = open_profile(str(path))
    for name in ("public", "internal"):
        check_drivers(profile, name)
    if not met:
        check_drivers(profile, "restricted")
    else:
        with pytest.raises(DeniedError, match=met) as denied:
            check_drivers(profile, "restricted")
        assert denied.value.rule == "data_class:restricted:driver"
    with pytest.raises(DeniedError):
        check_drivers(profile, "unheard-of")
    with pytest.raises(DeniedError, match="sandbox:other"):
        check_drivers(profile, "restricted", ["sandbox"], sandbox="other")


def test_no_restricted_source_enters_a_lake_whose_bytes_lie_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Custody.open(state=tmp_path / "state") as custody:
        families = {**custody.profile.families, "blobs": BlobSettings(uri="s3://bucket")}
        custody.profile = msgspec.structs.replace(custody.profile, families=families)
        monkeypatch.setattr(custody.lake, "ingest", lambda *_, **__: pytest.fail("something entered"))
        with pytest.raises(DeniedError, match="blobs:s3"):
            custody.ingest(str(tmp_path), terms=Terms(attested_by="test bench", data_class="restricted"))
        with pytest.raises(CallerError, match="secret"):
            custody.ingest(str(tmp_path), terms=Terms(attested_by="test bench", data_class="secret"))


@pytest.mark.parametrize("name", ["cloud", "missing.toml", "/nonexistent/p.toml"])
def test_missing_profiles(name: str) -> None:
    with pytest.raises(CallerError, match="profile"):
        open_profile(name)
