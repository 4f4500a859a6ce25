"""Listing and picking releases; garbage from the index; pins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.lake.downloads import Fetcher
from ropewalk.lake.pypi import JSON_TYPE, download, list_releases, pick, read_pins


def test_releases_are_sorted_by_version_and_final(
    index: Any, fetcher: Fetcher, make_sdist: Callable[..., bytes]
) -> None:
    for version in ("1.10", "1.9", "2.0rc1", "2.0.dev1", "1.9.post1"):
        index.offer("toy", f"toy-{version}.tar.gz", make_sdist(version=version))
    index.offer("toy", "toy-1.11.tar.gz", b"back", yanked="broken")
    index.offer("toy", "toy-1.9.zip", b"zip")
    index.offer("toy", "toy-1.12-py3-none-any.whl", b"wheel")
    index.offer("toy", "toy-1.13.tar.bz2", b"bzip2")
    index.offer("toy", "other-1.14.tar.gz", b"other")
    index.offer("toy", "toy-1.15.tar.gz", b"no hash", hashes={})
    index.offer("toy", "toy-1.16.tar.gz", b"bad hash", hashes={"sha256": "zz"})
    index.offer("toy", "toy-nonsense.tar.gz", b"x")
    found = list_releases("Toy", index=index.url, fetcher=fetcher)
    assert [release.version for release in found] == ["1.9", "1.9.post1", "1.10"]
    assert found[0].filename == "toy-1.9.tar.gz"
    assert found[0].uploaded == "2024-01-01T00:00:00Z"
    assert found[0].bytes == len(make_sdist(version="1.9"))
    more = list_releases("toy", index=index.url, fetcher=fetcher, prereleases=True, yanked=True)
    assert [release.version for release in more] == ["1.9", "1.9.post1", "1.10", "1.11", "2.0.dev1", "2.0rc1"]
    assert [release.yanked for release in more].count(True) == 1


def test_a_version_is_picked_by_meaning(index: Any, fetcher: Fetcher) -> None:
    index.offer("toy", "toy-1.0.tar.gz", b"x")
    found = list_releases("toy", index=index.url, fetcher=fetcher)
    assert pick(found, "1.0.0").version == "1.0"
    with pytest.raises(CallerError, match=r"toy 2\.0 has no source.*1\.0"):
        pick(found, "2.0")
    with pytest.raises(CallerError, match="PEP 440"):
        pick(found, "latest")


def test_an_unknown_distribution_is_the_callers_error(index: Any, fetcher: Fetcher) -> None:
    with pytest.raises(CallerError, match="index of absent"):
        list_releases("absent", index=index.url, fetcher=fetcher)
    for name in ("", "../etc", "a b", "x/y", "\u00fc"):
        with pytest.raises(CallerError, match="not a distribution's name"):
            list_releases(name, index=index.url, fetcher=fetcher)


GARBAGE = {
    "html": (b"<html></html>", "text/html"),
    "html as json": (b"<html></html>", JSON_TYPE),
    "empty": (b"", JSON_TYPE),
    "not an object": (b"[]", JSON_TYPE),
    "no files": (b'{"meta": {"api-version": "1.0"}}', JSON_TYPE),
    "files of another type": (b'{"files": 5}', JSON_TYPE),
    "file without a name": (b'{"files": [{"url": "x", "hashes": {}}]}', JSON_TYPE),
    "hashes of another type": (b'{"files": [{"filename": "toy-1.tar.gz", "url": "x", "hashes": 1}]}', JSON_TYPE),
    "another version": (b'{"meta": {"api-version": "2.0"}, "files": []}', JSON_TYPE),
    "deep": (b'{"files": ' + b"[" * 100_000, JSON_TYPE),
    "deep and closed": (b'{"files": [], "x": ' + b"[" * 900 + b"]" * 900 + b"}", JSON_TYPE),
    "NaN": (b'{"files": [], "x": NaN}', JSON_TYPE),
    "twice": (b'{"files": [], "files": []}', JSON_TYPE),
    "not UTF-8": (b'{"files": [], "x": "\xff"}', JSON_TYPE),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_from_the_index_is_unavailable(index: Any, fetcher: Fetcher, kind: str) -> None:
    body, type = GARBAGE[kind]
    index.answer("/simple/toy/", body, kind=type)
    with pytest.raises(UnavailableError, match="PEP 691"):
        list_releases("toy", index=index.url, fetcher=fetcher)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/toy-1.0.tar.gz", "http://[::1/x"])
def test_files_at_other_schemes_are_refused(index: Any, fetcher: Fetcher, url: str) -> None:
    index.offer("toy", "toy-1.0.tar.gz", b"x", url=url)
    with pytest.raises(UnavailableError, match="neither http"):
        list_releases("toy", index=index.url, fetcher=fetcher)


def test_the_index_the_pin_and_the_bytes_must_agree(index: Any, fetcher: Fetcher) -> None:
    index.offer("toy", "toy-1.0.tar.gz", b"good")
    release = list_releases("toy", index=index.url, fetcher=fetcher)[0]
    assert download(release, fetcher=fetcher, pin=release.sha256) == b"good"
    with pytest.raises(IntegrityError, match=r"toy-1\.0\.tar\.gz.*" + "0" * 64):
        download(release, fetcher=fetcher, pin="0" * 64)
    index.answer("/files/toy-1.0.tar.gz", b"evil")
    with pytest.raises(IntegrityError, match=hashlib.sha256(b"evil").hexdigest()):
        download(release, fetcher=fetcher)


def test_pins_are_read_in_pips_form(tmp_path: Path) -> None:
    path = tmp_path / "pins.txt"
    path.write_text(
        f"# comment\n\nToy_Thing==1.0 --hash=sha256:{'a' * 64}  # why\ntoy==2 \\\n    --hash=sha256:{'b' * 64}\n"
    )
    assert [(pin.distribution, pin.version, pin.sha256[0]) for pin in read_pins(path)] == [
        ("toy-thing", "1.0", "a"),
        ("toy", "2", "b"),
    ]


@pytest.mark.parametrize(
    "line", ["toy", "toy==1", "toy>=1 --hash=sha256:" + "a" * 64, "toy==1 --hash=md5:" + "a" * 64,
             "toy==1 --hash=sha256:" + "A" * 64, "toy==x --hash=sha256:" + "a" * 64, "-r other.txt"],
)  # fmt: skip
def test_pins_of_another_form_are_the_callers_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "pins.txt"
    path.write_text(line + "\n")
    with pytest.raises(CallerError):
        read_pins(path)
    with pytest.raises(CallerError):
        read_pins(tmp_path / "absent")


def test_json_with_other_fields_is_read(index: Any, fetcher: Fetcher) -> None:
    page = {
        "meta": {"api-version": "1.9"},
        "new": {"a": [1]},
        "files": [
            {
                "filename": "toy-1.tar.gz",
                "url": "/x",
                "hashes": {"sha256": "A" * 64, "md5": ""},
                "gpg-sig": None,
                "yanked": False,
            }
        ],
    }
    index.answer("/simple/toy/", json.dumps(page).encode(), kind="application/json; charset=utf-8")
    (release,) = list_releases("toy", index=index.url, fetcher=fetcher)
    assert (release.sha256, release.url, release.uploaded) == ("a" * 64, f"{index.root}/x", "")
