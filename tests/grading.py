"""A small world for tests of grading: real sandboxes, a blob store, and tasks made of a few lines of source."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from ropewalk.core.records import canonical_bytes
from ropewalk.interface.task import FileSet, Task, TaskKind, TaskOrigin
from ropewalk.reward.build import GraderBuild, GraderDraft, build_values_grader
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.grader import Grader
from ropewalk.reward.spec import GraderLimits
from ropewalk.sandbox.contract import SandboxSpec
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.sandbox.images import ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.sandbox import Sandbox
from ropewalk.sandbox.sandboxes import Sandboxes
from ropewalk.store.blobs import open_blobs
from ropewalk.store.contract import Blobs
from ropewalk.store.layout import Layout
from tests.shared_image import lend_default_image

TENANT = "tests"
LIMITS = GraderLimits(cpu_s=1.5, wall_s=8.0, attempts_max=3)


@dataclass(frozen=True)
class GradedProblem:
    """What a task is made of. Paths are relative to the workdir."""

    name: str
    before: Mapping[str, str | bytes]
    after: Mapping[str, str]
    """Files that the fix changes."""
    tests: Mapping[str, str | bytes]
    held_out: tuple[str, ...]
    """Node ids."""
    editable: tuple[str, ...] = ("**/*.py",)
    limits: GraderLimits = LIMITS


@dataclass
class GradingWorld:
    """Stores and sandboxes of one test."""

    root: Path
    sandboxes: Sandboxes
    blobs: Blobs
    layers: LayerStore
    image: str

    @property
    def grader(self) -> Grader:
        return Grader(self.sandboxes, self.blobs, tenant=TENANT)

    def put(self, files: Mapping[str, str | bytes], deleted: tuple[str, ...] = ()) -> str:
        """Stores files; the digest of their `FileSet`."""
        digests = {path: self.blobs.put(_bytes(content)) for path, content in files.items()}
        return self.blobs.put(canonical_bytes(FileSet(files=digests, deleted=deleted)))

    async def build(self, problem: GradedProblem) -> tuple[Task, GraderBuild]:
        """A grader, and the task around it; where the grader was refused, the task names none."""
        layer = await anyio.to_thread.run_sync(
            self.layers.add_files, {f"work/{path}": _bytes(text) for path, text in problem.before.items()}
        )
        oracle = self.put(problem.after)
        draft = GraderDraft(
            name=problem.name,
            tenant=TENANT,
            image=self.image,
            layers=(layer.digest,),
            editable=problem.editable,
            oracle=oracle,
            tests=problem.held_out,
            limits=problem.limits,
        )
        files = {path: _bytes(text) for path, text in problem.tests.items()}
        built = await build_values_grader(self.sandboxes, self.blobs, draft, test_files=files, visible_files={})
        task = Task(
            name=problem.name,
            kind=TaskKind.MUTANT,
            prompt="Make the tests pass.",
            image=self.image,
            layers=(layer.digest,),
            workdir="/work",
            visible_tests=(),
            visible_killers=(),
            test_command=("python3", "-m", "pytest"),
            editable=problem.editable,
            source=self.put(problem.before),
            grader=built.digest,
            oracle=oracle,
            origin=TaskOrigin(
                commit="commit:0",
                distribution=problem.name,
                version_before="1",
                version_after="2",
                raw=(),
                licence="MIT",
            ),
        )
        return task, built

    async def sandbox(self, task: Task) -> Sandbox:
        """A sandbox as an episode of the task would start in."""
        return await self.sandboxes.create(
            SandboxSpec(tenant=TENANT, image=task.image, layers=task.layers, workdir=task.workdir)
        )

    def bundle(self, task: Task, files: Mapping[str, str | bytes], deleted: tuple[str, ...] = ()) -> Bundle:
        """A bundle of these files, as if captured."""
        digests = {path: self.blobs.put(_bytes(content)) for path, content in files.items()}
        return Bundle(task=task.id, base=task.source, files=digests, deleted=deleted)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


@asynccontextmanager
async def grading_world(root: Path) -> AsyncIterator[GradingWorld]:
    """A world below `root`, which several processes may share; the default image is lent to it.

    Raises:
        DeniedError, UnavailableError: this machine makes no sandboxes.
    """
    layout = Layout(root).ensure()
    layers = LayerStore(layout)
    images = ImageStore(layout, layers)
    image = await anyio.to_thread.run_sync(lend_default_image, layout)
    driver = ProcessDriver(layout, layers=layers, images=images)
    try:
        yield GradingWorld(
            root=root,
            sandboxes=Sandboxes(driver, layout, images=images, layers=layers),
            blobs=open_blobs(layout.blobs),
            layers=layers,
            image=image.digest,
        )
    finally:
        await anyio.to_thread.run_sync(driver.close)
