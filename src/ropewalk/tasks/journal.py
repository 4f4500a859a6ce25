"""A build's progress on disk: one file per finished source, whole or not there, so that a killed build goes on.

Tasks in it are signed as admitted, so it is believed only with a mark of this installation's (`security.marks`).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ropewalk.core.errors import IntegrityError
from ropewalk.core.records import Record, canonical_bytes, content_id, decode_own, digest
from ropewalk.machinery.files import replace_whole
from ropewalk.security.marks import Marks
from ropewalk.tasks.records import BuildPlan, SourceYield

JOURNAL_VERSION = 3
PURPOSE = "task builds"
"""Of the marks."""


class _Entry(Record):
    version: int
    step: str
    result: SourceYield
    mark: str = ""


class BuildJournal:
    """Results of one build plan below `folder`, by what was asked for."""

    def __init__(
        self, folder: Path, plan: BuildPlan, *, image: str, marks: Marks, wheels: tuple[str, ...] = ()
    ) -> None:
        self._marks = marks
        self.id = content_id("build", [JOURNAL_VERSION, image, wheels, plan])
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
        known = entry.step == digest(step) and entry.version == JOURNAL_VERSION
        return entry.result if known and self._marks.fits(entry.mark, "build", self._facts(entry)) else None

    def store(self, step: object, result: SourceYield) -> None:
        """Keeps a finished step's result, durably."""
        entry = _Entry(version=JOURNAL_VERSION, step=digest(step), result=result)
        entry = msgspec.structs.replace(entry, mark=self._marks.make("build", self._facts(entry)))
        replace_whole(self._path(step), canonical_bytes(entry), parents=True)

    def _facts(self, entry: _Entry) -> list[str]:
        return [self.id, entry.step, digest(entry.result)]

    def _path(self, step: object) -> Path:
        return self._folder / f"{digest(step)}.json"
