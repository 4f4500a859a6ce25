"""Measured values beside their promises, in the specification and on its page."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.benchmarks.promises import Measurement, measured, promises
from ropewalk.benchmarks.recorded import page, record
from ropewalk.core.errors import CallerError

SPECIFICATION = files("ropewalk.benchmarks").joinpath("specification.toml").read_text(encoding="utf-8")
ALL = promises()


def recorded(text: str, *found: Measurement) -> str:
    return record(text, found, on="2030-01-02", machine="Linux, 2 cores")


@settings(max_examples=15, deadline=None)
@given(
    note=st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=40),
    value=st.floats(0, 1e9, allow_nan=False),
    peers=st.dictionaries(st.text(max_size=8).map(ascii), st.floats(0, 1e6), max_size=2),
)
def test_what_is_recorded_is_read_back_and_nothing_else_changes(
    note: str, value: float, peers: dict[str, float]
) -> None:
    found = measured("cli.help", value, note=note, peers=dict(peers))
    text = recorded(SPECIFICATION, found)
    before, after = {each.id: each for each in ALL}, {each.id: each for each in promises(text)}
    was = after["cli.help"].measured
    assert was is not None and found.value is not None and (was.on, was.machine) == ("2030-01-02", "Linux, 2 cores")
    assert was.note == note and was.value == pytest.approx(found.value, rel=1e-9)
    assert was.peers == pytest.approx({name: each for name, each in found.peers.items() if each is not None}, rel=1e-5)
    assert after.pop("cli.help") == msgspec.structs.replace(before.pop("cli.help"), measured=was)
    assert after == before
    assert recorded(text, found) == text
    gone = [line for line in SPECIFICATION.split("\n") if not line.startswith("measured = ")]
    assert gone == [line for line in text.split("\n") if not line.startswith("measured = ")]


def test_what_could_not_be_measured_takes_nothing_away() -> None:
    text = recorded(SPECIFICATION, measured("cli.help", 61.5))
    assert recorded(text, measured("cli.help", None, note="no")) == text


def test_a_promise_of_another_version_is_named() -> None:
    lost = msgspec.structs.replace(measured("cli.help", 1.0), promise="cli.helped")
    with pytest.raises(CallerError, match=r"cli\.helped"):
        recorded(SPECIFICATION, lost)


def test_the_page_says_what_is_kept_and_what_was_never_measured() -> None:
    text = "".join(line for line in SPECIFICATION.splitlines(keepends=True) if not line.startswith("measured = "))
    text = recorded(text, measured("cli.help", 61.5, note="a | b", peers={"pass": 19.0}), measured("demo.seconds", 130))
    lines = page(text).splitlines()
    assert "| cli.help | 61.5 ms | ≤ 200 ms | yes | pass 19 | a / b | 1 |" in lines
    assert any(line.startswith("| demo.seconds | 130 s | ≤ 120 s | **no** |") for line in lines)
    assert any(line.startswith("| install.base_bytes | not yet |") for line in lines)
    assert lines[-1] == "1. 2030-01-02: Linux, 2 cores"


def test_the_committed_page_is_the_specifications() -> None:
    committed = Path(__file__).parents[3] / "docs/reference/measured.md"
    assert committed.read_text(encoding="utf-8") == page(SPECIFICATION), (
        "make it anew: ropewalk bench --record … --page …"
    )
