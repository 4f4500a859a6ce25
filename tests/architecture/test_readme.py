"""What the README shows can be typed as it stands."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

from ropewalk.cli import entry
from ropewalk.cli.commands import entries

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_its_program_is_whole() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    tree = ast.parse(block)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    known = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            known.add(node.name)
    assert {node.id for node in names} <= known


def commands() -> list[str]:
    return re.findall(r"^    ropewalk ((?:[a-z]+(?![\w./]) ?)+)", README, re.MULTILINE)


@pytest.mark.parametrize("words", commands())
def test_its_commands_exist(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words.split()[0] in {each.name for each in entries()}
    assert entry.main([*words.split(), "--help"]) == 0
    usage = capsys.readouterr().out.splitlines()[0]
    assert usage.startswith(f"Usage: ropewalk {words.strip()}")
