"""The layers of docs/design/architecture.md hold, and each third-party package is used only where it may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import INSIDE, MODULES, PACKAGE, PROJECT, functions_of, imports_of, tree_of

pytestmark = pytest.mark.timeout(120)

HEAVY = {
    "sqlalchemy": {"store", "rollout", "provenance", "app"},
    "cryptography": {"security", "provenance"},
    "httpx2": {"lake", "sandbox", "rollout", "benchmarks", "cli", "app"},
    "cyclopts": {"cli"},
    "rich": {"cli"},
}
"""Package → layers that may import it. Whatever is not listed may be imported anywhere."""


def test_imports_point_down_only() -> None:
    command = [
        str(Path(sys.executable).parent / "lint-imports"),
        "--no-cache",
        "--config",
        str(PROJECT / "pyproject.toml"),
    ]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_heavy_packages_stay_in_their_layers(module: Path) -> None:
    layer = module.relative_to(PACKAGE).parts[0]
    misplaced = {
        name.split(".")[0] for name, _ in imports_of(module) if layer not in HEAVY.get(name.split(".")[0], {layer})
    }
    assert not misplaced, f"{module}: {sorted(misplaced)} may be imported only from {HEAVY}"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_import_inside_a_function(module: Path) -> None:
    """Except in driver loading, in the package's front door, which loads what is asked for, and in the command line,
    whose commands load what they need when they run."""
    if (
        module in (*INSIDE, PACKAGE / "__init__.py")
        or "drivers.py" in module.name
        or module.relative_to(PACKAGE).parts[0] in ("cli", "benchmarks")
    ):
        return
    inside = [
        f"{module}:{node.lineno}"
        for function in functions_of(module)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")))
    ]
    assert not inside


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_names_below_the_state_directory_are_spelled_in_one_place(module: Path) -> None:
    if module.relative_to(PACKAGE) == Path("store/layout.py"):
        return
    spelled = [
        f"{module}:{node.lineno}"
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and ast.unparse(node.left).endswith("layout.root")
    ]
    assert not spelled
