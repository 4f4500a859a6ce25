"""The Ropewalk object: everything below, wired from a profile, behind a few verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from ropewalk.app.building import Built, Sources, build_tasks, plan_build
from ropewalk.app.custody import Custody
from ropewalk.app.episodes import release_forgotten
from ropewalk.app.images import ImageWork
from ropewalk.app.machines import Machines, on_disk
from ropewalk.app.opening import Opening
from ropewalk.app.plan_checks import check_plan, check_policies, check_prices, check_sources
from ropewalk.app.runs import Run
from ropewalk.app.task_store import TaskStore
from ropewalk.core.errors import CallerError
from ropewalk.interface.task import Task
from ropewalk.lake.ingest import Terms
from ropewalk.lake.records import IngestResult
from ropewalk.machinery.profile import Profile
from ropewalk.provenance.trace import Trace
from ropewalk.provenance.verification import Verification
from ropewalk.provenance.verify import Anchors
from ropewalk.reward.grader import Grader
from ropewalk.reward.verdict import Reward
from ropewalk.rollout import events
from ropewalk.rollout.begin import begin_run, load_run
from ropewalk.rollout.marks import PURPOSE
from ropewalk.rollout.plan import Plan, PolicyName
from ropewalk.rollout.plan_file import load_plan, plan_from_settings
from ropewalk.rollout.policies.registry import make_policies
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.threads import in_thread
from ropewalk.sandbox.images import ImageRecord, ImageStore
from ropewalk.sandbox.sandbox import Sandbox
from ropewalk.sandbox.sandboxes import Sandboxes
from ropewalk.security.data_classes import Use, check_allowed
from ropewalk.security.marks import KeyedMarks
from ropewalk.tasks.reasons import why_nothing
from ropewalk.tasks.records import BuildEvent


class Ropewalk:
    """One state directory under one profile, in one event loop. Use `Ropewalk.open`."""

    def __init__(self, custody: Custody, machines: Machines, group: TaskGroup) -> None:
        self.custody = custody
        self.machines = machines
        self._image_work = ImageWork(machines)
        self._group = group
        self._world: RunWorld | None = None
        self._making = anyio.Lock()

    @classmethod
    def open(cls, profile: str | None = None, *, state: Path | None = None, driver: str = "") -> Opening[Ropewalk]:
        """Opens everything, and first removes what a killed process left behind.

        Leaving the block stops runs that still go on; they can be resumed.

        Args:
            profile: name or path; `$ROPEWALK_PROFILE`, else `embedded`.
            state: the state directory; `$ROPEWALK_STATE`, else below `~/.local/state`.
            driver: of sandboxes; replaces the profile's.

        Raises:
            CallerError: no such profile or driver.
            UnavailableError: the state directory cannot be used.
        """
        return Opening(cls._opened(profile, state, driver))

    @classmethod
    @asynccontextmanager
    async def _opened(cls, profile: str | None, state: Path | None, driver: str) -> AsyncIterator[Ropewalk]:
        with Custody.open(profile, state=state) as custody:
            machines = Machines(custody, driver=driver)
            try:
                await machines.sandboxes.reap()
                await release_forgotten(machines.sandboxes, custody)
                async with anyio.create_task_group() as group:
                    try:
                        yield cls(custody, machines, group)
                    finally:
                        group.cancel_scope.cancel()
            except BaseExceptionGroup as several:
                # Runs keep their errors to themselves, so what comes out here is what the block raised.
                if len(several.exceptions) == 1:
                    raise several.exceptions[0] from None
                raise
            finally:
                machines.close()

    @property
    def profile(self) -> Profile:
        """What was configured."""
        return self.custody.profile

    @property
    def sandboxes(self) -> Sandboxes:
        """The sandbox service: find, fork, list, destroy."""
        return self.machines.sandboxes

    @property
    def images(self) -> ImageStore:
        """What sandboxes start from."""
        return self.machines.images

    async def world(self) -> RunWorld:
        """All that a run touches; made at the first call. That tries the driver, opens journal and log and makes keys
        where there are none: seconds, in a thread.

        Raises:
            CallerError, IntegrityError, UnavailableError: keys, journal or log cannot be used.
        """
        async with self._making:
            if self._world is None:
                self._world = await in_thread(self._make_world)
        return self._world

    def _make_world(self) -> RunWorld:
        machines, custody = self.machines, self.custody
        _ = custody.journal
        return RunWorld(
            sandboxes=machines.sandboxes,
            blobs=custody.blobs,
            judge_on=lambda sandboxes: Grader(sandboxes, custody.blobs, tenant=custody.tenant),
            recorder=custody.recorder,
            marks=KeyedMarks(custody.keys, PURPOSE),
            fleet=machines.fleet,
            tenant=custody.tenant,
            disk_in_memory="disk_in_memory" in machines.declares,
        )

    @asynccontextmanager
    async def sandbox(self, image: str = "default", **spec: Any) -> AsyncIterator[Sandbox]:
        """A sandbox that ends with the block.

        Args:
            image: `default`, a name that was pulled or built (`debian:bookworm`), a digest, a root directory, or an
                archive; what it says of user, variables and working directory holds unless `spec` says otherwise.
            spec: fields of `SandboxSpec`, and `memory_mib` and `disk_mib`. With a driver that holds files in memory
                (`process` does) processes can use both together.

        Raises:
            CallerError, DeniedError, UnavailableError: as the driver's `create`.
        """
        async with await self.create_sandbox(image, **spec) as sandbox:
            yield sandbox

    async def create_sandbox(self, image: str = "default", *, id: str | None = None, **spec: Any) -> Sandbox:
        """Like `sandbox`, to be closed by the caller; with `lease=Lease.DETACHED` it outlives this process.

        Args:
            image: as of `sandbox`.
            id: makes the call idempotent: repeated with the same one and the same spec it gives the same sandbox.
            spec: as of `sandbox`.
        """
        path = on_disk(image)
        record = await self.import_image(path, data_class=spec.get("data_class")) if path else image
        return await self.sandboxes.create(await self.machines.spec(record, **spec), id=id)

    async def pull(self, name: str, **settings: Any) -> ImageRecord:
        """Fetches an image from a registry. See `ImageWork.pull`."""
        return await self._image_work.pull(name, **settings)

    async def import_image(self, path: Path | str, **settings: Any) -> ImageRecord:
        """An image out of an archive or a folder. See `ImageWork.import_file`."""
        return await self._image_work.import_file(Path(path), **settings)

    async def export_image(self, name: str, target: Path | str, **settings: Any) -> ImageRecord:
        """Writes an image to a file or folder. See `ImageWork.export`."""
        return await self._image_work.export(name, Path(target), **settings)

    async def build_image(self, context: Path | str, **settings: Any) -> ImageRecord:
        """Builds an image from a Dockerfile by buildah. See `ImageWork.build`."""
        return await self._image_work.build(Path(context), **settings)

    async def ingest(self, source: str, *, terms: Terms, versions: Sequence[str] = (), **settings: Any) -> IngestResult:
        """See `Custody.ingest`."""
        call = partial(self.custody.ingest, source, terms=terms, versions=versions, **settings)
        return await anyio.to_thread.run_sync(call)

    async def run(
        self,
        plan: Plan | Path | str,
        *,
        tasks: Sequence[Task] = (),
        run_id: str = "",
        observe: events.Observer = events.ignore,
    ) -> Run:
        """Starts a run and returns it while it goes on.

        Args:
            plan: a plan or the path of a TOML file.
            tasks: to run on; by default those that the plan names or builds.
            run_id: makes the call idempotent: repeated with the same plan it goes on where it was.
            observe: is told everything of note.

        Raises:
            CallerError: the plan or a task does not fit.
            DeniedError: the profile does not allow an endpoint or source of the plan, or a task's data class does not
                allow the endpoint or the driver.
        """
        made = plan_from_settings({}, base=plan) if isinstance(plan, Plan) else load_plan(Path(plan))
        check_policies(made, self.profile)
        check_prices(made)
        chosen = list(tasks) or await self.tasks_of(made)
        self._check_data(made, chosen)
        world = await self.world()
        run = await in_thread(begin_run, world, self.custody.journal, made, chosen, run=run_id)
        return self._start(world, run, made, observe)

    async def resume(self, run: str, *, observe: events.Observer = events.ignore) -> Run:
        """Goes on with a run that was interrupted, also by `kill -9`.

        Raises:
            CallerError: no such run.
            UnavailableError: another process works on it.
        """
        world = await self.world()
        plan, tasks, _ = await in_thread(load_run, world, self.custody.journal, run)
        check_policies(plan, self.profile)
        self._check_data(plan, tasks.values())
        return self._start(world, run, plan, observe)

    async def runs(self) -> tuple[Run, ...]:
        """All runs, newest first."""
        rows = await in_thread(lambda: self.custody.journal.runs())
        return tuple(Run(row.run, self.custody) for row in rows)

    async def open_run(self, run: str) -> Run:
        """A run by its id, to be read as far as it is; `resume` goes on with it.

        Raises:
            CallerError: no such run.
        """
        row = await in_thread(lambda: self.custody.journal.run(run))
        return Run(row.run, self.custody)

    async def trace(self, reward: Reward | str) -> Trace:
        """The whole chain behind a reward (or anything else by its name), signatures checked on the way."""
        name = reward if isinstance(reward, str) else reward.id
        return await anyio.to_thread.run_sync(self.custody.trace, name)

    async def verify(self, run: Run | str, *, anchors: Anchors | None = None) -> Verification:
        """Checks every signature, digest and the log behind a run. See `Custody.verify`."""
        id = run if isinstance(run, str) else run.id
        return await anyio.to_thread.run_sync(self.custody.verify_run, id, anchors or Anchors())

    async def build_tasks(
        self,
        plan: Plan,
        *,
        wheelhouse: Path | None = None,
        on_ingest: Callable[[str, IngestResult], None] | None = None,
        on_build: Callable[[BuildEvent], None] | None = None,
    ) -> Built:
        """Ingests the plan's sources and builds tasks from them. Repeated, it goes on where it stopped.

        Args:
            plan: its `source` and `tasks` say what.
            wheelhouse: folder of wheels for the requirements, instead of the plan's; then nothing is fetched.
            on_ingest: is told of each source that is in (from another thread).
            on_build: is told of progress.

        Raises:
            CallerError: a source or requirement does not fit.
            DeniedError: the profile does not allow a source.
        """
        custody = self.custody
        if wheelhouse is None and plan.source.wheelhouse:
            wheelhouse = Path(plan.source.wheelhouse)
        check_sources(plan.source, self.profile)
        ingest = partial(Sources(custody).ingest, plan.source, on_ingest or (lambda uri, result: None))
        gathered = await anyio.to_thread.run_sync(ingest)
        build = plan_build(gathered, plan.tasks, plan.source, tenant=custody.tenant)
        return await build_tasks(
            custody, self.machines, build, count=plan.tasks.count, wheelhouse=wheelhouse, tell=on_build
        )

    async def tasks_of(self, plan: Plan, **build: Any) -> list[Task]:
        """The tasks that a plan names, or else builds; `build` are further arguments of `build_tasks`.

        Raises:
            CallerError: an unknown id, or no task was admitted.
            DeniedError: the profile does not allow a source or an endpoint of the plan.
        """
        check_plan(plan, self.profile)
        if plan.tasks.ids:
            store = TaskStore(self.custody.layout)
            return [store.get(id).task for id in plan.tasks.ids]
        built = await self.build_tasks(plan, **build)
        if not built.tasks:
            message, next_step = why_nothing(built.report)
            raise CallerError(message, next_step=next_step)
        return [record.task for record in built.tasks]

    def _start(self, world: RunWorld, run: str, plan: Plan, observe: events.Observer) -> Run:
        started = Run(run, self.custody)
        started.start(self._group, world, make_policies(plan), observe)
        return started

    def _check_data(self, plan: Plan, tasks: Iterable[Task]) -> None:
        """What a run's tasks may meet: all drivers, and the endpoint that is told their prompts and files."""
        openai = plan.policy.openai if PolicyName.OPENAI in plan.run.policies else None
        for data_class in sorted({task.data_class for task in tasks}):
            self.machines.check_class(data_class)
            if openai is not None:
                check_allowed(data_class, Use.ENDPOINT, urlsplit(openai.base_url).hostname or "")
