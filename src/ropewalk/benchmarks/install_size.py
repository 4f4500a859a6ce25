"""How large a base install is: the files of Ropewalk and of everything it requires, from their own records."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ropewalk
from ropewalk.benchmarks.promises import Measurement, measured


def base_distributions() -> set[str]:
    """Ropewalk's requirements without extras, and theirs, as installed here."""
    waiting, found = ["ropewalk"], set[str]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def _bytes_of(name: str) -> int:
    listed = metadata.files(name) or []
    paths = {Path(str(file.locate())) for file in listed}
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`install.base_bytes`."""
    progress("adding up installed files")
    distributions = base_distributions() - {"ropewalk"}
    own = sum(
        path.stat().st_size
        for path in Path(ropewalk.__file__).parent.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    total = own + sum(_bytes_of(name) for name in distributions)
    note = f"{len(distributions) + 1} distributions, without byte code"
    return [measured("install.base_bytes", total / 1e6, note=note)]
