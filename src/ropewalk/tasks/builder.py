"""Builds a catalogue of tasks out of releases: resumable, in order, with progress and with reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

import anyio

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, RopewalkError, UnavailableError, leaves
from ropewalk.reward.grader import Grader
from ropewalk.reward.ports import GradingSandboxes
from ropewalk.security.marks import Marks
from ropewalk.store.contract import Blobs
from ropewalk.tasks.assembly import Assembly
from ropewalk.tasks.bench import Bench, BuildWorld, Room
from ropewalk.tasks.journal import Attempts, BuildJournal
from ropewalk.tasks.leaks import Scanner
from ropewalk.tasks.mutants import MutantBuilder
from ropewalk.tasks.quota import Quota, within_quota
from ropewalk.tasks.records import (
    BuildEvent,
    BuildPlan,
    MutantPlan,
    PairPlan,
    Reason,
    Rejection,
    ReleaseRef,
    SourceYield,
    YieldReport,
)  # fmt: skip
from ropewalk.tasks.releases import ReleaseBuilder
from ropewalk.tasks.requirements import BuildLayers
from ropewalk.tasks.tree import SourceTree

_ATTEMPTS: Final = 2
"""Of a source whose sandboxes were lost."""


class Trees(Protocol):
    """Gives a release's source tree; called from a thread."""

    def __call__(self, release: ReleaseRef) -> SourceTree: ...


