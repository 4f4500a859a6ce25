"""Profiles: strict parsing and what they refuse."""

from __future__ import annotations

import pytest

from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.records import Record
from ropewalk.machinery.profile import NetworkRules, Profile, parse_profile


class Engine(Record):
    driver: str = "process"
    slots: int = 0


class Store(Record):
    uri: str = "file"


FAMILIES = {"engine": Engine, "store": Store}


def parse(text: str) -> Profile:
    return parse_profile(text, name="mine", families=FAMILIES)


def test_families_get_their_records() -> None:
    profile = parse('description = "d"\n[engine]\nslots = 3\n')
    assert profile.family(Engine) == Engine(slots=3)
    assert profile.family(Store) == Store()
    with pytest.raises(CallerError):
        profile.family(NetworkRules)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nonsense = 1", "unknown key 'nonsense'"),
        ("[engine]\nslot = 3", "unknown field `slot`"),
        ('[engine]\nslots = "three"', "[engine]: Expected `int`"),
        ("[network]\nsource = []", "unknown field `source`"),
        ("a = ", "not TOML"),
        ("x" * 70_000, "allowed"),
    ],
)
def test_what_does_not_fit_is_named(text: str, wanted: str) -> None:
    with pytest.raises(CallerError) as caught:
        parse(text)
    assert wanted in str(caught.value) and "'mine'" in str(caught.value)


def test_unknown_keys_come_with_the_known_ones() -> None:
    with pytest.raises(CallerError) as caught:
        parse("[engine]\nslot = 3")
    assert "driver, slots" in caught.value.next_step


def test_network_rules_refuse_by_name() -> None:
    profile = Profile(name="rack", network=NetworkRules(sources=("directory",), endpoints=("loopback", "10.1.2.3")))
    profile.allow_source("directory")
    for url in ("http://127.0.0.1:1/v1", "http://localhost/v1", "http://[::1]:80/", "https://10.1.2.3/v1"):
        profile.allow_endpoint(url)
    with pytest.raises(DeniedError) as caught:
        profile.allow_source("pypi")
    assert caught.value.rule == "profile rack: network.sources"
    for url in ("https://api.example.com/v1", "http://127.0.0.1.example.com/", "http://10.1.2.30/"):
        with pytest.raises(DeniedError) as caught:
            profile.allow_endpoint(url)
        assert caught.value.rule == "profile rack: network.endpoints"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/", "nothing", ""])
def test_endpoints_are_web_addresses(url: str) -> None:
    with pytest.raises(CallerError):
        Profile(name="open").allow_endpoint(url)


def test_any_allows_everything() -> None:
    profile = Profile(name="open")
    profile.allow_source("pypi")
    profile.allow_endpoint("https://api.example.com/v1")
