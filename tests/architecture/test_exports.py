"""What packages export exists, is sorted and documented, and `ropewalk` itself gives what its users begin with."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ropewalk
from ropewalk.app.ropewalk import Ropewalk
from ropewalk.app.runs import Run
from ropewalk.provenance.trace import Trace
from ropewalk.reward.verdict import Reward
from ropewalk.sandbox.sandbox import Sandbox, Snapshot
from tests.architecture.sources import MODULES, PACKAGE, tree_of

PACKAGES = [module for module in MODULES if module.name == "__init__.py"]
TABLE = "DRIVERS"
"""The table of a driver family is documented by its package, which holds nothing else."""


def dotted(module: Path) -> str:
    inner = module.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("ropewalk", *inner)).removesuffix(".__init__")


def names_in_all(module: Path) -> list[str] | None:
    if "__all__" not in module.read_text(encoding="utf-8"):  # parsing all of them would hold up every test process
        return None
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def documented_assignments(module: Path) -> set[str]:
    """Names of a module that are assigned and followed by a string."""
    found: set[str] = set()
    for node, after in pairwise(tree_of(module).body):
        text = (
            isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
        )
        if text and isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def is_documented(value: Any, name: str) -> bool:
    if inspect.isclass(value) or inspect.isfunction(value):
        return bool(value.__doc__)
    return name == TABLE or name == "__version__" or any(name in documented_assignments(module) for module in MODULES)


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, the rest: as ruff (RUF022) and import sorting have it."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("module", PACKAGES, ids=str)
def test_packages_say_what_they_export(module: Path) -> None:
    """Whatever a package's `__init__` imports or defines for others is in its `__all__`, and nothing else is."""
    names = names_in_all(module)
    given = {
        alias.asname or alias.name
        for node in tree_of(module).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(dotted(module))
        for alias in node.names
    }
    if names is None:
        assert not given, f"{module} re-exports {sorted(given)} and has no __all__"
        return
    missing = given - set(names)
    assert not missing, f"{module}: {sorted(missing)} is imported and not in __all__"


@pytest.mark.parametrize("module", [m for m in MODULES if names_in_all(m) is not None], ids=str)
def test_exported_names_exist_sorted_and_documented(module: Path) -> None:
    names = names_in_all(module)
    assert names is not None and len(names) == len(set(names))
    assert names == sorted(names, key=_order), f"{module}: {names} is not sorted"
    package = importlib.import_module(dotted(module))
    for name in names:
        assert hasattr(package, name), f"{module} exports {name}, which does not exist"
        assert is_documented(getattr(package, name), name), f"{module} exports {name}, which is not documented"


def test_ropewalk_gives_what_its_users_begin_with() -> None:
    """The lines of "How it feels to use" in the README: everything comes from here or from what that gives."""
    for name in ropewalk.__all__:
        assert getattr(ropewalk, name) is not None
        assert name in dir(ropewalk)
    for owner, names in (
        (Ropewalk, ("open", "sandbox", "run", "trace")),
        (Sandbox, ("write", "exec", "snapshot")),
        (Snapshot, ("fork",)),
        (Run, ("rewards",)),
        (Trace, ("sources",)),
    ):
        assert all(callable(getattr(owner, name)) or isinstance(getattr(owner, name), property) for name in names)
    assert {"value", "cause"} <= set(Reward.__struct_fields__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ropewalk.nothing  # noqa: B018


def test_errors_can_be_caught_by_what_ropewalk_exports() -> None:
    from_core = importlib.import_module("ropewalk.core.errors")
    branches = [name for name, value in vars(from_core).items() if inspect.isclass(value) and name.endswith("Error")]
    assert set(branches) <= set(ropewalk.__all__)
    assert all(getattr(ropewalk, name) is getattr(from_core, name) for name in branches)


def test_importing_ropewalk_loads_nothing_heavy() -> None:
    program = "import sys, ropewalk; print(sorted({n.partition('.')[0] for n in sys.modules} & {'anyio', 'msgspec'}))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
