"""Names of images, and what registries and archives say about them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.images import CONFIG, INDEX, LAYER, MANIFEST

from ropewalk.core.errors import CallerError
from ropewalk.sandbox.oci.documents import (
    Descriptor,
    Manifest,
    Platform,
    choose,
    parse_platform,
    read_config,
    read_manifest,
    read_top,
)
from ropewalk.sandbox.oci.references import DOCKER_HUB, is_loopback, parse_reference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "host", "repository", "wanted", "name"),
    [
        ("debian", DOCKER_HUB, "library/debian", "latest", "debian:latest"),
        ("debian:bookworm", DOCKER_HUB, "library/debian", "bookworm", "debian:bookworm"),
        ("docker.io/library/debian:12", DOCKER_HUB, "library/debian", "12", "debian:12"),
        ("index.docker.io/a/b", DOCKER_HUB, "a/b", "latest", "a/b:latest"),
        ("acme/tool", DOCKER_HUB, "acme/tool", "latest", "acme/tool:latest"),
        ("ghcr.io/acme/tool:1.2", "ghcr.io", "acme/tool", "1.2", "ghcr.io/acme/tool:1.2"),
        ("localhost/x", "localhost", "x", "latest", "localhost/x:latest"),
        ("127.0.0.1:5000/a/b/c:V_1", "127.0.0.1:5000", "a/b/c", "V_1", "127.0.0.1:5000/a/b/c:V_1"),
        ("[::1]:5000/x", "[::1]:5000", "x", "latest", "[::1]:5000/x:latest"),
        (f"debian@{DIGEST}", DOCKER_HUB, "library/debian", DIGEST, f"debian@{DIGEST}"),
        (f"debian:12@{DIGEST}", DOCKER_HUB, "library/debian", DIGEST, f"debian:12@{DIGEST}"),
        ("a--b/c__d.e:x", DOCKER_HUB, "a--b/c__d.e", "x", "a--b/c__d.e:x"),
    ],
)
def test_names_are_read_as_everywhere(text: str, host: str, repository: str, wanted: str, name: str) -> None:
    found = parse_reference(text)
    assert (found.host, found.repository, found.wanted, found.name) == (host, repository, wanted, name)
    assert parse_reference(found.name) == found


@pytest.mark.parametrize(
    "text",
    ["", " ", "Debian", "debian:", "debian:-x", "a//b", "/a", "a/", "a:b:c", "ghcr.io/", "a@sha256:12",
     "a@md5:" + "a" * 64,
     "a.b:99999/x", "a.b:x/y", "-a.b/x", "x" * 300, "a b", "a\0", "../x", "a:" + "t" * 129, "http://a.b/c"],
)  # fmt: skip
def test_what_is_no_name_is_said_to_be_none(text: str) -> None:
    with pytest.raises(CallerError, match="not the name of an image"):
        parse_reference(text)


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_a_caller_error(text: str) -> None:
    try:
        found = parse_reference(text)
    except CallerError:
        return
    assert parse_reference(found.name) == found


def test_another_registry_may_be_the_one_that_is_meant() -> None:
    assert parse_reference("tool", host="registry.corp:5000").name == "registry.corp:5000/tool:latest"


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("localhost:5000", True), ("127.0.0.1:1", True), ("127.9.9.9", True), ("[::1]:5000", True),
     ("localhost.evil.com", False), ("127.0.0.1.evil.com:80", False), ("10.0.0.1", False), ("ghcr.io", False)],
)  # fmt: skip
def test_which_registry_is_on_this_machine(host: str, here: bool) -> None:
    assert is_loopback(host) is here


def index(*platforms: str, **fields: Any) -> list[Descriptor]:
    return [
        Descriptor(digest=f"sha256:{number:064d}", size=1, media_type=MANIFEST, platform=parse_platform(each), **fields)
        for number, each in enumerate(platforms)
    ]


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        (("linux/arm64/v8", "linux/amd64"), "linux/amd64", 1),
        (("linux/amd64/v3", "linux/amd64"), "linux/amd64", 1),
        (("linux/amd64/v3",), "linux/amd64", 0),
        (("linux/arm64/v8",), "linux/arm64", 0),
        (("linux/arm/v5", "linux/arm/v7"), "linux/arm/v7", 1),
        (("linux/arm/v5", "linux/arm/v8"), "linux/arm/v6", 0),
        (("unknown/unknown", "linux/amd64"), "linux/amd64", 1),
    ],
)
def test_of_several_the_one_for_this_machine(there: tuple[str, ...], wanted: str, chosen: int) -> None:
    found = index(*there)
    assert choose(found, parse_platform(wanted), "x") is found[chosen]


def test_where_there_is_none_the_message_names_what_there_is() -> None:
    with pytest.raises(CallerError, match=r"no image for linux/amd64; it has linux/arm64, windows/amd64"):
        choose(index("linux/arm64", "windows/amd64", "unknown/unknown"), Platform(architecture="amd64"), "x")


def manifest(**changes: Any) -> bytes:
    plain = {
        "schemaVersion": 2, "config": {"mediaType": CONFIG, "digest": DIGEST, "size": 2},
        "layers": [{"mediaType": LAYER + "+gzip", "digest": DIGEST, "size": 2}],
    }  # fmt: skip
    return json.dumps({**plain, **changes}).encode()


def layers(**changes: Any) -> bytes:
    return manifest(layers=[{"mediaType": LAYER, "digest": DIGEST, "size": 2, **changes}])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "x"),
        (b"[]", "x"),
        (b"{}", "x"),
        (b"\xff", "x"),
        (b"[" * 100_000, "nested deeper"),
        (manifest(schemaVersion=1), "schema 1"),
        (json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode(), "index inside of an index"),
        (
            manifest(config={"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": DIGEST, "size": 2}),
            "no image",
        ),
        (manifest(layers=[]), "0 layers"),
        (manifest(layers=json.loads(layers())["layers"] * 128), "128 layers"),
        (layers(digest="md5:1"), "only sha256"),
        (layers(digest="sha256:../../x"), "only sha256"),
        (layers(size=-1), "-1 bytes"),
        (layers(size=1 << 60), "bytes; "),
        (layers(size="2"), "x"),
        (layers(mediaType=LAYER + "+gzip+encrypted"), "cannot be unpacked"),
        (layers(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), "cannot be unpacked"),
    ],
)
def test_a_manifest_that_is_none_is_one_clear_error(data: bytes, says: str) -> None:
    with pytest.raises(CallerError, match=says):
        read_manifest(data, "x")


def test_a_manifest_may_hold_more_than_we_know() -> None:
    found = read_top(manifest(subject={"digest": DIGEST}, annotations={"a": "b"}), "x")
    assert isinstance(found, Manifest)
    config = {
        "rootfs": {"type": "layers", "diff_ids": [DIGEST]},
        "history": [],
        "config": {"Env": None, "Labels": None},
    }
    assert read_config(json.dumps(config).encode(), "x", layers=1).config is not None
    with pytest.raises(CallerError, match="names 1 layers, its manifest 2"):
        read_config(json.dumps(config).encode(), "x", layers=2)
