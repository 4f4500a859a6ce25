"""A task: a problem, the world it starts in, what may be handed in, and who judges it.

A task never holds its own answer: neither the fixed source nor the held-out tests are in its layers. The answer
(`oracle`) and the hidden data (behind `grader`) are addressed by digest and read by trusted parts alone.
"""

from __future__ import annotations

from enum import StrEnum

from ropewalk.core import limits
from ropewalk.core.records import Record, content_id


class TaskKind(StrEnum):
    """Where the problem comes from."""

    RELEASE = "release"
    """A real change: the older release's source, the newer release's tests."""
    MUTANT = "mutant"
    """A labelled control: one mutation of a function that the tests reach."""


class TaskLimits(Record):
    """Of one episode."""

    steps_max: int = 8
    episode_timeout_s: float = 600.0
    test_timeout_s: float = 30.0
    """One run of the visible tests: at least four times what it takes on right source."""
    memory_bytes: int = limits.SANDBOX_MEMORY_BYTES


class TaskOrigin(Record):
    """What the task was made from; every digest leads back to the raw zone."""

    commit: str
    """The lake commit that holds the sources."""
    distribution: str
    version_before: str
    """The release whose source the task holds (for a mutant: the only release)."""
    version_after: str
    """The release that the tests come from."""
    raw: tuple[str, ...]
    """sha256 of the source archives used."""
    licence: str
    """SPDX expression, as recorded at ingest."""
    operator: str = ""
    """For a mutant, the mutation operator's name."""


class Task(Record):
    """See the module's text."""

    name: str
    """For people: `more-itertools 9.1.0→10.0.0 TestChunked`."""
    kind: TaskKind
    prompt: str
    image: str
    """Digest of the image (`SandboxSpec.image`)."""
    layers: tuple[str, ...]
    """Layers above it: wheels, the source as it is before, the visible tests."""
    workdir: str
    """Where the source lies: `/work`."""
    visible_tests: tuple[str, ...]
    """Pytest node ids, relative to `workdir`, that the policy may run."""
    visible_killers: tuple[str, ...]
    """Those of them that fail before the fix and pass after it."""
    test_command: tuple[str, ...]
    """Runs the visible tests in the sandbox: arguments, then node ids are appended."""
    editable: tuple[str, ...]
    """Globs, relative to `workdir`, of the files that may be handed in: the declared artefact."""
    source: str
    """Digest of the `FileSet` of all editable files as they are before: what a bundle is compared with."""
    grader: str
    """Digest of the grader's spec in the blob store."""
    oracle: str
    """Digest of the fixed files in the blob store (`FileSet`). Trusted parts only."""
    origin: TaskOrigin
    data_class: str = "public"
    limits: TaskLimits = TaskLimits()

    @property
    def id(self) -> str:
        """`task:` and the first 32 characters of its digest."""
        return content_id("task", self)


class FileSet(Record):
    """Files by path relative to a task's workdir; stored as a record in the blob store."""

    files: dict[str, str]
    """Path → digest of the content in the blob store."""
    deleted: tuple[str, ...] = ()
