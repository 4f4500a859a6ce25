"""A build's progress on disk, so that a killed build goes on: one file per finished source, and one per thing that was
tried in one, each whole or not there.

What came of one thing that was tried (a unit of a change, a mutation) does not hang on how many tasks are wanted, so a
build of another number of tasks finds it there. What a whole source gave does.

Tasks in it are signed as admitted, so it is believed only with a mark of this installation's (`security.marks`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio.to_thread
import msgspec

from ropewalk.core.errors import IntegrityError
from ropewalk.core.records import Record, canonical_bytes, content_id, decode_own, digest
from ropewalk.machinery.files import replace_whole
from ropewalk.security.marks import Marks
from ropewalk.tasks.records import BuildPlan, MutantPlan, PairPlan, Reason, Rejection, SourceYield, TaskRecord

JOURNAL_VERSION = 6
PURPOSE = "task builds"
"""Of the marks."""


class _Entry(Record):
    version: int
    step: str
    result: SourceYield
    mark: str = ""


class BuildJournal:
    """Results of one build plan below `folder`, by what was asked for; things that were tried, of all plans that differ
    in numbers of tasks alone."""

    def __init__(
        self, folder: Path, plan: BuildPlan, *, image: str, marks: Marks, wheels: tuple[str, ...] = ()
    ) -> None:
        self._marks = marks
        self._plan = digest(plan)
        alike = msgspec.structs.replace(
            plan, pairs=(), mutants=(), tasks_max=0, mutant_share_max=0.0, control_only=False
        )
        self.id = content_id("build", [JOURNAL_VERSION, image, wheels, alike])
        self._folder = folder / "builds" / self.id.partition(":")[2]

    def load(self, step: object) -> SourceYield | None:
        """The result of a step that was finished before; None where it was not, or its file is damaged or not ours."""
        path = self._path(step)
        if not path.exists():
            return None
        try:
            entry = decode_own(path.read_bytes(), _Entry, what=path.name)
        except IntegrityError:
            return None  # it can be made again, and everything in it is verified by digest elsewhere
        known = entry.step == self._name(step) and entry.version == JOURNAL_VERSION
        return entry.result if known and self._marks.fits(entry.mark, "build", self._facts(entry)) else None

    def store(self, step: object, result: SourceYield) -> None:
        """Keeps a finished step's result, durably."""
        entry = _Entry(version=JOURNAL_VERSION, step=self._name(step), result=result)
        entry = msgspec.structs.replace(entry, mark=self._marks.make("build", self._facts(entry)))
        replace_whole(self._path(step), canonical_bytes(entry), parents=True)

    def _facts(self, entry: _Entry) -> list[str]:
        return [self.id, entry.step, digest(entry.result)]

    def _path(self, step: object) -> Path:
        if isinstance(step, _Attempt):
            return self._folder / digest(step.step) / f"{digest(step.tried)}.json"
        return self._folder / f"{self._name(step)}.json"

    def _name(self, step: object) -> str:
        return digest(step) if isinstance(step, _Attempt) else digest([self._plan, step])


class _Attempt(Record):
    """One thing that was tried, as a step of its own."""

    step: PairPlan | MutantPlan
    """Without numbers of tasks."""
    tried: list[str]


class Attempts:
    """What came of each thing that was tried in one source: tasks and rejections, durably."""

    def __init__(self, journal: BuildJournal, step: PairPlan | MutantPlan) -> None:
        self._journal = journal
        if isinstance(step, PairPlan):
            self._step: PairPlan | MutantPlan = msgspec.structs.replace(step, tasks_max=0)
        else:
            self._step = msgspec.structs.replace(step, count=0, attempts_max=0)

    async def once(self, make: Callable[[], Awaitable[TaskRecord | Rejection]], *tried: str) -> TaskRecord | Rejection:
        """What came of it before, or else what is made of it now, which is kept."""
        outcome = await self.load(*tried)
        if outcome is None:
            outcome = await make()
            await self.store(outcome, *tried)
        return outcome

    async def load(self, *tried: str) -> TaskRecord | Rejection | None:
        """What came of it before; None where it was not tried, or was not brought to its end."""
        result = await anyio.to_thread.run_sync(self._journal.load, _Attempt(step=self._step, tried=[*tried]))
        if result is None:
            return None
        return result.tasks[0] if result.tasks else result.rejections[0]

    async def store(self, outcome: TaskRecord | Rejection, *tried: str) -> None:
        """Keeps what came of it; what failed on our side is tried again."""
        if isinstance(outcome, Rejection) and outcome.reason is Reason.INFRASTRUCTURE:
            return
        result = SourceYield(
            name=self._step.name, kind=self._step.kind, distribution=self._step.distribution,
            tasks=(outcome,) if isinstance(outcome, TaskRecord) else (),
            rejections=(outcome,) if isinstance(outcome, Rejection) else (),
        )  # fmt: skip
        attempt = _Attempt(step=self._step, tried=[*tried])
        await anyio.to_thread.run_sync(self._journal.store, attempt, result)
