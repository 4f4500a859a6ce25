"""The reference pages that are made of the code say what it says today."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ropewalk.app.configuration import FAMILIES
from ropewalk.cli.pages import PAGES, field_texts
from ropewalk.core.records import Record, to_plain
from ropewalk.rollout.plan import (
    OpenAISettings,
    PoliciesPlan,
    PricePlan,
    RunPlan,
    SearchSettings,
    SourcePlan,
    TasksPlan,
)

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "reference"
PLAN = (SourcePlan, TasksPlan, RunPlan, SearchSettings, OpenAISettings, PricePlan)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    page = FOLDER / f"{name}.md"
    assert page.read_text("utf-8") == PAGES[name](), f"python -m ropewalk.cli.pages {name} > docs/reference/{name}.md"


@pytest.mark.parametrize("record", [*PLAN, *FAMILIES.values()], ids=lambda record: record.__name__)
def test_every_key_stands_on_the_page(record: type[Record]) -> None:
    page = PAGES["settings"]()
    for field in msgspec.structs.fields(record):
        assert f"| `{field.name}` |" in page or f".{field.name}]" in page, field.name
    assert field_texts(record).keys() >= {field.name for field in msgspec.structs.fields(record)}


def test_types_and_defaults_are_told_in_words() -> None:
    page = PAGES["settings"]()
    assert "| `group` | whole number ≥ 1 ≤ 1,000,000 | `4` |" in page
    assert "| `kinds` | list: `release`, `mutant` |" in page
    assert "| `model` | text | required |" in page and "### [policy.openai]" in page
    assert to_plain(PoliciesPlan())["openai"] is None


def test_programs_find_what_they_begin_with() -> None:
    page = PAGES["python"]()
    for name in ("Ropewalk.open", "Ropewalk.run", "Run.wait", "Sandbox.exec", "Snapshot.fork_one", "`CallerError`"):
        assert name in page
