"""A small package in two releases, as directories and archives: tasks without a network, in seconds."""

from __future__ import annotations

import tarfile
from pathlib import Path

_PROJECT = """[project]
name = "wordkit"
version = "{version}"
description = "Words."
license = "MIT"

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""

_OLD = '''"""Words."""


def initials(text):
    """First letters, upper case: `initials("ada lovelace") == "AL"`."""
    return "".join(word[0] for word in text.split()).upper()


def chunks(text, size):
    """Pieces of `size` characters; the last may be shorter."""
    return [text[i : i + size] for i in range(0, len(text) - 1, size)]


def caesar(text, shift):
    """Letters moved along the alphabet, other characters as they are."""
    moved = []
    for letter in text:
        if letter.isalpha():
            base = ord("a") if letter.islower() else ord("A")
            moved.append(chr(base + (ord(letter) - base + shift) % 25))
        else:
            moved.append(letter)
    return "".join(moved)


def widths(lines):
    """Length of each line, and of the longest one last."""
    found = [len(line) for line in lines]
    return found + [max(found, default=0)]
'''

_NEW = _OLD.replace("len(text) - 1, size", "len(text), size").replace("% 25", "% 26")

_TESTS = """from wordkit import caesar, chunks, initials, widths


class TestChunks:
    def test_even(self):
        assert chunks("ropewalk", 4) == ["rope", "walk"]

    def test_one_letter_pieces(self):
        assert chunks("yarn!", 1) == ["y", "a", "r", "n", "!"]

    def test_rest(self):
        assert chunks("hemp and tar", 11) == ["hemp and ta", "r"]

    def test_single(self):
        assert chunks("x", 5) == ["x"]

    def test_long(self):
        assert chunks("abcdefghijklm", 3) == ["abc", "def", "ghi", "jkl", "m"]


class TestCaesar:
    def test_word(self):
        assert caesar("hello", 3) == "khoor"

    def test_wraps(self):
        assert caesar("xyz ropes", 5) == "cde wtujx"

    def test_upper(self):
        assert caesar("Zebra, Yak", 1) == "Afcsb, Zbl"

    def test_whole_alphabet(self):
        assert caesar("the quick brown fox", 13) == "gur dhvpx oebja sbk"

    def test_back(self):
        assert caesar("attack at dawn", 20) == "unnuwe un xuqh"


class TestOthers:
    def test_initials(self):
        assert initials("ada lovelace") == "AL"

    def test_initials_long(self):
        assert initials("the rogue yarn in every rope") == "TRYIER"

    def test_widths(self):
        assert widths(["rope", "walk", "yarns"]) == [4, 4, 5, 5]

    def test_chunks_of_three(self):
        assert chunks("ropewalk and yarn!", 3) == ["rop", "ewa", "lk ", "and", " ya", "rn!"]

    def test_chunks_of_two(self):
        assert chunks("abcdef", 2) == ["ab", "cd", "ef"]

    def test_caesar_short(self):
        assert caesar("bed, cab", 3) == "ehg, fde"

    def test_caesar_nothing(self):
        assert caesar("12, 34!", 9) == "12, 34!"

    def test_initials_spaces(self):
        assert initials("  hemp   tar  ") == "HT"

    def test_widths_empty(self):
        assert widths(["", "knot", "splice"]) == [0, 4, 6, 6]

    def test_widths_more(self):
        assert widths(["a", "bbbbbbb", "ccc", "dd"]) == [1, 7, 3, 2, 7]
"""

_NOTES = """# Changes

## 1.1.0

- `chunks` no longer loses the last character.
- `caesar` uses all 26 letters.

## 1.0.0

- First release.
"""


def directory(parent: Path, version: str = "1.1.0") -> Path:
    """The package of that version, laid out under `src`."""
    root = parent / f"wordkit-{version}"
    files = {
        "pyproject.toml": _PROJECT.format(version=version),
        "CHANGES.md": _NOTES,
        "LICENSE": "MIT License\n",
        "src/wordkit/__init__.py": _NEW if version == "1.1.0" else _OLD,
        "tests/test_wordkit.py": _TESTS,
    }
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def archive(parent: Path, version: str) -> Path:
    """The same as a source archive."""
    root = directory(parent / "trees", version)
    path = parent / f"wordkit-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(root, arcname=root.name)
    return path
