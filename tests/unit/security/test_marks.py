"""Marks: what this installation wrote, and nothing else, fits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ropewalk.core.records import canonical_bytes, decode_own
from ropewalk.security.drivers.file import FileKeys, KeysFile
from ropewalk.security.marks import KeyedMarks

PASSPHRASE = "env:MARKS_PASSPHRASE"
FACTS = {"run": "run:1", "value": 0.5, "record": None}


@pytest.fixture(params=[None, PASSPHRASE], ids=["plain", "encrypted"])
def keys(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileKeys:
    monkeypatch.setenv("MARKS_PASSPHRASE", "correct horse")
    made = FileKeys(tmp_path / "keys", passphrase=request.param)
    made.create()
    return made


def test_a_mark_fits_what_it_was_made_for_alone(keys: FileKeys) -> None:
    marks = KeyedMarks(keys, "one")
    mark = marks.make("episode", FACTS)
    assert marks.fits(mark, "episode", FACTS)
    assert KeyedMarks(FileKeys(keys.folder), "one").fits(mark, "episode", dict(reversed(FACTS.items())))
    assert not marks.fits(mark, "task", FACTS)
    assert not marks.fits(mark, "episode", FACTS | {"value": 1.0})
    assert not KeyedMarks(keys, "two").fits(mark, "episode", FACTS)
    for wrong in (
        "",
        "/",
        mark[:-1],
        mark + "0",
        mark.replace("/", ""),
        "é/é",
        f"{mark.partition('/')[0]}/é",
        "x/" + mark,
    ):
        assert not marks.fits(wrong, "episode", FACTS)


def test_a_rotation_keeps_marks_and_a_revocation_ends_them(keys: FileKeys) -> None:
    marks = KeyedMarks(keys, "one")
    mark, old = marks.make("run", FACTS), keys.active().pair.id
    keys.rotate(at_index=1)
    assert marks.fits(mark, "run", FACTS)
    assert marks.make("run", FACTS) != mark
    keys.revoke(old, reason="lost", from_index=1)
    assert not marks.fits(mark, "run", FACTS)


@pytest.mark.parametrize("keys", [PASSPHRASE], indirect=True)
def test_a_pair_that_others_put_beside_makes_no_marks(keys: FileKeys, tmp_path: Path) -> None:
    """They can write the folder, and have no passphrase. (Keys without one are theirs to use as they are.)"""
    theirs = FileKeys(tmp_path / "theirs")
    theirs.create()
    mark = KeyedMarks(theirs, "one").make("run", FACTS)
    mine, other = (decode_own((each.folder / "keys.json").read_bytes(), KeysFile) for each in (keys, theirs))
    shutil.copytree(theirs.folder, keys.folder, dirs_exist_ok=True)
    both = KeysFile(active=mine.active, pairs=(*mine.pairs, *other.pairs))
    (keys.folder / "keys.json").write_bytes(canonical_bytes(both))
    marks = KeyedMarks(FileKeys(keys.folder), "one")
    assert not marks.fits(mark, "run", FACTS)
    assert marks.fits(marks.make("run", FACTS), "run", FACTS)
