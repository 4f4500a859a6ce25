"""A package's source tree: which files are the package, which are its tests, where imports start.

A tree is held in memory (a source distribution is a few megabytes), so that everything which decides what goes into
a task is a pure function of bytes. Nothing of the package runs here: neither its build script nor its tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.records import digest, digest_bytes
from ropewalk.tasks.pytest_settings import matches

_TEST_FOLDERS = frozenset({"test", "tests", "testsuite"})
_TEST_FILE = re.compile(r"(test_.*|.*_test|tests?|conftest)\.py")
_TEST_MODULE = re.compile(r"(test_.*|.*_test|tests?)\.py")
_NOT_PACKAGES = frozenset({
    "benchmark", "benchmarks", "build", "contrib", "dist", "doc", "docs", "example", "examples", "fuzz", "requirements",
    "scripts", "tasks", "tools", "utils",
})  # fmt: skip
_NOT_MODULES = frozenset({"setup", "noxfile", "conftest", "fabfile", "versioneer", "tasks", "dodo", "manage"})
_SKIPPED_FOLDERS = frozenset({
    ".git", ".hg", ".svn", ".tox", ".nox", ".venv", "venv", "env", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    "__pycache__", "node_modules", "build", "dist", ".eggs",
})  # fmt: skip
_DATA_BYTES_MAX = 4 * limits.MIB


class NoTestsError(CallerError):
    """A package without a test that pytest would collect."""


@dataclass(frozen=True)
class SourceTree:
    """One release of one distribution.

    Attributes:
        distribution: its normalised name.
        version: as released; `0` where a directory does not say.
        files: path relative to the tree's root, with slashes → content.
        source_root: where imports start: "" or "src".
        import_names: top-level packages and modules.
        test_patterns: globs of test modules, as pytest's `python_files` has them; none: pytest's own.
    """

    distribution: str
    version: str
    files: Mapping[str, bytes]
    source_root: str
    import_names: tuple[str, ...]
    test_patterns: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """sha256 over all paths and contents."""
        from_files = {path: digest_bytes(content) for path, content in self.files.items()}
        return digest([self.distribution, self.version, from_files])

    @property
    def package_files(self) -> dict[str, bytes]:
        """The package itself, data included, tests and pytest configuration not."""
        return {path: content for path, content in self.files.items() if self._in_package(path)}

    @property
    def editable_files(self) -> dict[str, bytes]:
        """The package's Python files: what a fix may change."""
        return {path: content for path, content in self.package_files.items() if path.endswith(".py")}

    @property
    def test_files(self) -> dict[str, bytes]:
        """Test modules and what lies beside them: `conftest.py`, helpers, data."""
        return {path: content for path, content in self.files.items() if self.is_test(path) and self._is_kept(path)}

    @property
    def test_modules(self) -> tuple[str, ...]:
        """Paths that pytest would collect, sorted.

        Raises:
            NoTestsError: there is none.
        """
        modules = sorted(path for path in self.test_files if self.is_test_module(path))
        if not modules:
            raise NoTestsError(
                f"{self.distribution} {self.version} holds no tests (no `{self.test_patterns[0]}` in its tree)."
                if self.test_patterns
                else f"{self.distribution} {self.version} holds no tests (no `test_*.py` in its tree).",
                next_step="name a release whose source distribution ships its tests, or a source directory; where test "
                "modules are called otherwise, --pytest-ini python_files=GLOB.",
            )
        return tuple(modules)

    def is_test(self, path: str) -> bool:
        """Whether a file belongs to the tests rather than to the package."""
        return is_test_path(path) or matches(path, _telling(self.test_patterns))

    def is_test_module(self, path: str) -> bool:
        """Whether pytest would collect tests from this file."""
        if not self.test_patterns:
            return bool(_TEST_MODULE.fullmatch(PurePosixPath(path).name))
        return path.endswith(".py") and self.is_test(path) and matches(path, self.test_patterns)

    def _in_package(self, path: str) -> bool:
        if self.is_test(path) or not self._is_kept(path):
            return False
        inner = path.removeprefix(f"{self.source_root}/") if self.source_root else path
        if self.source_root and inner == path:
            return False
        top = inner.split("/", 1)[0]
        return top in self.import_names or (top == inner and top.removesuffix(".py") in self.import_names)

    def _is_kept(self, path: str) -> bool:
        return not path.endswith((".pyc", ".pyo", ".so", ".pyd")) and len(self.files[path]) <= _DATA_BYTES_MAX


def is_test_path(path: str) -> bool:
    """Whether a file belongs to the tests rather than to the package."""
    pure = PurePosixPath(path)
    return any(part in _TEST_FOLDERS for part in pure.parts[:-1]) or bool(_TEST_FILE.fullmatch(pure.name))


