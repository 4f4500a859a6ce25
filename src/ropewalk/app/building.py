"""From sources to admitted, signed tasks: ingest, choose pairs, build, record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread

from ropewalk.app.custody import Custody
from ropewalk.app.machines import Machines
from ropewalk.app.task_store import TaskStore
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import Record
from ropewalk.interface.task import TaskKind
from ropewalk.lake.archives import unpack
from ropewalk.lake.ingest import Terms
from ropewalk.lake.records import IngestResult
from ropewalk.lake.sources import PypiSource, parse_source
from ropewalk.rollout.plan import SourcePlan, TasksPlan
from ropewalk.tasks.builder import TaskBuilder, Workshop, adjacent
from ropewalk.tasks.records import BuildEvent, BuildPlan, MutantPlan, PairPlan, ReleaseRef, TaskRecord, YieldReport
from ropewalk.tasks.requirements import WheelLayer, read_requirements, wheel_layer
from ropewalk.tasks.sources import LakeTrees, in_order, release_ref
from ropewalk.tasks.statements import task_statements

RELEASES_DEFAULT: Final = 4
"""Newest releases taken of `pypi:NAME` without a version."""
ATTESTED_BY: Final = "operator of this installation"


class Built(Record):
    """What a build gave."""

    report: YieldReport
    tasks: tuple[TaskRecord, ...]
    """Those chosen for the catalogue: at most as many as asked for, mutants a quarter at most."""


class Sources:
    """Reads the sources of a plan into the lake and tells which releases they are."""

    def __init__(self, custody: Custody, *, terms: Terms | None = None) -> None:
        self._custody = custody
        self._terms = terms or Terms(attested_by=ATTESTED_BY)

    def ingest(self, plan: SourcePlan, tell: Callable[[str, IngestResult], None]) -> dict[str, tuple[ReleaseRef, ...]]:
        """Ingests every source; synchronous.

        Args:
            plan: the sources; the licence where they state none.
            tell: is told of each source that is in.

        Returns:
            Distribution → its releases, oldest first.

        Raises:
            CallerError, DeniedError, IntegrityError, UnavailableError: as `Custody.ingest`.
        """
        if not plan.uris:
            raise CallerError("No source was named.", next_step="give --source, or source.uris in the plan.")
        terms = self._terms if plan.licence is None else _licensed(self._terms, plan.licence)
        found: dict[str, dict[str, ReleaseRef]] = {}
        for uri in plan.uris:
            result = self._custody.ingest(uri, terms=terms, versions=self._versions(uri))
            for record in result.records:
                ref = release_ref(record, result.commit.digest, distribution=_name_of(uri))
                found.setdefault(ref.distribution, {})[ref.raw] = ref
            tell(uri, result)
        return {name: in_order(releases.values()) for name, releases in found.items()}

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


def plan_build(
    releases: Mapping[str, Sequence[ReleaseRef]], wanted: TasksPlan, source: SourcePlan, *, tenant: str
) -> BuildPlan:
    """Which pairs and mutants to build.

    A distribution with one release alone gives mutants only; where no source has two, they are all there is, and the
    build is marked as a user's own package.

    Raises:
        CallerError: release tasks are asked for and no source has two releases.
    """
    pairs: tuple[PairPlan, ...] = ()
    if TaskKind.RELEASE in wanted.kinds:
        pairs = tuple(pair for each in releases.values() for pair in reversed(adjacent(each)))
    mutants: tuple[MutantPlan, ...] = ()
    private = not pairs
    if TaskKind.MUTANT in wanted.kinds:
        share = 1.0 if private else wanted.mutant_share_max
        count = int(wanted.count * share)
        each = max(1, -(-count // len(releases))) if count else 0
        mutants = tuple(MutantPlan(release=refs[-1], count=each) for refs in releases.values() if each)
    if not pairs and not mutants:
        raise CallerError(
            "Release tasks need two releases of one distribution.",
            next_step="name a second one, or allow the kind 'mutant'.",
        )
    requirements = read_requirements(Path(source.requirements)) if source.requirements else ()
    releases_max = wanted.count if private else wanted.count - int(wanted.count * wanted.mutant_share_max)
    return BuildPlan(
        pairs=_interleaved(pairs), mutants=mutants, tenant=tenant, seed=wanted.seed, tasks_max=releases_max,
        requirements=requirements, plugins=source.plugins, private=private,
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
        plan: what to build.
        count: of the tasks to choose.
        wheelhouse: folder of wheels for the requirements; then no network is used.
        tell: is told of progress.

    Raises:
        CallerError: requirements that do not resolve, or no task was admitted.
        DeniedError: the profile does not allow to fetch requirements.
    """
    image = await machines.image()
    wheels = await anyio.to_thread.run_sync(_wheels, custody, machines, plan, image.layers, wheelhouse)
    shop = Workshop(
        boxes=machines.sandboxes,
        blobs=custody.blobs,
        layers=machines.layers,
        image=image,
        trees=LakeTrees(custody.lake, custody.tenant),
        folder=custody.layout.root / "tasks",
        wheels=wheels.layers,
    )
    report = await TaskBuilder(shop).build(plan, on_event=tell)
    drafts = task_statements(report.tasks, wheels)
    await anyio.to_thread.run_sync(custody.recorder.record, drafts)
    await anyio.to_thread.run_sync(TaskStore(custody.layout).add, report.tasks)
    return Built(report=report, tasks=choose(report.tasks, count, private=plan.private))


def choose(records: Sequence[TaskRecord], count: int, *, private: bool = False) -> tuple[TaskRecord, ...]:
    """At most `count` tasks, distributions in turn, mutants a quarter at most (unless private)."""
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
    if private:
        return (*releases, *mutants)[:count]
    taken = mutants[: min(count // 4, len(releases) // 3)]
    return (*releases[: count - len(taken)], *taken)


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


def _licensed(terms: Terms, licence: str) -> Terms:
    return Terms(
        attested_by=terms.attested_by, attested_text=terms.attested_text, licence=licence, data_class=terms.data_class
    )


def _name_of(uri: str) -> str:
    """A name for a source that states none: the directory's or the archive's."""
    return "" if uri.startswith("pypi:") else Path(uri).resolve().name.split(".")[0].lower().replace("_", "-")
