from __future__ import annotations

from ropewalk.tasks.changelog import find_changelogs, mentions, release_notes, sections

MARKDOWN = """# Changelog

## 2.1.0

_(May 2026)_

- Fixed [`tools.chunk`][tools.chunk] losing the last piece ([#12](https://example.org/12))
- Added [`tools.pair`](https://example.org) for pairs

## 2.0.1

- Fixed `tools.join`

## 2.0.0

- Everything is new
"""

UNDERLINED = """===============
Version History
===============

1.1
---

* New functions:
    * :func:`first` returns the first item (thanks to somebody)

* Other:
    * 1.0 is gone

Release 1.0 (Nov 01, 2026)
--------------------------

Nothing of note
"""

ENTRIES = """- 0.10.0: Add `grid` format.
  Improved errors.
- 0.9.0: Drop old Pythons.
"""


def test_sections_of_three_styles() -> None:
    assert [version for version, _ in sections(MARKDOWN)] == ["2.1.0", "2.0.1", "2.0.0"]
    assert [version for version, _ in sections(UNDERLINED)] == ["1.1", "1.0"]
    assert dict(sections(ENTRIES)) == {
        "0.10.0": "- Add `grid` format.\n  Improved errors.",
        "0.9.0": "- Drop old Pythons.",
    }


def test_notes_cover_all_versions_in_between() -> None:
    files = {"CHANGELOG.md": MARKDOWN.encode(), "docs/CHANGELOG": b"no versions", "pkg/changes.md": MARKDOWN.encode()}
    assert find_changelogs(files) == ("CHANGELOG.md", "docs/CHANGELOG")
    notes = release_notes(files, "2.0.0", "2.1.0")
    assert "tools.chunk" in notes
    assert "tools.join" in notes
    assert "Everything" not in notes
    assert release_notes(files, "2.1.0", "2.2.0") == ""
    assert release_notes(files, "not a version", "2.2.0") == ""


def test_mentions_keep_items_whole_and_drop_links() -> None:
    assert mentions(MARKDOWN, ["chunk"]) == "- Fixed `tools.chunk` losing the last piece"
    assert mentions(MARKDOWN, ["pair"]) == "- Added `tools.pair` for pairs"
    assert mentions(UNDERLINED, ["first"]) == "- `first` returns the first item"
    entries = release_notes({"CHANGES": ENTRIES.encode()}, "0.9.0", "0.10.0")
    assert mentions(entries, ["grid"]) == "- Add `grid` format.\n  Improved errors."


def test_mentions_need_the_whole_name() -> None:
    assert mentions(MARKDOWN, ["chun", "irs", "", "a"]) == ""


def test_two_rare_words_of_a_test_name_find_an_item() -> None:
    assert "losing" in mentions(MARKDOWN, [], words=["loses", "losing", "pieces"])
    assert mentions(MARKDOWN, [], words=["losing"]) == ""
    assert mentions(MARKDOWN, [], words=["fixed", "tools"]) != MARKDOWN


def test_mentions_are_bounded() -> None:
    long = "\n".join(f"- `name` {number}" for number in range(100))
    assert len(mentions(long, ["name"]).splitlines()) == 12
