"""HTML that cannot be broken out of: every text is escaped where it enters, and only `Markup` is left alone.

Task names, prompts and details are hostile: they come from packages and models.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

TEXT_MAX = 2000


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object, *, chars_max: int = TEXT_MAX) -> Markup:
    """Any value as escaped text: control and direction-changing characters become visible, long text is cut."""
    if isinstance(value, Markup):
        return value
    plain = str(value)
    cut = len(plain) > chars_max
    plain = "".join(_visible(character) for character in plain[:chars_max])
    return Markup(html.escape(plain, quote=True) + ("… [cut]" if cut else ""))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. A last underscore of an attribute is dropped, others become hyphens; None drops the attribute."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{joined(children)}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    """All parts after another; what is no `Markup` is escaped."""
    return Markup("".join(text(part, chars_max=20_000) for part in parts))


def coded(said: str) -> Markup:
    """A text with what stands between backticks as code; an odd one stays what it is."""
    parts = said.split("`")
    if len(parts) % 2 == 0:
        return joined((said,))
    return joined(tag("code", part) if place % 2 else part for place, part in enumerate(parts))


def anchor(identifier: str) -> str:
    """An id as a fragment: letters, digits and hyphens."""
    return "".join(character if character.isalnum() and character.isascii() else "-" for character in identifier)


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    category = unicodedata.category(character)
    return f"\\u{ord(character):04x}" if category in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else character


_VOID = frozenset({"meta", "br", "hr"})
