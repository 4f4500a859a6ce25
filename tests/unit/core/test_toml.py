"""TOML from outside: one kind of error, whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.core.toml import parse_toml
from ropewalk.lake.licences import parse_metadata
from ropewalk.machinery.profile import parse_profile
from ropewalk.orchestration.prices import load_prices
from ropewalk.rollout.plan_file import parse_plan
from ropewalk.tasks.pins import load_pins

HOSTILE = {
    "no TOML": "x = ",
    "lists": "x = " + "[" * 5000 + "]" * 5000,
    "tables": "x = " + "{a = " * 5000 + "1" + "}" * 5000,
    "dotted names": ".".join("a" * 5000) + " = 1",
    "headers": "[" + ".".join("a" * 5000) + "]",
    "a long number": "x = " + "9" * 5000,
    "a date that is none": "x = 2024-02-30",
    "half a letter": "x = '\udcff'",
}


@pytest.mark.parametrize("how", HOSTILE)
def test_whoever_reads_it_says_so(how: str, tmp_path: Path) -> None:
    data = HOSTILE[how].encode("utf-8", "surrogateescape")
    with pytest.raises(CallerError, match=r"^A file (is not TOML|is not UTF-8|is nested|has a value)"):
        parse_toml(data, what="A file")
    with pytest.raises(CallerError, match=r"toy/pyproject\.toml"):
        parse_metadata("toy/pyproject.toml", data)
    file = tmp_path / "a.toml"
    file.write_bytes(data)
    with pytest.raises(CallerError, match=r"a\.toml"):
        load_prices(file)
    with pytest.raises(CallerError, match=r"a\.toml"):
        load_pins("demo", path=file)
    if how != "half a letter":
        with pytest.raises(CallerError, match="Profile 'mine'"):
            parse_profile(data.decode(), name="mine", families={})
        with pytest.raises(CallerError, match="my plan"):
            parse_plan(data.decode(), where="my plan")


def test_a_price_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text("capex_usd = " + "9" * 400)
    with pytest.raises(CallerError, match="too large"):
        load_prices(file)


def test_what_is_toml_is_read() -> None:
    assert parse_toml("a.b = [[1], {c = 2}]", what="x") == {"a": {"b": [[1], {"c": 2}]}}
    with pytest.raises(CallerError, match="nested"):
        parse_toml(b"x = " + b"[" * 32 + b"]" * 32, what="x")


def test_headers_that_nest_are_no_metadata() -> None:
    deep = "".join(f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(3000))
    try:
        assert parse_metadata("toy/PKG-INFO", f"Name: toy\n{deep}".encode()).name in ("", "toy")
    except CallerError as error:
        assert "toy/PKG-INFO" in error.message
