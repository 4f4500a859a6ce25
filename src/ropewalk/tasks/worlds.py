"""What lies in a task's sandbox: which files, where, and how its tests are run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from ropewalk.tasks.pytest_settings import extra_paths, ini_file
from ropewalk.tasks.tree import SourceTree, is_test_path

WORKDIR: Final = "/work"
TEST_ENV: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
"""Variables under which an episode runs tests: no plugin loads by itself, and runs are alike."""
_CONFIGURATION: Final = "pytest.ini"
_FOREIGN: Final = frozenset({"pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"})


def source_files(tree: SourceTree, editable: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    """The package as files of a layer: paths in the sandbox without the leading slash.

    Beside the package there is the least metadata that `importlib.metadata` needs to tell its version. Release
    notes, build scripts, version control and metadata of the archive stay out.

    Args:
        tree: the release.
        editable: its Python files where they differ from the tree's (a mutant's); deleted ones are absent.
    """
    files = {path: content for path, content in tree.package_files.items() if not path.endswith(".py")}
    files |= tree.editable_files if editable is None else editable
    folder = f"{tree.source_root}/" if tree.source_root else ""
    name = tree.distribution.replace("-", "_")
    metadata = f"Metadata-Version: 2.1\nName: {tree.distribution}\nVersion: {tree.version}\n"
    files[f"{folder}{name}-{tree.version}.dist-info/METADATA"] = metadata.encode()
    return {_inside(path): content for path, content in files.items()}


def layer_files_of_tests(
    tests: Mapping[str, bytes],
    *,
    import_paths: Iterable[str],
    plugins: Iterable[str],
    settings: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Test files and the pytest configuration as files of a layer.

    The package's own configuration is not used: it names plugins and coverage tools that are not there. `settings` are
    those of it that are given (`pytest_settings`).
    """
    files = {path: content for path, content in tests.items() if path not in _FOREIGN}
    files[_CONFIGURATION] = ini_file(settings, paths=import_paths, plugins=plugins)
    return {_inside(path): content for path, content in files.items()}


def import_paths(tree: SourceTree, settings: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
    """Folders, relative to the workdir, where imports start; those that pytest's settings name come last."""
    own = (tree.source_root, ".") if tree.source_root else (".",)
    return tuple(dict.fromkeys((*own, *extra_paths(settings))))


def editable_globs(*trees: SourceTree) -> tuple[str, ...]:
    """Globs of the files that may be handed in: Python files of the package's folders, one glob a folder.

    A folder of tests has none. No glob crosses folders, so that a package whose tests lie inside it does not open
    them.
    """
    folders = {PurePosixPath(path).parent.as_posix() for tree in trees for path in tree.editable_files}
    modules = {path for tree in trees for path in tree.editable_files if "/" not in path}
    globs = {f"{folder}/*.py" for folder in folders if folder != "." and not is_test_path(f"{folder}/x")}
    return tuple(sorted(globs | modules))


def reach_folders(tree: SourceTree) -> tuple[str, ...]:
    """Folders, relative to the workdir, whose functions a run notes."""
    folder = f"{tree.source_root}/" if tree.source_root else ""
    packages = [name for name in tree.import_names if any(p.startswith(f"{folder}{name}/") for p in tree.files)]
    return tuple(f"{folder}{name}" for name in packages) or (tree.source_root or ".",)


TEST_COMMAND: Final = ("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider")
"""Runs tests in a sandbox of an episode; node ids are appended. Plugins are named in the configuration file."""


def _inside(path: str) -> str:
    return f"{WORKDIR.strip('/')}/{path}"
