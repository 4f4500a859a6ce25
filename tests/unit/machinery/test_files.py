"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import UnavailableError
from ropewalk.machinery.files import replace_whole


@pytest.mark.parametrize("durable", [False, True])
def test_content_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path, *, durable: bool) -> None:
    place = tmp_path / "x"
    for data in (b"one", b""):
        replace_whole(place, data, durable=durable)
        assert place.read_bytes() == data
    assert list(tmp_path.iterdir()) == [place]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "x"
    replace_whole(place, b"one")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UnavailableError, match="No space"):
        replace_whole(place, b"two")
    assert place.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [place]
    with pytest.raises(UnavailableError, match="missing"):
        replace_whole(tmp_path / "missing" / "x", b"")
