"""Every example runs, and says what it is for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.rollout.plan_file import load_plan
from ropewalk.store.layout import Layout
from tests.shared_image import lend_default_image

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_run(program: Path, tmp_path: Path) -> None:
    assert ast.get_docstring(ast.parse(program.read_text()))
    lend_default_image(Layout(tmp_path / "state"))
    environment = {"ROPEWALK_STATE": str(tmp_path / "state"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    outcome = subprocess.run(
        [sys.executable, "-W", "error", str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.strip()


@pytest.mark.timeout(300)
def test_the_plan_gives_tasks_as_the_readme_says(tmp_path: Path) -> None:
    """Built, run and paid from the project's folder; one task, to be quick."""
    lend_default_image(Layout(tmp_path / "state"))
    environment = {"ROPEWALK_STATE": str(tmp_path / "state"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "ropewalk", "run", "examples/plan.toml", "--policies", "oracle", "--tasks", "1",
               "--group", "1", "--json"]  # fmt: skip
    outcome = subprocess.run(command, cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    (episode,) = json.loads(outcome.stdout)["summary"]["episodes"]
    assert episode["value"] == 1.0


@pytest.mark.parametrize("plan", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_plans_are_valid(plan: Path) -> None:
    assert load_plan(plan).check().source.uris
