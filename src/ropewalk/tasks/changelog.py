"""What a release's own notes say about a change: the source of a task's prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from packaging.version import InvalidVersion, Version

_NAMES = (
    "changelog", "changes", "history", "news", "versions", "release_notes", "releases", "whatsnew", "release-notes",
)  # fmt: skip
_SUFFIXES = ("", ".md", ".rst", ".txt")
_HEADING = re.compile(
    r"^\W*(?:version|release|v)?\W*(?P<version>\d+(?:\.\d+)+(?:\.?(?:post|rc|a|b|dev)\d+)?)\b(?P<rest>.*)$", re.I
)
_ITEM = re.compile(r"^(?P<indent>\s*)(?:[-*+•]|\d+[.)])\s+")
_ENTRY = re.compile(r"^[-*] *v?(?P<version>\d+(?:\.\d+)+) *: *(?P<rest>.+)$")
_LINES_MAX = 12
_CHARACTERS_MAX = 1500


def find_changelogs(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Paths of a tree's release notes, the likeliest first."""
    found = []
    for path in files:
        pure = PurePosixPath(path)
        stem = pure.name[: -len(pure.suffix)] if pure.suffix in _SUFFIXES and pure.suffix else pure.name
        if pure.suffix not in _SUFFIXES or stem.lower() not in _NAMES or len(pure.parts) > 3:
            continue
        if len(pure.parts) == 1 or pure.parts[0] in ("doc", "docs"):
            found.append((len(pure.parts), _NAMES.index(stem.lower()), path))
    return tuple(path for _, _, path in sorted(found))


def sections(text: str) -> tuple[tuple[str, str], ...]:
    """Versions and what release notes say of each, in their order."""
    lines = text.splitlines()
    heads = [(number, heading) for number in range(len(lines)) if (heading := _heading(lines, number)) is not None]
    found = []
    for (start, heading), end in zip(heads, [*(number for number, _ in heads[1:]), len(lines)], strict=False):
        body = lines[start + 1 : end]
        entry = _ENTRY.match(lines[start])
        if entry:
            body = [f"- {entry['rest']}", *body]
        found.append((heading, _trim(body)))
    return tuple(found)


def release_notes(files: Mapping[str, bytes], before: str, after: str) -> str:
    """What the first release notes that know a tree's own version say of all versions past `before`, up to `after`."""
    low, high = _parse(before), _parse(after)
    if low is None or high is None:
        return ""
    for path in find_changelogs(files):
        kept = []
        for version, body in sections(files[path].decode("utf-8", "replace")):
            parsed = _parse(version)
            if parsed is not None and low < parsed <= high and body:
                kept.append(body)
        if kept:
            return "\n\n".join(kept)
    return ""


def mentions(notes: str, names: Iterable[str], *, words: Iterable[str] = ()) -> str:
    """The items of release notes that are about these names, as text; at most 12 lines.

    An item is a list entry with its continuation lines, or a paragraph.

    Args:
        notes: as `release_notes` gives them.
        names: of functions and classes; one that an item mentions is enough. Shorter than three letters: ignored.
        words: of tests' names; an item counts that has two of them which no more than two other items have.
    """
    wanted = [re.compile(rf"(?<![\w]){re.escape(name)}(?![\w])") for name in names if len(name) > 2]
    items = list(_items(notes))
    common = {word: sum(_has(item, word) for item in items) for word in set(words) if len(word) > 3}
    rare = [word for word, count in common.items() if 0 < count <= 3]
    kept: list[str] = []
    for item in items:
        if any(pattern.search(item) for pattern in wanted) or sum(_has(item, word) for word in rare) >= 2:
            kept.extend(_plain(item).splitlines())
    return "\n".join(kept[:_LINES_MAX])[:_CHARACTERS_MAX]


def _has(item: str, word: str) -> bool:
    """Whether an item has a word, in the singular or the plural."""
    return word.lower().rstrip("s") in item.lower()


def _heading(lines: list[str], number: int) -> str | None:
    """The version that a line is the heading of."""
    line = lines[number]
    if entry := _ENTRY.match(line):
        return entry["version"]
    match = _HEADING.match(line)
    if not match or len(line) > 100 or _ITEM.match(line):
        return None
    below = lines[number + 1].strip() if number + 1 < len(lines) else ""
    underlined = len(below) >= 3 and len(set(below)) == 1 and not below[0].isalnum()
    short = len(match["rest"].split()) <= 6 and not match["rest"].rstrip().endswith((".", ","))
    marked = line.lstrip().startswith(("#", "=", "v", "V", "Version", "Release")) or re.match(r"\d", line)
    return match["version"] if underlined or (short and marked) else None


def _parse(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None


def _trim(lines: list[str]) -> str:
    kept = [line for line in lines if not re.fullmatch(r"\s*([=\-~^*#])\1{2,}\s*", line)]
    return "\n".join(kept).strip("\n")


def _items(notes: str) -> Iterable[str]:
    """List entries (with what is indented below them, but not nested entries) and paragraphs."""
    current: list[str] = []
    for line in notes.splitlines():
        if not line.strip() or _ITEM.match(line):
            if current:
                yield "\n".join(current)
            current = [line] if line.strip() else []
        else:
            current.append(line)
    if current:
        yield "\n".join(current)


def _plain(item: str) -> str:
    """An item without markup for links and roles, on as few lines as it had."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", item)
    text = re.sub(r"\[(`?[^\]]+`?)\]\[[^\]]*\]", r"\1", text)
    text = re.sub(r"\s*\(\[[^\]]*\]\([^)]*\)\)", "", text)
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`<]+) <[^>]*>`_+", r"\1", text)
    text = re.sub(r"\s*\(thanks to [^)]*\)", "", text)
    lines = [line.strip() for line in text.splitlines()]
    lines[0] = "- " + _ITEM.sub("", lines[0])
    return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])