def _telling(patterns: Iterable[str]) -> list[str]:
    """Globs that tell tests from the package wherever they lie: not one that fits every module (`*.py`)."""
    return [pattern for pattern in patterns if not matches("__init__.py", [pattern.rpartition("/")[2]])]


def read_tree(
    folder: Path, *, distribution: str = "", version: str = "", test_patterns: tuple[str, ...] = ()
) -> SourceTree:
    """The tree in a directory; links are not followed, caches and version control are left out.

    Args:
        folder: the directory, or one that holds nothing but it (as archives unpack).
        distribution, version: where not given, they come from the tree's metadata, else from the folder's name.
        test_patterns: globs of test modules, where they are not pytest's own.

    Raises:
        CallerError: no such directory, too many or too large files, or nothing in it can be imported.
    """
    if not folder.is_dir():
        raise CallerError(f"{folder} is not a directory.", next_step="name the directory that holds the package.")
    files = _read_files(_descend(folder))
    name, found_version = _metadata(files)
    named = distribution or name or folder.name
    return make_tree(files, distribution=named, version=version or found_version or "0", test_patterns=test_patterns)


def make_tree(
    files: Mapping[str, bytes], *, distribution: str, version: str, test_patterns: tuple[str, ...] = ()
) -> SourceTree:
    """A tree out of its files.

    Raises:
        CallerError: no importable package or module is in it.
    """
    source_root = "src" if any(path.startswith("src/") and path.endswith(".py") for path in files) else ""
    names = _import_names(files, source_root, distribution)
    if not names:
        raise CallerError(
            f"{distribution} {version}: no package or module that Python could import.",
            next_step="name the directory that holds `pyproject.toml` and the package (or `src/`).",
        )
    normal = re.sub(r"[-_.]+", "-", distribution).lower()
    return SourceTree(normal, version, dict(sorted(files.items())), source_root, names, test_patterns)


def _descend(folder: Path) -> Path:
    """Into the single directory that an unpacked archive consists of."""
    children = [child for child in folder.iterdir() if child.name != "pax_global_header"]
    if len(children) == 1 and children[0].is_dir() and not (children[0] / "__init__.py").exists():
        return children[0]
    return folder


def _read_files(folder: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = Path(base) / name
            if path.is_symlink() or not path.is_file():
                continue
            total += path.stat().st_size
            if len(files) >= limits.ARCHIVE_MEMBERS_MAX or total > limits.ARCHIVE_BYTES_MAX:
                raise CallerError(
                    f"{folder} holds more than {limits.ARCHIVE_MEMBERS_MAX} files or {limits.ARCHIVE_BYTES_MAX} bytes.",
                    next_step="name the package's own directory.",
                )
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def _metadata(files: Mapping[str, bytes]) -> tuple[str, str]:
    """Name and version out of `PKG-INFO`, else what `pyproject.toml` says literally."""
    text = files.get("PKG-INFO", b"").decode("utf-8", "replace").split("\n\n", 1)[0]
    found: dict[str, str] = dict(re.findall(r"^(Name|Version): *(\S+)", text, re.MULTILINE))
    project = files.get("pyproject.toml", b"").decode("utf-8", "replace")
    literal: dict[str, str] = dict(re.findall(r"^(name|version) *= *[\"']([^\"'\n]+)[\"']", project, re.MULTILINE))
    return found.get("Name", literal.get("name", "")), found.get("Version", literal.get("version", ""))


def _import_names(files: Mapping[str, bytes], source_root: str, distribution: str) -> tuple[str, ...]:
    prefix = f"{source_root}/" if source_root else ""
    packages, modules = set(), set()
    for path in files:
        if not path.startswith(prefix) or not path.endswith(".py"):
            continue
        parts = path[len(prefix) :].split("/")
        if len(parts) == 1 and not _TEST_FILE.fullmatch(parts[0]):
            modules.add(parts[0].removesuffix(".py"))
        elif len(parts) == 2 and parts[1] == "__init__.py" and parts[0] not in _TEST_FOLDERS:
            packages.add(parts[0])
    usual = re.sub(r"[-_.]+", "_", distribution).lower()
    if not source_root:
        packages = {name for name in packages if name not in _NOT_PACKAGES or name == usual}
        modules -= _NOT_MODULES
    listed = _listed_names(files)
    if listed & (packages | modules):
        return tuple(sorted(listed & (packages | modules)))
    return tuple(sorted(packages or modules))


def _listed_names(files: Mapping[str, bytes]) -> set[str]:
    """What setuptools wrote down as importable, if it did."""
    lists = (content for path, content in files.items() if path.endswith(".egg-info/top_level.txt"))
    return {
        line.strip() for content in lists for line in content.decode("utf-8", "replace").splitlines() if line.strip()
    }
