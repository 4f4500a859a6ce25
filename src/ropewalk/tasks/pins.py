"""Pinned catalogues: which releases of which distributions, by sha256, and which pairs of them to build from.

The pins are package data (`catalogue_pins.toml`): the demo's few and fast pairs, and the full catalogue, which was
chosen by sampling distributions for pairs that yield.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record
from ropewalk.core.toml import parse_toml
from ropewalk.lake.records import Pin
from ropewalk.tasks.records import BuildPlan, MutantPlan, PairPlan, ReleaseRef

PINS_FILE: Final = Path(__file__).with_name("catalogue_pins.toml")


class PinnedPair(Record):
    """A pair of releases to build from."""

    catalogues: tuple[str, ...]
    """`demo`, `full`."""
    distribution: str
    before: str
    after: str
    modules: tuple[str, ...] = ()
    """Test modules to use; empty: all."""
    tasks_max: int = 40


class PinnedMutants(Record):
    """A release to mutate."""

    catalogues: tuple[str, ...]
    distribution: str
    version: str
    count: int
    modules: tuple[str, ...] = ()


class PinnedRelease(Record):
    """A source distribution by its sha256."""

    distribution: str
    version: str
    sha256: str


class PinnedCatalogue(Record):
    """One catalogue's part of the pins."""

    name: str
    releases: tuple[PinnedRelease, ...]
    pairs: tuple[PinnedPair, ...]
    mutants: tuple[PinnedMutants, ...]

    @property
    def distributions(self) -> tuple[str, ...]:
        """Names, in order of their first use."""
        return tuple(dict.fromkeys(release.distribution for release in self.releases))

    def pins(self, distribution: str) -> tuple[Pin, ...]:
        """For the lake's ingest of `pypi:DISTRIBUTION`."""
        return tuple(
            Pin(distribution=release.distribution, version=release.version, sha256=release.sha256)
            for release in self.releases
            if release.distribution == distribution
        )

    def plan(
        self, refs: Mapping[tuple[str, str], ReleaseRef], *, tenant: str, seed: int = 0, tasks_max: int = 1000
    ) -> BuildPlan:
        """What to build, once the releases are in the lake.

        Args:
            refs: distribution and version → release.
            tenant: who owns the tasks.
            tasks_max: of release tasks.

        Raises:
            CallerError: a pinned release is not among `refs`.
        """
        missing = [release for release in self.releases if (release.distribution, release.version) not in refs]
        if missing:
            first = missing[0]
            raise CallerError(
                f"{len(missing)} pinned releases are not in the lake, first {first.distribution} {first.version}.",
                next_step=f"ropewalk lake ingest pypi:{first.distribution}=={first.version}",
            )
        pairs = tuple(
            PairPlan(
                before=refs[pair.distribution, pair.before], after=refs[pair.distribution, pair.after],
                modules=pair.modules, tasks_max=pair.tasks_max,
            )
            for pair in self.pairs
        )  # fmt: skip
        mutants = tuple(
            MutantPlan(release=refs[each.distribution, each.version], count=each.count, modules=each.modules)
            for each in self.mutants
        )
        return BuildPlan(pairs=pairs, mutants=mutants, tenant=tenant, seed=seed, tasks_max=tasks_max)


class _Pins(Record):
    release: tuple[PinnedRelease, ...]
    pair: tuple[PinnedPair, ...]
    mutants: tuple[PinnedMutants, ...] = ()


def load_pins(catalogue: str, *, path: Path = PINS_FILE) -> PinnedCatalogue:
    """One catalogue out of the pins.

    Raises:
        CallerError: no such catalogue, or the file does not fit.
    """
    try:
        everything = msgspec.convert(parse_toml(path.read_bytes(), what="the file"), _Pins)
    except (OSError, msgspec.ValidationError, CallerError) as error:
        raise CallerError(f"{path}: {error}.") from error
    pairs = tuple(pair for pair in everything.pair if catalogue in pair.catalogues)
    mutants = tuple(each for each in everything.mutants if catalogue in each.catalogues)
    if not pairs:
        known = sorted({name for pair in everything.pair for name in pair.catalogues})
        raise CallerError(f"There is no pinned catalogue {catalogue!r}.", next_step=f"use one of: {', '.join(known)}.")
    used = {(pair.distribution, version) for pair in pairs for version in (pair.before, pair.after)}
    used |= {(each.distribution, each.version) for each in mutants}
    releases = tuple(release for release in everything.release if (release.distribution, release.version) in used)
    if len(releases) != len(used):
        lost = sorted(used - {(release.distribution, release.version) for release in releases})
        raise CallerError(f"{path}: no sha256 for {lost[0][0]} {lost[0][1]}.")
    return PinnedCatalogue(name=catalogue, releases=releases, pairs=pairs, mutants=mutants)
