"""One word for one thing (docs/design/glossary.md): what the glossary rules out names nothing public."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import INSIDE, MODULES, PACKAGE, PROJECT, tree_of

GLOSSARY = PROJECT / "docs" / "design" / "glossary.md"

OTHER_SENSE = {
    "branch": "lake",
    "checkpoint": "provenance",  # of the log
    "snapshot": "*",  # of a sandbox; the row of the lake's versions rules it out for those
    "result": {"ExecResult", "CommandResult", "ToolResult", "clean_result", "result_code", "IngestResult"},  # of a call
    "flag": {"ExecFlag", "ExitFlag", "FileFlag"},  # bits of the guest agent's protocol
    "clone": {"clone_tree"},  # the system call's name
    "done": {"finish_if_done", "test_probe_says_what_can_be_done"},  # plain English, nothing about episodes
}
"""Ruled-out words that have another meaning elsewhere → names where they have it, a layer that has it, or `*`."""

HELP_MAY_SAY = {
    "branch", "checkpoint", "snapshot",  # see above
    "result", "flag", "done",  # plain English in a sentence
}  # fmt: skip


def ruled_out() -> set[str]:
    """The single words of the glossary's third column."""
    rows = [line.strip("| \n").split("|") for line in GLOSSARY.read_text("utf-8").splitlines() if line.startswith("|")]
    columns = [re.sub(r"\(.*?\)", "", row[2]) for row in rows[2:] if len(row) == 3]
    return {word.strip() for column in columns for word in column.split(",") if word.strip()}


def words_of(name: str) -> set[str]:
    """`SandboxSpec`, `sandbox_specs` → sandbox, spec."""
    parts = {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    return parts | {part.removesuffix(ending) for part in parts for ending in ("s", "es") if part.endswith(ending)}


def public_names(module: Path) -> Iterator[tuple[str, int]]:
    yield module.stem, 1
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name, node.lineno


def test_the_glossary_rules_words_out() -> None:
    assert ruled_out() >= {"container", "box", "runtime", "clone", "session", "trial", "scorer", "worker", "gold"}
    assert words_of("FakeBoxes") >= {"fake", "box"} and words_of("run_HTTPTrial_2") >= {"run", "http", "trial"}
    assert set(OTHER_SENSE) <= ruled_out(), "an exception for a word that is not ruled out"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_public_names_use_the_glossary_s_words(module: Path) -> None:
    layer = module.relative_to(PACKAGE).parts[0]
    for name, line in public_names(module):
        for word in words_of(name) & ruled_out():
            allowed = OTHER_SENSE.get(word, "")
            fits = name in allowed if isinstance(allowed, set) else allowed == "*" or layer in (allowed, "cli")
            assert fits, f"{module}:{line} {name}: the glossary has another word for {word!r}"


def test_the_command_line_s_help_uses_the_glossary_s_words() -> None:
    """docs/reference/cli.md holds every command's help; another test makes sure that it is up to date."""
    text = (PROJECT / "docs" / "reference" / "cli.md").read_text("utf-8")
    said = {word for token in re.findall(r"[A-Za-z]+", text) for word in words_of(token)}
    assert not (found := said & ruled_out() - HELP_MAY_SAY), f"help says {sorted(found)}"


def test_no_two_public_classes_share_a_name() -> None:
    """Except in programs that run inside a sandbox, which nobody imports from."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and module not in INSIDE:
                homes[node.name].append(str(module.relative_to(PACKAGE)))
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert not shared, f"name each after what it holds: {shared}"
