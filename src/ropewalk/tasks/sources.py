"""From the lake to source trees: raw archives are unpacked without trust, and nothing in them runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packaging.version import InvalidVersion, Version

from ropewalk.core.errors import CallerError
from ropewalk.lake.archives import unpack
from ropewalk.lake.records import RawRecord
from ropewalk.tasks.records import ReleaseRef
from ropewalk.tasks.tree import SourceTree, read_tree


class RawFiles(Protocol):
    """Reads raw files (`ropewalk.lake.lake.Lake`)."""

    def read(self, id: str, *, tenant: str) -> bytes:
        """A raw file's bytes, verified."""
        ...


@dataclass(frozen=True)
class LakeTrees:
    """Opens releases out of one tenant's lake."""

    lake: RawFiles
    tenant: str
    test_patterns: tuple[str, ...] = ()
    """Globs of test modules, where they are not pytest's own."""

    def __call__(self, release: ReleaseRef) -> SourceTree:
        """The release's tree.

        Raises:
            CallerError: not an archive that may be unpacked, or nothing in it can be imported.
            IntegrityError: the raw file was changed or lost.
        """
        data = self.lake.read(release.raw, tenant=self.tenant)
        with tempfile.TemporaryDirectory(prefix="ropewalk-source-") as folder:
            place = Path(folder, "tree")
            unpack(data, place, name=f"{release.distribution} {release.version}")
            return read_tree(
                place, distribution=release.distribution, version=release.version, test_patterns=self.test_patterns
            )


def release_ref(record: RawRecord, commit: str, *, distribution: str = "", version: str = "") -> ReleaseRef:
    """A raw file as a release; name and version where the source states none.

    Raises:
        CallerError: it has no name, neither here nor in the record.
    """
    name = record.distribution or distribution
    if not name:
        raise CallerError(
            f"{record.name} does not say which distribution it is.",
            next_step="give its name: `name` in pyproject.toml.",
        )
    return ReleaseRef(
        distribution=name, version=record.version or version or "0", raw=record.sha256, commit=commit,
        licence=record.licence.expression, data_class=record.data_class,
    )  # fmt: skip


def in_order(releases: Iterable[ReleaseRef]) -> tuple[ReleaseRef, ...]:
    """Releases by version, oldest first; those without a version that can be ordered come first, as they came."""

    def key(release: ReleaseRef) -> tuple[bool, Version]:
        try:
            return True, Version(release.version)
        except InvalidVersion:
            return False, Version("0")

    return tuple(sorted(releases, key=key))
