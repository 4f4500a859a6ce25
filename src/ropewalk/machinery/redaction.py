"""Takes secrets out of text: whole ones, long stretches of them, and both as others write them.

What somebody else sends back may hold a secret that it was sent: cut anywhere, escaped as JSON, Python, HTML or a URL
has it, or in base64 with something before it (RFC 7617). So whatever is shown or stored of such an answer passes here
first, and is cut to its length after that. What stays of a secret are stretches shorter than STRETCH.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final

REDACTED: Final = "[redacted]"
SECRET_CHARS_MIN: Final = 6
"""Shorter ones are not looked for: they are in too many words."""
STRETCH: Final = 12
"""So many characters of a secret in a row are as secret as the whole."""
_BASE64_STRETCH: Final = 16
"""Base64 of that many."""
_SEED: Final = 6
_ESCAPE: Final = re.compile(
    r"\\u([0-9A-Fa-f]{4})|\\x([0-9A-Fa-f]{2})|%([0-9A-Fa-f]{2})|&#x([0-9A-Fa-f]{1,4});|&#([0-9]{1,5});|\\([\"'\\/])|\\[nrtbf]"
)
"""The last ones stand for letters that no secret has; without them their letter could be taken for a secret's first."""
_hidden: set[str] = set()


def hide(secret: str) -> None:
    """From now on logs and error messages come without this text. Those shorter than SECRET_CHARS_MIN are left in."""
    if len(secret) >= SECRET_CHARS_MIN:
        _hidden.add(secret)


def without_hidden(text: str) -> str:
    """The text without anything that `hide` was told of."""
    for secret in tuple(_hidden):
        text = without(text, secret)
    return text


def without(text: str, secret: str, *, instead: str = REDACTED) -> str:
    """The text without a secret: whole, or in stretches of STRETCH characters and more, however it is written.

    `instead` stands where it was.
    """
    plain = _unescaped(text)
    for form, least, seeds in _forms(secret) if secret else ():
        if any(seed in plain for seed in seeds) and (spans := list(_joined(_found(plain, form, least, seeds)))):
            text = _cut_out(text, spans, instead, _Places(text) if plain is not text else None)
            plain = _unescaped(text)
    return text


@lru_cache(maxsize=64)
def _forms(secret: str) -> tuple[tuple[str, int, Collection[str]], ...]:
    """How it may be written, escapes aside, each with how many characters of it are too many, and its seeds."""
    forms = {secret: min(STRETCH, len(secret))}
    data = secret.encode("utf-8", "surrogatepass")
    for shift in range(3):  # bytes before it, modulo three, decide on its letters
        first = -(-shift * 8 // 6)
        letters = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
        letters = letters[first : (shift + len(data)) * 8 // 6]
        for form in (letters, letters.replace("+", "-").replace("/", "_")):
            if len(form) >= SECRET_CHARS_MIN:
                forms.setdefault(form, min(_BASE64_STRETCH, len(form)))
    return tuple((form, least, _seeds(form, least)) for form, least in forms.items())


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_letter, text) if "\\" in text or "%" in text or "&#" in text else text


def _cut_out(text: str, spans: Iterable[tuple[int, int]], instead: str, places: _Places | None) -> str:
    parts: list[str] = []
    done = 0
    for start, end in spans:
        if places is not None:
            start, end = places.start(start), places.end(end)
        parts += (text[done:start], instead)
        done = end
    return "".join((*parts, text[done:]))


def _seeds(form: str, least: int) -> set[str]:
    """Short pieces of it, one of them at least in every stretch of `least`: most texts have none."""
    size = min(_SEED, least)
    return {form[at : at + size] for at in range(0, len(form) - size + 1, least - size + 1)}


def _found(plain: str, form: str, least: int, seeds: Collection[str]) -> Iterator[tuple[int, int]]:
    stretches = {form[at : at + least] for at in range(len(form) - least + 1)}
    for seed in seeds:
        done, place = 0, plain.find(seed)
        while place >= 0:
            for start in range(max(done, place + len(seed) - least), place + 1):
                if plain[start : start + least] in stretches:
                    yield start, start + least
            done = place + 1
            place = plain.find(seed, done)


def _joined(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """In order, those that touch made one."""
    last: tuple[int, int] | None = None
    for start, end in sorted(spans):
        if last is None or start > last[1]:
            if last is not None:
                yield last
            last = (start, end)
        else:
            last = (last[0], max(last[1], end))
    if last is not None:
        yield last


def _letter(escape: re.Match[str]) -> str:
    wide, narrow, percent, html, decimal, plain = escape.groups()
    if decimal is not None:
        return chr(int(decimal))
    digits = wide or narrow or percent or html
    return chr(int(digits, 16)) if digits else plain or " "


class _Places:
    """Where in a text the letters of its unescaped form are."""

    def __init__(self, text: str) -> None:
        self._plain, self._ends = [0], [0]
        """Behind each escape: the place in the unescaped form, and in the text."""
        self._starts = [0]
        """Of each escape, in the text."""
        done = 0
        for escape in _ESCAPE.finditer(text):
            self._plain.append(self._plain[-1] + escape.start() - done + 1)
            self._starts.append(escape.start())
            self._ends.append(done := escape.end())

    def start(self, at: int) -> int:
        """Of the letter there."""
        behind = bisect_right(self._plain, at) - 1
        if behind + 1 < len(self._plain) and self._plain[behind + 1] == at + 1:
            return self._starts[behind + 1]
        return self._ends[behind] + at - self._plain[behind]

    def end(self, at: int) -> int:
        """Behind the letter before there."""
        behind = bisect_right(self._plain, at) - 1
        return self._ends[behind] + at - self._plain[behind]
