"""Settings of pytest that a package's tests need: as its own `pytest.ini` has them, given by who builds.

A package's own configuration is not read, since it names plugins and coverage tools that are not there. What its tests
need of it is given by name, and holds in every run: baselines, gradings, and episodes (`worlds.TestWorld`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from ropewalk.core.errors import CallerError

PATHS: Final = "pythonpath"
"""Folders where imports start, besides those that are found; relative to the package's tree."""
FILES: Final = "python_files"
"""Globs of test modules, instead of `test_*.py`, `*_test.py`, `tests.py`."""
ARGUMENTS: Final = "addopts"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_REFUSED: Final = {
    "testpaths": "leave it out: all test modules of the tree are used; python_files says how they are called.",
    "norecursedirs": "leave it out: all test modules of the tree are used; python_files says how they are called.",
    # Held-out tests are taken out of what a policy sees, and they are known there by such names.
    "python_functions": "call test functions test…; others are not told from helpers here.",
    "cache_dir": "leave it out: nothing is cached.",
    "minversion": "leave it out: the image's pytest is what there is.",
    "required_plugins": "name plugins by module: --plugin MODULE.",
}


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` as a command line has them; of a name that is given twice, the lines of all its values.

    Raises:
        CallerError: one is no such pair.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not _NAME.fullmatch(name.strip()):
            raise CallerError(
                f"{pair[:80]!r} is no setting of pytest.",
                next_step="write it as NAME=VALUE, e.g. --pytest-ini asyncio_mode=auto.",
            )
        name = name.strip()
        found[name] = f"{found[name]}\n{value}" if name in found else value
    return found


def check_settings(settings: Mapping[str, str]) -> None:
    """Returns if these can be settings.

    Raises:
        CallerError: a name that none can have, or that means nothing here; a path that leads out of the tree.
    """
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise CallerError(
                f"{name[:80]!r} is no name of a setting of pytest.",
                next_step="name it as pytest.ini has it, e.g. asyncio_mode.",
            )
        if name in _REFUSED:
            raise CallerError(f"The setting {name} of pytest has no use here.", next_step=_REFUSED[name])
        if any(not character.isprintable() and character not in "\n\t" for character in value):
            raise CallerError(
                f"The setting {name} of pytest holds a character that cannot be printed.",
                next_step="give it without; several lines may stand in one value.",
            )
    for path in extra_paths(settings):
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            raise CallerError(
                f"pythonpath {path[:80]!r} leads out of the package's tree.",
                next_step="name folders relative to where pyproject.toml lies.",
            )


def extra_paths(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Folders where imports start, of `pythonpath`."""
    return tuple(PurePosixPath(path).as_posix() for path in settings.get(PATHS, "").split())


def file_patterns(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Globs of test modules, of `python_files`; none where pytest's own hold."""
    return tuple(settings.get(FILES, "").split())


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of pytest's globs fits a path: its name, or its end where the glob has folders."""
    pure = PurePosixPath(path)
    return any(
        fnmatchcase(f"/{path}", f"*/{pattern}") if "/" in pattern else fnmatchcase(pure.name, pattern)
        for pattern in patterns
    )


def options(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that pytest itself is to be told of, sorted by name."""
    return {name: settings[name] for name in sorted(settings) if name != PATHS}


def ini_file(settings: Mapping[str, str], *, paths: Iterable[str], plugins: Iterable[str]) -> bytes:
    """A `pytest.ini` with these settings.

    Args:
        settings: as given.
        paths: where imports start, those of the settings among them.
        plugins: to load, by module name.
    """
    told = {PATHS: " ".join(paths)}
    arguments = [*(f"-p {name}" for name in plugins), *settings.get(ARGUMENTS, "").split("\n")]
    if any(arguments):
        told[ARGUMENTS] = " ".join(part for part in arguments if part)
    told |= {name: value for name, value in options(settings).items() if name != ARGUMENTS}
    lines = [f"{name} = " + "\n    ".join(value.split("\n")) for name, value in told.items()]
    return ("[pytest]\n" + "\n".join(lines) + "\n").encode()