class ImageLike(Protocol):
    """An image's record (`ropewalk.sandbox.images.ImageRecord`)."""

    @property
    def digest(self) -> str: ...
    @property
    def layers(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Workshop:
    """What a builder works with; wired by `app`.

    Attributes:
        sandboxes: makes sandboxes (`Sandboxes`).
        blobs: takes sources, oracles and graders.
        layers: takes layers (`LayerStore`).
        image: of all sandboxes.
        trees: opens a release out of the lake (`tasks.sources.LakeTrees`).
        folder: for baselines, progress and scan indexes: `<state>/tasks`.
        marks: for `tasks.journal.PURPOSE`.
        wheels: layers of requirements.
        parallel: slots, in which sandboxes work at the same time.
        room: for the sandboxes of one slot (`tasks.bench.SLOT_SANDBOXES`).
    """

    sandboxes: GradingSandboxes
    blobs: Blobs
    layers: BuildLayers
    image: ImageLike
    trees: Trees
    folder: Path
    marks: Marks
    wheels: tuple[str, ...] = ()
    parallel: int = 2
    room: Room = nullcontext
    clock: Clock = field(default_factory=SystemClock)


class TaskBuilder:
    """Builds plans. One at a time; a plan that was interrupted goes on where it stopped."""

    def __init__(self, workshop: Workshop) -> None:
        self._shop = workshop

    async def build(self, plan: BuildPlan, *, on_event: Callable[[BuildEvent], None] | None = None) -> YieldReport:
        """Builds all release tasks of a plan, and as many mutants as their share allows.

        A few sources are worked on at a time. What came of each thing that was tried is on disk before the next one
        begins; a build that was killed and is started again with the same plan reads it from there.

        Args:
            plan: what to build.
            on_event: is told of progress; must not block.

        Raises:
            CallerError: a plan of mutants alone that is not marked as a control only.
            UnavailableError: the machine fails us again and again.
        """
        if plan.mutants and not plan.pairs and not plan.control_only:
            raise CallerError(
                "Mutants alone are no catalogue: they are a control beside release tasks, a quarter at most.",
                next_step="add pairs of releases, or mark the plan as a control only.",
            )
        run = _Run(self._shop, plan, on_event or (lambda event: None))
        return await run.build()


class _Run:
    """One build."""

    def __init__(self, shop: Workshop, plan: BuildPlan, on_event: Callable[[BuildEvent], None]) -> None:
        self._shop = shop
        self._plan = plan
        self._on_event = on_event
        world = BuildWorld(
            tenant=plan.tenant, image=shop.image.digest, image_layers=shop.image.layers, wheels=shop.wheels,
            plugins=plan.plugins, settings=plan.pytest_ini,
        )  # fmt: skip
        bench = Bench(
            shop.sandboxes, shop.blobs, shop.layers, world, shop.folder, shop.marks, shop.clock, shop.parallel,
            shop.room,
        )  # fmt: skip
        grader = Grader(shop.sandboxes, shop.blobs, tenant=plan.tenant, clock=shop.clock)
        scanner = Scanner(shop.layers, shop.folder / "indexes", shop.marks)
        assembly = Assembly(bench, grader, scanner, seed=plan.seed)
        self._releases = ReleaseBuilder(bench, assembly, seed=plan.seed)
        self._mutants = MutantBuilder(bench, assembly, seed=plan.seed)
        self._journal = BuildJournal(shop.folder, plan, image=shop.image.digest, marks=shop.marks, wheels=shop.wheels)
        self._trees: dict[str, SourceTree] = {}
        self._results: dict[int, SourceYield] = {}
        self._quota = Quota(plan)
        self._done = 0
        self._tasks = 0
        self._total = len(plan.pairs) + len(plan.mutants)

    async def build(self) -> YieldReport:
        started_s = self._shop.clock.monotonic_s()
        steps: list[tuple[int, PairPlan | MutantPlan]] = [*enumerate(self._plan.pairs)]
        steps += enumerate(self._plan.mutants, start=len(steps))
        try:
            async with anyio.create_task_group() as group:
                for _ in range(self._shop.parallel + 1):  # one of them waits for a slot, and is ready when it comes
                    group.start_soon(self._work, steps)
        except BaseExceptionGroup as errors:
            cause = _single(errors)
            if isinstance(cause, RopewalkError):
                raise cause from None  # callers know our errors, not groups of them
            raise
        results = [self._results[number] for number in sorted(self._results)]
        if self._plan.pairs or not self._plan.control_only:
            results = within_quota(results, self._plan.mutant_share_max)
        seconds = self._shop.clock.monotonic_s() - started_s
        return YieldReport(sources=tuple(results), seconds=round(seconds, 2))

    async def _work(self, steps: list[tuple[int, PairPlan | MutantPlan]]) -> None:
        while steps:
            number, step = steps.pop(0)
            is_wanted = isinstance(step, MutantPlan) or not self._quota.is_spent(number)
            if is_wanted or self._journal.load(step) is not None:
                self._results[number] = await self._step(step, number)
            else:
                self._done += 1
            self._quota.finish(number, len(self._results[number].tasks) if number in self._results else 0)

    async def _step(self, step: PairPlan | MutantPlan, number: int) -> SourceYield:
        """One source: from the journal, or built and journaled."""
        result = self._journal.load(step)
        if result is not None:
            self._finish(step.name, result, "resumed")
            return result
        self._tell(step.name, "started", "")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                result = await self._build(step, number)
                break
            except Exception as error:  # sources are hostile: one that is odd must not end the build of the others
                cause = _single(error)
                if isinstance(cause, IntegrityError | DeniedError):
                    raise cause from error
                if not isinstance(cause, UnavailableError):
                    result = self._failed(step, Reason.UNREADABLE, f"{type(cause).__name__}: {cause}")
                    break
                if attempt == _ATTEMPTS:
                    result = self._failed(step, Reason.INFRASTRUCTURE, cause.message)
        assert result is not None
        if not any(rejection.reason is Reason.INFRASTRUCTURE for rejection in result.rejections):
            await anyio.to_thread.run_sync(self._journal.store, step, result)
        self._finish(step.name, result, "finished")
        return result

    async def _build(self, step: PairPlan | MutantPlan, number: int) -> SourceYield:
        attempts = Attempts(self._journal, step)

        def tell(stage: str, detail: str) -> None:
            self._tasks += stage == "task"
            self._tell(step.name, stage, detail)

        if isinstance(step, PairPlan):
            before, after = await self._tree(step.before), await self._tree(step.after)
            return await self._releases.build(step, (before, after), tell, self._quota.pair(number), attempts=attempts)
        tree = await self._tree(step.release)
        return await self._mutants.build(step, tree, tell, self._quota.mutants(number), attempts=attempts)

    async def _tree(self, release: ReleaseRef) -> SourceTree:
        if release.raw not in self._trees:
            self._trees[release.raw] = await anyio.to_thread.run_sync(self._shop.trees, release)
        return self._trees[release.raw]

    def _failed(self, step: PairPlan | MutantPlan, reason: Reason, detail: str) -> SourceYield:
        rejection = Rejection(name=step.name, reason=reason, detail=ascii(detail)[1:-1][:500])
        return SourceYield(name=step.name, kind=step.kind, distribution=step.distribution, rejections=(rejection,))

    def _finish(self, name: str, result: SourceYield, stage: str) -> None:
        self._done += 1
        if stage == "resumed":
            self._tasks += len(result.tasks)
        for sentence in result.left_out:
            self._tell(name, "left_out", sentence)
        for sentence in result.remarks:
            self._tell(name, "remark", sentence)
        self._tell(name, stage, f"{len(result.tasks)} tasks, {len(result.rejections)} rejections")

    def _tell(self, name: str, stage: str, detail: str) -> None:
        self._on_event(
            BuildEvent(source=name, stage=stage, detail=detail, done=self._done, total=self._total, tasks=self._tasks)
        )


def _single(error: BaseException) -> BaseException:
    """The first error inside groups; the gravest kind goes first."""
    inner = list(leaves(error))
    return next((each for each in inner if isinstance(each, IntegrityError | DeniedError)), inner[0])


def adjacent(releases: Sequence[ReleaseRef]) -> tuple[PairPlan, ...]:
    """Pairs of neighbours out of one distribution's releases, oldest first."""
    return tuple(PairPlan(before=one, after=two) for one, two in pairwise(releases))
