"""Whether the evidence behind a run's verdicts is there and whole: what was handed in, and what it was judged by.

Statements link a bundle and a grader by the digests of their records. What these records point to (files, hidden
tests, expected values) is what somebody needs who judges again, and is followed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.limits import ARCHIVE_BYTES_MAX, JSON_BYTES_MAX
from ropewalk.core.records import Record, decode_own
from ropewalk.interface.task import FileSet, Task
from ropewalk.provenance.verification import VerificationFinding
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.spec import GraderSpec
from ropewalk.rollout.loaded import LoadedRun
from ropewalk.store.contract import Blobs

R = TypeVar("R", bound=Record)


class Evidence:
    """Follows digests; each is looked at once."""

    def __init__(self, blobs: Blobs) -> None:
        self.findings: list[VerificationFinding] = []
        self._blobs = blobs
        self._seen: set[str] = set()

    @property
    def count(self) -> int:
        """Stored things that were compared with their digests."""
        return len(self._seen)

    def follow(self, run: LoadedRun) -> None:
        """A run's tasks with their graders and answers, and its episodes with what they handed in and kept."""
        for task in run.tasks.values():
            self._task(task)
        for result in run.episodes:
            if record := result.record:
                name = f"bundle of {record.id}"
                if record.bundle and (bundle := self._record(record.bundle, Bundle, name)):
                    self._files(bundle.files.values(), f"{name}: a file")
                changed = {digest for step in record.steps for digest in step.files_changed.values() if digest}
                self._files(sorted(changed), f"{record.id}: a file of a step")

    def _task(self, task: Task) -> None:
        for what, digest in (("source", task.source), ("answer", task.oracle)):
            self._file_set(digest, f"{what} of {task.id}")
        grader = self._record(task.grader, GraderSpec, f"grader of {task.id}")
        if grader is not None:
            self._file_set(grader.hidden, f"held-out tests of {task.id}")
            self._file_set(grader.probe, f"probe of {task.id}")
            self._files([grader.expected], f"expected values of {task.id}")

    def _file_set(self, digest: str, name: str) -> None:
        if found := self._record(digest, FileSet, name):
            self._files(found.files.values(), f"{name}: a file")

    def _record(self, digest: str, kind: type[R], name: str) -> R | None:
        if digest in self._seen:
            return None
        data = next(self._read([digest], name, bytes_max=JSON_BYTES_MAX), None)
        try:
            return None if data is None else decode_own(data, kind)
        except IntegrityError as error:
            self.findings.append(
                VerificationFinding(code="blob_damaged", message=f"{name}: {error.message}", name=name)
            )
            return None

    def _files(self, digests: Iterable[str], name: str) -> None:
        for _ in self._read(digests, name, bytes_max=ARCHIVE_BYTES_MAX):
            pass

    def _read(self, digests: Iterable[str], name: str, *, bytes_max: int) -> Iterator[bytes]:
        for digest in digests:
            if digest in self._seen:
                continue
            self._seen.add(digest)
            try:
                yield self._blobs.get(digest, bytes_max=bytes_max)
            except IntegrityError as error:
                self.findings.append(
                    VerificationFinding(code="blob_damaged", message=f"{name}: {error.message}", name=name)
                )
            except CallerError as error:
                self.findings.append(
                    VerificationFinding(code="blob_missing", message=f"{name}: {error.message}", name=name)
                )
