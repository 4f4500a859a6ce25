"""Runs a package's tests in fresh sandboxes, and remembers what must not be run twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import IntegrityError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import canonical_bytes, decode_own, digest, digest_bytes
from ropewalk.reward.ports import GradingSandboxes
from ropewalk.reward.suite import SuitePlan, SuiteRecord, SuiteRunner, probe_files
from ropewalk.sandbox.contract import SandboxSpec
from ropewalk.security.marks import Marks
from ropewalk.store.contract import Blobs
from ropewalk.tasks.changes import ChangedLines, for_probe
from ropewalk.tasks.kept import Kept
from ropewalk.tasks.pytest_settings import options
from ropewalk.tasks.requirements import BuildLayers
from ropewalk.tasks.tree import SourceTree
from ropewalk.tasks.worlds import WORKDIR, import_paths, layer_files_of_tests

BASELINE_TIMEOUT_S: Final = 180.0
"""One whole suite on the source it belongs to."""
_BASELINE_VERSION: Final = 3
_STARVED_MAX: Final = 3
_LIMIT_S: Final = 6.0
_TEST_S: Final = 0.05
LINE_PROBE: Final = Path(__file__).with_name("line_probe.py")
"""Lies beside the probe of suites where lines are noted."""


def limit_s(baseline_s: float) -> float:
    """How long tests may take that took `baseline_s` on right source: five times that and one second.

    Of CPU time, so that a busy machine makes nothing hang. See `wall_s` for what waits without end.
    """
    return 5.0 * baseline_s + 1.0


def settled_limit_s(baseline_s: float) -> float:
    """A limit for tests that took `baseline_s` on right source, as it is written down: at least four times that.

    Its steps are far apart: no two measurements are the same, and a task is the same task whenever it is built.
    """
    return _in_steps(_LIMIT_S, 4.0 * (baseline_s + 0.5))


def settled_s(seconds: float) -> float:
    """About how long a test takes, in steps that are far apart, for choices that must not hang on one measurement."""
    return _in_steps(_TEST_S, seconds)


def _in_steps(first: float, least: float) -> float:
    while first < least:
        first *= 4.0
    return first


def wall_s(cpu_s: float) -> float:
    """Wall time for tests that may use so much CPU time."""
    return 3.0 * cpu_s + 20.0


@dataclass(frozen=True)
class BuildWorld:
    """What all sandboxes of one build share.

    Attributes:
        image: digest of the image.
        image_layers: of that image.
        wheels: layers of requirements.
        plugins: pytest plugins by module name.
        settings: of pytest (`pytest_settings`).
    """

    tenant: str
    image: str
    image_layers: tuple[str, ...]
    wheels: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def import_paths(self, tree: SourceTree) -> tuple[str, ...]:
        """Folders, relative to the workdir, where imports start."""
        return import_paths(tree, self.settings)

    def files_of_tests(self, tests: Mapping[str, bytes], tree: SourceTree) -> dict[str, bytes]:
        """Test files and pytest's configuration as files of a layer."""
        paths = self.import_paths(tree)
        return layer_files_of_tests(tests, import_paths=paths, plugins=self.plugins, settings=self.settings)


SLOT_SANDBOXES: Final = 2
"""At once: a right and a wrong source, or a grading and its control."""

Room = Callable[[], AbstractAsyncContextManager[object]]
"""Room for the sandboxes of one slot, held while the block runs."""


