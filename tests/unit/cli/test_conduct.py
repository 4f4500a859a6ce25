"""What is said after a run: only commands that do what is said of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.cli import conduct
from ropewalk.cli.conduct import next_commands
from ropewalk.cli.demo import _elsewhere
from ropewalk.core.errors import CallerError


def line(*, value: float | None, reward: str | None) -> SimpleNamespace:
    return SimpleNamespace(episode="episode:1", policy="search", steps=1, value=value, reward=reward)


@pytest.mark.parametrize(
    ("state", "lines", "resume", "anew"),
    [
        ("complete", [line(value=1.0, reward="reward:1")], False, False),
        ("incomplete", [line(value=1.0, reward="reward:1"), line(value=None, reward=None)], True, False),
        ("incomplete", [line(value=None, reward="reward:1"), line(value=0.0, reward="reward:2")], False, True),
        ("open", [line(value=None, reward=None)], True, False),
    ],
    ids=["complete", "not all played", "all sealed, some unscored", "nothing played"],
)
def test_a_resume_is_offered_where_it_finds_something_to_do(
    capsys: pytest.CaptureFixture[str], state: str, lines: list[SimpleNamespace], resume: bool, anew: bool
) -> None:
    summary: Any = SimpleNamespace(run="run:1", state=state, episodes=tuple(lines))
    next_commands(summary)
    said = "".join(capsys.readouterr())
    assert ("--resume" in said, "start a new run" in said) == (resume, anew)


@pytest.mark.parametrize(
    ("values", "flat", "first", "traces"),
    [([1.0, 0.0], False, "trace", True), ([0.0], True, "diagnose", True), ([None], False, "diagnose", False)],
    ids=["healthy", "flat", "unscored"],
)
def test_what_to_look_at_first(
    capsys: pytest.CaptureFixture[str], values: list[float | None], flat: bool, first: str, traces: bool
) -> None:
    lines = tuple(line(value=value, reward=f"reward:{place}") for place, value in enumerate(values))
    summary: Any = SimpleNamespace(run="run:1", state="complete", episodes=lines)
    next_commands(summary, flat=flat)
    said = [text.strip() for text in capsys.readouterr().out.splitlines() if text.startswith("  ")]
    assert said[0].startswith(f"ropewalk {first} ")
    assert any(text.startswith("ropewalk trace") for text in said) == traces
    assert any("flat" in text for text in said) == flat


def test_what_is_to_be_copied_calls_the_program_as_it_was_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "program", lambda: ".venv/bin/ropewalk")
    summary: Any = SimpleNamespace(run="run:1", state="complete", episodes=(line(value=0.0, reward="reward:1"),))
    next_commands(summary)
    said = [text.strip() for text in capsys.readouterr().out.splitlines() if text.startswith("  ")]
    assert len(said) >= 5 and all(text.startswith(".venv/bin/ropewalk ") for text in said)


def test_a_demo_names_no_options_that_it_has_not() -> None:
    advice = "give what the tests need: --requirements FILE, --plugin MODULE."
    said = _elsewhere(CallerError("no", next_step=advice))
    assert said.message == "no" and said.next_step == f"use `ropewalk run --source …`, and {advice}"
    other = CallerError("no", next_step="name another pair of releases.")
    assert _elsewhere(other) is other
