"""From sources to admitted, signed tasks: ingest, choose pairs, build, record."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from ropewalk.app.custody import Custody
from ropewalk.app.machines import Machines
from ropewalk.app.task_store import TaskStore
from ropewalk.core import limits
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import Record
from ropewalk.interface.task import TaskKind
from ropewalk.lake.archives import unpack
from ropewalk.lake.ingest import Terms
from ropewalk.lake.records import IngestResult, RawRecord
from ropewalk.lake.sources import PypiSource, parse_source
from ropewalk.orchestration.fleet import room
from ropewalk.orchestration.machine import measure
from ropewalk.rollout.plan import SourcePlan, TasksPlan
from ropewalk.tasks.bench import SLOT_SANDBOXES
from ropewalk.tasks.builder import TaskBuilder, Workshop, adjacent
from ropewalk.tasks.journal import PURPOSE
from ropewalk.tasks.pins import load_pins
from ropewalk.tasks.pytest_settings import file_patterns
from ropewalk.tasks.quota import mutants_beside
from ropewalk.tasks.reasons import why_fewer
from ropewalk.tasks.records import BuildEvent, BuildPlan, MutantPlan, PairPlan, ReleaseRef, TaskRecord, YieldReport
from ropewalk.tasks.requirements import WheelLayer, read_requirements, wheel_layer
from ropewalk.tasks.sources import LakeTrees, in_order, release_ref
from ropewalk.tasks.statements import task_statements

CATALOGUE: Final = "catalogue:"
"""Begins the name of a pinned catalogue among sources."""
RELEASES_DEFAULT: Final = 4
"""Newest releases taken of `pypi:NAME` without a version."""
MUTANT_SHARE_MAX: Final = TasksPlan().mutant_share_max


class Built(Record):
    """What a build gave."""

    report: YieldReport
    tasks: tuple[TaskRecord, ...]
    """Those chosen for the catalogue: at most as many as asked for, mutants at most their share."""
    fewer: str = ""
    """Why they are fewer than asked for, and what helps; empty where they are not."""


class Gathered(Record):
    """Sources that are in the lake."""

    releases: dict[str, tuple[ReleaseRef, ...]]
    """Distribution → its releases, oldest first; those of pinned catalogues are not among them."""
    pinned: dict[str, tuple[ReleaseRef, ...]]
    """Pinned catalogue → its releases."""


class Sources:
    """Reads the sources of a plan into the lake and tells which releases they are."""

    def __init__(self, custody: Custody, *, terms: Terms | None = None) -> None:
        self._custody = custody
        self._terms = terms or Terms(attested_by=custody.attested_by)

    def ingest(self, plan: SourcePlan, tell: Callable[[str, IngestResult], None]) -> Gathered:
        """Ingests every source; synchronous.

        Args:
            plan: the sources (`catalogue:NAME` is a pinned catalogue); the licence where they state none, their class,
                who vouches (default: whom the profile names).
            tell: is told of each source that is in.

        Raises:
            CallerError, DeniedError, IntegrityError, UnavailableError: as `Custody.ingest`.
        """
        terms = msgspec.structs.replace(
            self._terms,
            attested_by=self._terms.attested_by if plan.attested_by is None else plan.attested_by,
            licence=self._terms.licence if plan.licence is None else plan.licence,
            data_class=self._terms.data_class if plan.data_class is None else plan.data_class,
        )
        own: dict[str, tuple[RawRecord, str]] = {}
        pinned: dict[str, list[RawRecord]] = {}
        for uri in plan.uris:
            if uri.startswith(CATALOGUE):
                name = uri.removeprefix(CATALOGUE)
                pinned[name] = self._ingest_pinned(name, terms, tell)
                continue
            result = self._custody.ingest(uri, terms=terms, versions=self._versions(uri))
            own |= {record.sha256: (record, _name_of(uri)) for record in result.records}
            tell(uri, result)
        everything = {*own, *(record.sha256 for records in pinned.values() for record in records)}
        commit = self._commit_of(everything)
        found: dict[str, list[ReleaseRef]] = {}
        for record, name in own.values():
            ref = release_ref(record, commit, distribution=name)
            found.setdefault(ref.distribution, []).append(ref)
        return Gathered(
            releases={name: in_order(releases) for name, releases in found.items()},
            pinned={name: tuple(release_ref(record, commit) for record in records) for name, records in pinned.items()},
        )

    def _ingest_pinned(self, name: str, terms: Terms, tell: Callable[[str, IngestResult], None]) -> list[RawRecord]:
        pins = load_pins(name)
        records: list[RawRecord] = []
        for distribution in pins.distributions:
            uri = f"pypi:{distribution}"
            result = self._custody.ingest(uri, terms=terms, pins=pins.pins(distribution))
            records += result.records
            tell(uri, result)
        return records

    def _commit_of(self, raws: set[str]) -> str:
        """The first commit that holds all of these: the same one however often the sources are named again."""
        holds = ""
        for commit in self._custody.lake.log(tenant=self._custody.tenant):
            if not raws <= set(commit.entries.values()):
                break
            holds = commit.digest
        return holds

    def _versions(self, uri: str) -> tuple[str, ...]:
        parsed = parse_source(uri)
        if not isinstance(parsed, PypiSource) or parsed.version:
            return ()
        self._custody.profile.allow_source("pypi")
        try:
            offered = self._custody.lake.list_releases(parsed.distribution)
        except UnavailableError:
            known = [r for r in self._custody.lake.records(tenant=self._custody.tenant)
                     if r.distribution == parsed.distribution]  # fmt: skip
            if not known:
                raise
            return tuple(record.version for record in known)
        return tuple(release.version for release in offered[-RELEASES_DEFAULT:])


def plan_build(gathered: Gathered, wanted: TasksPlan, source: SourcePlan, *, tenant: str) -> BuildPlan:
    """Which pairs and mutants to build.

    A distribution with one release alone gives mutants only. Where no source has two, or nothing but mutants is asked
    for, they are all there is: as many as asked for, and the build is marked as a control only.

    Raises:
        CallerError: release tasks are asked for and no source has two releases.
    """
    releases = gathered.releases
    pairs = [pair for each in releases.values() for pair in reversed(adjacent(each))]
    mutants: list[MutantPlan] = []
    alone = (not pairs and not gathered.pinned) or TaskKind.RELEASE not in wanted.kinds
    share = 1.0 if alone else wanted.mutant_share_max if TaskKind.MUTANT in wanted.kinds else 0.0
    count = int(wanted.count * share)
    if count and releases:
        each = -(-count // len(releases))
        mutants = [MutantPlan(release=refs[-1], count=each) for refs in releases.values()]
    for name, refs in gathered.pinned.items():
        pinned = load_pins(name).plan({(ref.distribution, ref.version): ref for ref in refs}, tenant=tenant)
        pairs += pinned.pairs
        mutants += _more(pinned.mutants, wanted.count) if alone else pinned.mutants if share else ()
    if TaskKind.RELEASE not in wanted.kinds:
        pairs = []
    if TaskKind.MUTANT not in wanted.kinds:
        mutants = []
    if not pairs and not mutants:
        raise CallerError(
            "Release tasks need two releases of one distribution.",
            next_step="name a second one, or allow the kind 'mutant'.",
        )
    requirements = read_requirements(Path(source.requirements)) if source.requirements else ()
    return BuildPlan(
        pairs=_interleaved(pairs), mutants=tuple(mutants), tenant=tenant, seed=wanted.seed,
        tasks_max=wanted.count if alone else wanted.count - int(wanted.count * share),
        requirements=requirements, plugins=source.plugins, pytest_ini=source.pytest_ini, control_only=alone,
        mutant_share_max=wanted.mutant_share_max,
    )  # fmt: skip


async def build_tasks(
    custody: Custody,
    machines: Machines,
    plan: BuildPlan,
    *,
    count: int,
    wheelhouse: Path | None = None,
    tell: Callable[[BuildEvent], None] | None = None,
) -> Built:
    """Builds, signs and keeps the tasks of a plan. Repeated, it goes on where it stopped.

    Args:
        custody: signs and keeps.
        machines: runs tests.
        plan: what to build, and how many of the chosen may be mutants.
        count: of the tasks to choose.
        wheelhouse: folder of wheels for the requirements; then no network is used.
        tell: is told of progress.

    Raises:
        CallerError: requirements that do not resolve, or no task was admitted.
        DeniedError: the profile does not allow to fetch requirements, or the class of a release does not allow a
            driver; then nothing is run.
    """
    steps = [(pair.before, pair.after) for pair in plan.pairs] + [(each.release,) for each in plan.mutants]
    for data_class in sorted({release.data_class for releases in steps for release in releases}):
        machines.check_class(data_class)
    image = await machines.image()
    if plan.requirements and tell:
        tell(BuildEvent(source="requirements", stage="resolving", detail=", ".join(plan.requirements)))
    wheels = await anyio.to_thread.run_sync(_wheels, custody, machines, plan, image.layers, wheelhouse)
    shop = Workshop(
        sandboxes=machines.sandboxes,
        blobs=custody.blobs,
        layers=machines.layers,
        image=image,
        trees=LakeTrees(custody.lake, custody.tenant, file_patterns(plan.pytest_ini)),
        folder=custody.layout.tasks,
        marks=await anyio.to_thread.run_sync(custody.marks, PURPOSE),
        wheels=wheels.layers,
        parallel=measure().parallel,
        room=partial(_room, machines),
    )
    report = await TaskBuilder(shop).build(plan, on_event=tell)

    def sign() -> None:
        for image, layers in {(record.task.image, record.task.layers) for record in report.tasks}:
            machines.sandboxes.check_unchanged(image, layers)
        custody.recorder.record(task_statements(report.tasks, wheels))

    await anyio.to_thread.run_sync(sign)
    await anyio.to_thread.run_sync(TaskStore(custody.layout).add, report.tasks)
    share_max, control_only = plan.mutant_share_max, plan.control_only
    chosen = choose(report.tasks, count, mutant_share_max=share_max, control_only=control_only)
    are_mixed = bool(plan.mutants) and not control_only
    fewer = why_fewer(report, came=len(chosen), wanted=count, mutant_share_max=share_max if are_mixed else None)
    if fewer and tell:
        tell(BuildEvent(source="", stage="fewer", detail=fewer, tasks=len(chosen)))
    return Built(report=report, tasks=chosen, fewer=fewer)


@asynccontextmanager
async def _room(machines: Machines) -> AsyncIterator[None]:
    """Room for the sandboxes of one slot."""
    declares = await anyio.to_thread.run_sync(lambda: machines.declares)
    disk_bytes = limits.SANDBOX_DISK_BYTES if "disk_in_memory" in declares else 0
    wanted = SLOT_SANDBOXES * (limits.SANDBOX_MEMORY_BYTES + disk_bytes)
    async with room(machines.fleet, wanted, tenant=machines.tenant):
        yield


def choose(
    records: Sequence[TaskRecord], count: int, *, mutant_share_max: float = MUTANT_SHARE_MAX, control_only: bool = False
) -> tuple[TaskRecord, ...]:
    """At most `count` tasks, distributions in turn, mutants at most their share (unless they are a control only).

    With a quarter every fourth is a mutant as long as there are any, so that also the first few have the control among
    them; with other shares likewise.
    """
    by_source: dict[str, list[TaskRecord]] = {}
    mutants: list[TaskRecord] = []
    for record in records:
        if record.task.kind is TaskKind.MUTANT:
            mutants.append(record)
        else:
            by_source.setdefault(record.task.origin.distribution, []).append(record)
    releases: list[TaskRecord] = []
    while any(by_source.values()):
        releases += [queue.pop(0) for queue in by_source.values() if queue]
    if control_only:
        return (*releases, *mutants)[:count]
    share = Fraction(mutant_share_max).limit_denominator(1000)
    taken = min(len(mutants), int(count * share), mutants_beside(len(releases), mutant_share_max))
    mixed = list(releases[: count - taken])
    for number, mutant in enumerate(mutants[:taken], start=1):
        mixed.insert(math.ceil(number / share) - 1, mutant)
    return tuple(mixed)


def _wheels(
    custody: Custody, machines: Machines, plan: BuildPlan, image: Sequence[str], wheelhouse: Path | None
) -> WheelLayer:
    if plan.requirements and wheelhouse is None:
        custody.profile.allow_source("pypi")
    layer = partial(wheel_layer, plan.requirements, machines.layers, image=image, unpack=unpack)
    return layer(wheelhouse=wheelhouse)


def _interleaved(pairs: Sequence[PairPlan]) -> tuple[PairPlan, ...]:
    """Distributions in turn, so that a limited build has some of each."""
    by_name: dict[str, list[PairPlan]] = {}
    for pair in pairs:
        by_name.setdefault(pair.after.distribution, []).append(pair)
    mixed: list[PairPlan] = []
    while any(by_name.values()):
        mixed += [queue.pop(0) for queue in by_name.values() if queue]
    return tuple(mixed)


def _more(mutants: Sequence[MutantPlan], count: int) -> list[MutantPlan]:
    """The same releases, with as many mutants as make `count` together."""
    each = -(-count // max(1, len(mutants)))
    return [msgspec.structs.replace(mutant, count=each) for mutant in mutants]


def _name_of(uri: str) -> str:
    """A name for a source that states none: the directory's or the archive's."""
    return "" if uri.startswith("pypi:") else Path(uri).resolve().name.split(".")[0].lower().replace("_", "-")
