"""Every command has a help text, help for every parameter, and examples that name it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from ropewalk.cli import entry
from ropewalk.cli.commands import entries
from ropewalk.cli.reference import command_words, reference


def commands() -> Iterator[tuple[str, ...]]:
    """Every path of words that leads to a command."""
    for each in entries():
        app: App = importlib.import_module(f"ropewalk.cli.{each.module}").app
        assert app.name[0] == each.name
        yield from command_words(each)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_help_is_complete(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: ropewalk {' '.join(words)}" in text
    examples = [line.strip() for line in text.partition("Examples:")[2].splitlines() if line.strip()]
    assert examples and all(line.startswith("ropewalk ") for line in examples)
    assert any(line.startswith(f"ropewalk {' '.join(words)}") for line in examples)
    for line in text.splitlines():
        if line.startswith("  --"):
            assert ": " in line, f"{line.strip()} has no help"


@pytest.mark.parametrize("each", entries(), ids=lambda each: each.name)
def test_nouns_list_their_commands(each: object, capsys: pytest.CaptureFixture[str]) -> None:
    name = each.name  # type: ignore[attr-defined]
    assert entry.main([name, "--help"]) == 0
    assert f"ropewalk {name}" in capsys.readouterr().out


def test_the_reference_page_is_what_the_commands_say() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md"
    assert page.read_text(encoding="utf-8") == reference(), "python -m ropewalk.cli.reference > docs/reference/cli.md"


WITHOUT_JSON = {("sandbox", "attach"), ("episode", "attach")}
"""Somebody sits before them."""


@pytest.mark.parametrize("words", sorted({*commands()} - WITHOUT_JSON), ids=" ".join)
def test_every_command_speaks_to_scripts(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([*words, "--help"]) == 0
    assert "--json" in capsys.readouterr().out
