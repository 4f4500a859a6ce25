"""Secrets in what others send back: whole, cut, and in their notations."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.machinery.redaction import REDACTED, STRETCH, hide, without, without_hidden

SECRET = 'sk-live/0123+456789abcdefghij"kl%mn\\opqrstuvwxyz'
NOTATIONS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": lambda text: json.dumps(text)[1:-1],
    "json, all escaped": lambda text: "".join(f"\\u{ord(letter):04x}" for letter in text),
    "python": lambda text: "".join(f"\\x{ord(letter):02X}" for letter in text),
    "percent": lambda text: urllib.parse.quote(text, safe=""),
    "percent, all escaped": lambda text: "".join(f"%{ord(letter):02x}" for letter in text),
    "html": lambda text: "".join(f"&#{ord(letter)};" for letter in text),
    "html, hexadecimal": lambda text: "".join(f"&#x{ord(letter):x};" for letter in text),
    "every other one escaped": lambda text: "".join(
        f"\\u{ord(letter):04X}" if at % 2 else json.dumps(letter)[1:-1] for at, letter in enumerate(text)
    ),
}  # fmt: skip


@pytest.mark.parametrize("notation", NOTATIONS)
def test_no_stretch_of_a_secret_stays_however_it_is_written_and_cut(notation: str) -> None:
    write = NOTATIONS[notation]
    for start in (0, 1, 7):
        for end in (len(SECRET), len(SECRET) - 1, start + STRETCH):
            told = f'\\n{{"error": "{write("before ")}{write(SECRET[start:end])}{write(" behind")}"'
            left = without(told, SECRET)
            assert left == f'\\n{{"error": "{write("before ")}{REDACTED}{write(" behind")}"', (start, end)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "user:"])
def test_nor_in_base64_with_something_before_it(before: str, encode: Callable[[bytes], bytes]) -> None:
    whole = encode(f"{before}{SECRET}!".encode()).decode()
    for told in (whole, whole[: len(whole) // 2], urllib.parse.quote(whole, safe=""), whole.replace("/", "\\/")):
        left = without(f"Basic {told}.", SECRET)
        assert REDACTED in left and left.startswith("Basic ") and left.endswith(".")
        assert len(left) < len(f"Basic {before}{REDACTED}.") + 16


def test_what_is_no_secret_stays_as_it_is() -> None:
    text = 'sk-live/012 100% &#x20; \\u0041\\n {"a": "\\"b\\""} %zz é \U0001f600'
    assert without(text, SECRET) == text and without(text, "") == text
    assert without("a password", "word") == "a pass" + REDACTED
    assert without("hunter2, hunter", "hunter2") == f"{REDACTED}, hunter"
    assert without("n" * 3 + "\\n" + "n" * 40, "n" * 20) == "nnn\\n" + REDACTED


@given(st.text("ab\\u0061%62n", max_size=60), st.integers(0, 30), st.integers(1, 20), st.text("ab01", max_size=30))
def test_places_are_right_in_any_text(around: str, start: int, count: int, tail: str) -> None:
    secret = "ZYXWVUTSRQPONMLKJIHGFEDCBA9876543210"
    piece = secret[start : start + STRETCH + count]
    left = without(f"{around}~{piece}~{tail}", secret)
    assert left == (f"{around}~{REDACTED}~{tail}" if len(piece) >= STRETCH else f"{around}~{piece}~{tail}")


def test_what_is_hidden_is_out_of_everything() -> None:
    hide("kept-out-of-everything")
    hide("short")
    assert without_hidden("short: kept-out-of-everyth") == f"short: {REDACTED}"


def test_long_texts_and_long_secrets_take_no_time() -> None:
    text, secret = "Zeile mit \\n und %20 " * 2_000, "".join(f"{n:06x}" for n in range(1000))
    assert without(text, secret) == text
    assert without("a" * 20_000, "a" * 3000) == REDACTED
