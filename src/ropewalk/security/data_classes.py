"""Data classes: which drivers, hosts, model endpoints and exports data of a class may meet.

Whatever touches data (a sandbox, a snapshot, a bundle, a trajectory) carries the most restricted class among all
that it touched. What no rule allows is refused; an unknown class is refused everything.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.records import Record


class Use(StrEnum):
    """What can be done with data that may need a permission."""

    DRIVER = "driver"
    """Meet a driver; target: `family:scheme`, such as `sandbox:process` or `blobs:s3`."""
    ENDPOINT = "endpoint"
    """Be sent to a model; target: its host name."""
    EXPORT = "export"
    """Leave as a file; target: the format, such as `jsonl`; `file` is one out of a sandbox."""


class DataClass(Record):
    """One class, with glob patterns of allowed targets for each use; no pattern, no use."""

    name: str
    rank: int
    """Higher is more restricted."""
    drivers: tuple[str, ...]
    endpoints: tuple[str, ...]
    exports: tuple[str, ...]

    def allows(self, use: Use) -> tuple[str, ...]:
        """The patterns for a use."""
        return {Use.DRIVER: self.drivers, Use.ENDPOINT: self.endpoints, Use.EXPORT: self.exports}[use]


_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
"""Exact: a pattern such as `127.*` would also match a host name."""

CLASSES: Final[tuple[DataClass, ...]] = (
    DataClass(name="public", rank=0, drivers=("*",), endpoints=("*",), exports=("*",)),
    DataClass(name="internal", rank=1, drivers=("*",), endpoints=_LOOPBACK, exports=("jsonl", "atif", "html", "file")),
    DataClass(
        name="restricted",
        rank=2,
        drivers=("sandbox:process", "blobs:file", "keys:file", "fleet:local"),
        endpoints=_LOOPBACK,
        exports=(),
    ),
)
"""What holds, under every profile. `restricted` stays on the machine."""


def data_class(name: str) -> DataClass:
    """The class of that name.

    Raises:
        CallerError: there is none.
    """
    for known in CLASSES:
        if known.name == name:
            return known
    raise CallerError(f"Unknown data class {name!r}.", next_step=f"one of {', '.join(c.name for c in CLASSES)}.")


def most_restricted(*names: str) -> str:
    """The class of something that touched data of all these classes; `public`, the lowest, where it touched none.

    Raises:
        CallerError: an unknown class.
    """
    found = [data_class(name) for name in names]
    return max(found or [min(CLASSES, key=lambda known: known.rank)], key=lambda known: known.rank).name


def check_allowed(name: str, use: Use, target: str) -> None:
    """Refuses a use of data that its class does not allow.

    Raises:
        DeniedError: the rule is `data_class:<class>:<use>`. Also for an unknown class.
    """
    known = next((known for known in CLASSES if known.name == name), None)
    if known is not None and any(fnmatchcase(target.lower(), pattern) for pattern in known.allows(use)):
        return
    allowed = ", ".join(known.allows(use)) if known else ""
    raise DeniedError(
        f"Data of class {name!r} may not meet the {use} {target!r}.",
        rule=f"data_class:{name}:{use}",
        next_step=f"allowed: {allowed or 'nothing'}." if known else "name a known data class.",
    )