@dataclass
class Bench:
    """Runs suites, at most `parallel` at a time."""

    sandboxes: GradingSandboxes
    blobs: Blobs
    layers: BuildLayers
    world: BuildWorld
    folder: Path
    """Where baselines are kept."""
    marks: Marks
    """Of baselines."""
    clock: Clock = field(default_factory=SystemClock)
    parallel: int = 2
    room: Room = nullcontext
    runner: SuiteRunner = field(default_factory=SuiteRunner)

    def __post_init__(self) -> None:
        self._slots = anyio.Semaphore(self.parallel)
        self._stored: dict[str, str] = {}
        self._kept = Kept(self.folder / "baselines", self.marks, "baseline")

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Held by whoever keeps a core busy, and has `SLOT_SANDBOXES` at most."""
        async with self._slots, self.room():
            yield

    async def layer(self, files: Mapping[str, bytes]) -> str:
        """Digest of a layer of these files, stored once."""
        key = digest({path: digest_bytes(content) for path, content in files.items()})
        if key not in self._stored:
            record = await anyio.to_thread.run_sync(self.layers.add_files, files)
            self._stored[key] = record.digest
        return self._stored[key]

    async def run(
        self,
        tree: SourceTree,
        source: str,
        tests: Mapping[str, bytes],
        plan: SuitePlan,
        *,
        data_class: str,
        lines: ChangedLines | None = None,
    ) -> SuiteRecord:
        """Runs tests on a source in a sandbox of its own.

        Args:
            tree: says where imports start.
            source: digest of the source's layer.
            tests: test files, relative to the workdir.
            plan: which tests; `timeout_s` is their CPU time; import paths, plugins and settings are filled in here.
            data_class: of the source and the tests, the more restricted one.
            lines: note which of these each test executes (`line_probe`): a value of the point `line_probe.POINT`.

        Raises:
            SandboxGoneError, UnavailableError: our side failed, or had no time for the tests again and again.
        """
        layer = await self.layer(self.world.files_of_tests(tests, tree))
        spec = SandboxSpec(
            tenant=self.world.tenant,
            image=self.world.image,
            layers=(*self.world.wheels, source, layer),
            workdir=WORKDIR,
            data_class=data_class,
        )
        whole = SuitePlan(
            workdir=WORKDIR, files=plan.files, tests=plan.tests, import_paths=self.world.import_paths(tree),
            plugins=(*self.world.plugins, *([LINE_PROBE.stem] if lines else ())),
            ini={**options(self.world.settings), **plan.ini}, timeout_s=wall_s(plan.timeout_s),
            cpu_s=max(1.0, plan.timeout_s), reach=plan.reach, hash_seed=plan.hash_seed,
            output_bytes_max=plan.output_bytes_max,
        )  # fmt: skip
        for _ in range(_STARVED_MAX):
            async with self.slot():
                record, starved = await self._run_once(spec, whole, lines)
            if not starved:
                return record
        raise UnavailableError(
            f"Tests of {tree.distribution} {tree.version} got too little CPU time, {_STARVED_MAX} times in a row.",
            retry_after_s=60.0,
            next_step="try again when this machine is less busy.",
        )

    async def _run_once(
        self, spec: SandboxSpec, plan: SuitePlan, lines: ChangedLines | None
    ) -> tuple[SuiteRecord, bool]:
        """What came of one run, and whether its time was up because the machine did not let it work."""
        box = await self.sandboxes.create(spec)
        try:
            probe = {**probe_files(look=plan.look), **line_files(lines)} if lines else None
            record = await self.runner.run(box, plan, probe=probe)
            if record.termination is not Termination.TIMEOUT or record.cpu_s >= plan.cpu_s:
                return record, False
            stats = await box.stats()
            busy_s = max(record.cpu_s, stats.cpu_s or 0.0) + (stats.cpu_wait_s or 0.0)
            return record, busy_s >= record.duration_s / 2
        finally:
            with anyio.CancelScope(shield=True):
                await box.close()

    async def baseline(
        self,
        tree: SourceTree,
        source: str,
        tests: Mapping[str, bytes],
        plan: SuitePlan,
        *,
        data_class: str,
        lines: ChangedLines | None = None,
        repeat: int = 0,
    ) -> SuiteRecord:
        """Like `run`, remembered by content: the same source, tests, image, plan and `repeat` are run once."""
        named = {path: digest_bytes(content) for path, content in tests.items()}
        watched = for_probe(lines or {})
        world = self.world
        given = [world.image, world.wheels, world.plugins, world.settings]
        key = digest([_BASELINE_VERSION, given, source, named, plan, watched, repeat])
        if (kept := self._kept.load(key)) is not None:
            with suppress(IntegrityError):  # of another version: it can be made again
                return decode_own(kept, SuiteRecord)
        record = await self.run(tree, source, tests, plan, data_class=data_class, lines=lines)
        if record.complete:
            self._kept.store(key, canonical_bytes(record))
        return record


def line_files(lines: ChangedLines) -> dict[str, bytes]:
    """What notes lines in a sandbox: the program and what it looks for."""
    wanted = json.dumps(for_probe(lines)).encode()
    return {LINE_PROBE.name: LINE_PROBE.read_bytes(), f"{LINE_PROBE.stem}.json": wanted}


Tell = Callable[[str, str], None]
"""Progress: stage and detail."""
