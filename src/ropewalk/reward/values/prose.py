"""What stands in running text: numbers wherever they are, words, cells of tables, and in which order.

Comments, docstrings, strings and data files are read here. Whatever is cut off must be said (`Visible.unopened`): what
was not looked at is no secret.
"""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ropewalk.reward.values.encode import encode
from ropewalk.reward.values.outlines import SEPARATOR, outline
from ropewalk.reward.values.visible import Visible, gathered

_TEXT_MAX = 8 * 1024 * 1024
_TOKENS_MAX = 400_000
_CHUNK = 100_000
_OVERLAP = 300
"""Longer than what is looked up in it."""
_LITERAL_MAX = 20_000
_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F]+(?:_[0-9a-fA-F]+)*|0[oO][0-7_]+|0[bB][01_]+"
    r"|(?:\d+(?:[_,']\d+)*)?\.?\d+(?:[_,']\d+)*(?:[eE][-+]?\d+)?"
)
_BARE_HEX = re.compile(r"(?<![0-9a-zA-Z_])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{2,40}(?![0-9a-zA-Z_])")
_WORD = re.compile(r"[^\s,;:=|()\[\]{}<>\"'`]+")
_PLAIN_WORD = re.compile(r"\w+")
_CELL = re.compile(r"\s*[,;:=|\t()\[\]{}<>\"'`\n]+\s*|\s{2,}")
_DIGIT = re.compile(r"\d")


@lru_cache(maxsize=512)
def prose(text: str) -> Visible:
    """All that a text spells out, in whatever notation."""
    if len(text) > _TEXT_MAX:
        return Visible(unopened=frozenset({f"a text of {len(text)} characters"}))
    words, tokens = _WORD.findall(text), _NUMBER.findall(text)
    if len(words) + len(tokens) > _TOKENS_MAX:
        return Visible(unopened=frozenset({f"a text of {len(words) + len(tokens)} words"}))
    found = _numbers_in(text)
    values = found
    strings = {*words, *_PLAIN_WORD.findall(text), *(cell.strip() for cell in _CELL.split(text))}
    for line in text.splitlines():
        strings.add(line.strip())
        values += _literal(line.strip())
    values += _literal(text)
    values += [encode(string) for string in strings if string]
    values += [encode(text[at : at + _CHUNK + _OVERLAP]) for at in range(0, len(text), _CHUNK)]
    return gathered(values) | Visible(runs=_runs(words, tokens))


@lru_cache(maxsize=128)
def numbers(text: str) -> Visible:
    """The numbers alone, for what is no prose, as code: also those inside names."""
    return gathered(_numbers_in(text))


def _numbers_in(text: str) -> list[Any]:
    if not _DIGIT.search(text):
        return []
    found: set[int | float] = set()
    for token in set(_NUMBER.findall(text)):
        found.update(_readings(token))
    for token in set(_BARE_HEX.findall(text)):
        found.add(int(token, 16))
    return list(map(encode, found))


def _readings(token: str) -> list[int | float]:
    """All numbers that it may mean, and their negatives."""
    read: list[int | float] = []
    if token[:2].lower() in ("0x", "0o", "0b"):
        with suppress(ValueError):
            read.append(int(token, 0))
        read += [int(digits) for digits in re.findall(r"\d+", token)]
    else:
        plain = token.replace("_", "").replace("'", "")
        for candidate in (plain, plain.replace(",", ""), plain.replace(",", "."), *re.findall(r"\d+", token)):
            if len(candidate) > _LITERAL_MAX // 5:
                continue
            with suppress(ValueError):
                read.append(int(candidate))
                continue
            with suppress(ValueError, OverflowError):
                read.append(float(candidate))
    return [*read, *(-number for number in read)]


def _literal(text: str) -> list[Any]:
    """What a text is as a whole where it is JSON or a literal of Python."""
    if text[:1] not in ("[", "{", "(") and len(text) > 200:
        return []
    found = []
    if text[:1] in ("[", "{", '"') or _DIGIT.match(text[:1]):
        with suppress(ValueError, RecursionError):
            found.append(json.loads(text))
    if text[:1] in ("[", "{", "(") and len(text) <= _LITERAL_MAX:
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            found.append(ast.literal_eval(text))
    return [encode(value) for value in found]


def _runs(words: list[str], tokens: list[str]) -> str:
    """Words, and numbers alone, in order."""
    ordered = [outline(_value_of(word)) for word in words]
    counted = [outline(_value_of(token)) for token in tokens]
    return "".join(f"{SEPARATOR}{SEPARATOR.join(run)}{SEPARATOR}" for run in (ordered, counted) if len(run) > 1)


def _value_of(word: str) -> Any:
    if _DIGIT.search(word):
        with suppress(ValueError):
            return encode(int(word, 0))
        for kind in (int, float):
            with suppress(ValueError, OverflowError):
                return encode(kind(word))
    return word
