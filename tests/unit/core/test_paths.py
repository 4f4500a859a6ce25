"""Whether paths that others name stay below the folder they are put in."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.paths import is_plain_path, parts_below

PIECES = st.sampled_from(["a", "b c", "..", ".", "", "...", "\0", "é"])


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a", ("a",)),
        ("a/b", ("a", "b")),
        ("./a//b/", ("a", "b")),
        ("", ()),
        (".", ()),
        ("..a/...", ("..a", "...")),
        ("/a", None),
        ("//a", None),
        ("..", None),
        ("a/../b", None),
        ("a/..", None),
        ("a\0b", None),
    ],
)
def test_parts(path: str, parts: tuple[str, ...] | None) -> None:
    assert parts_below(path) == parts
    assert is_plain_path(path) == (parts is not None and bool(parts) and "/".join(parts) == path)


@given(st.lists(PIECES, max_size=6).map("/".join))
def test_what_is_accepted_stays_below(path: str) -> None:
    parts = parts_below(path)
    if parts is None:
        assert path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts
    else:
        assert PurePosixPath("/root", *parts).is_relative_to("/root")
        assert PurePosixPath(*parts) == PurePosixPath(path)
        assert is_plain_path("/".join(parts)) == bool(parts)
