"""Plays one attempt of one episode: fork, policy, bundle. Trouble of ours is marked as such and never scored."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any

import anyio

from ropewalk.core.errors import IntegrityError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record, digest
from ropewalk.interface.episode import EpisodeRecord, Step
from ropewalk.interface.task import Task
from ropewalk.reward.bundle import Bundle
from ropewalk.rollout.episodes.changes import FileWatch
from ropewalk.rollout.episodes.clean import clean_text, storable
from ropewalk.rollout.episodes.context import Action, AgentContext, Answer, SearchContext, TaskView, TrustedContext
from ropewalk.rollout.episodes.host import EpisodeHost, ForkBench, SnapshotLostError, close, forked
from ropewalk.rollout.episodes.materials import Materials
from ropewalk.rollout.episodes.shelf import Shelf, scratch
from ropewalk.rollout.metering import Meter, add_usage, metered
from ropewalk.rollout.plan import Plan
from ropewalk.rollout.policies.contract import ContextKind, Policy, PolicyEnd, PolicyFailedError
from ropewalk.rollout.ports import EpisodeSandbox, RunWorld, memory_of
from ropewalk.rollout.rows import EpisodeRow
from ropewalk.sandbox.contract import SandboxGoneError

log = logging.getLogger(__name__)


_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN})
"""Errors of the operating system that nobody's code is to blame for, wherever they come up."""


class Trouble(Record):
    """Our side failed an attempt."""

    cause: str
    detail: str
    retriable: bool = True


class Played(Record):
    """What came of an attempt."""

    record: EpisodeRecord
    bundle: Bundle | None
    """None: the episode ended without one (its sandbox died)."""
    trouble: Trouble | None


class _PolicyCrashedError(Exception):
    """The policy's own code raised. Stays in here."""


class Attempt:
    """One attempt. Use once: `await Attempt(…).play()`."""

    def __init__(
        self, world: RunWorld, plan: Plan, task: Task, row: EpisodeRow, *, snapshot: str, policy: Policy[Any],
        materials: Materials, shelf: Shelf, on_step: Callable[[Step], None], meter: Meter,
    ) -> None:  # fmt: skip
        """`meter`: of this attempt alone."""
        self._meter = meter
        self._world = metered(world, meter)
        self._plan = plan
        self._task = task
        self._row = row
        self._snapshot = snapshot
        self._policy = policy
        self._materials = materials
        self._shelf = shelf
        self._on_step = on_step
        self._host: EpisodeHost | None = None
        self._bench: ForkBench | None = None
        self._bundle: Bundle | None = None
        self._memory: dict[str, float] = {}
        self._unrecorded: dict[str, int] = {}

    async def play(self) -> Played:
        """Plays it to its end.

        Raises:
            IntegrityError: stored bytes are damaged; stop the run.
            PolicyFailedError: what the policy needs fails for all episodes now; stop the run, to go on later.
        """
        started_s = self._world.clock.now_s()
        trouble: Trouble | None = None
        end = PolicyEnd()
        try:
            sandbox = await forked(self._world.sandboxes, self._snapshot)
            try:
                end = await self._act(sandbox)
            finally:
                await close(sandbox)
        except SandboxGoneError as error:
            end = PolicyEnd(termination=error.termination, detail=error.message)
            if error.termination.ours:
                trouble = Trouble(cause="sandbox_lost", detail=error.message)
        except PolicyFailedError as error:
            if error.for_all:
                raise
            trouble = Trouble(cause=error.cause, detail=error.message, retriable=error.retriable)
        except SnapshotLostError as error:
            trouble = Trouble(cause="snapshot_lost", detail=error.message, retriable=False)
        except UnavailableError as error:
            trouble = Trouble(cause="unavailable", detail=error.message)
        except IntegrityError:
            raise
        except _PolicyCrashedError as crashed:
            log.exception("policy %s crashed in %s", self._policy.name, self._row.id)
            trouble = Trouble(cause="policy_crashed", detail=_named(crashed.__cause__), retriable=False)
        except OSError as error:
            trouble = Trouble(cause="unavailable", detail=_named(error))
        except Exception as error:
            log.exception("the loop failed %s", self._row.id)
            trouble = Trouble(cause="internal_error", detail=_named(error), retriable=False)
        if trouble:
            self._bundle = None
            # A cap on the run's cost is somebody's decision, not a failure; neither is scored.
            ended = Termination.EVICTED if trouble.cause == "cost_cap" else Termination.INFRASTRUCTURE
            end = PolicyEnd(termination=ended, detail=trouble.detail)
        return self._result(end, trouble, started_s)

    async def _act(self, sandbox: EpisodeSandbox) -> PolicyEnd:
        plan, task = self._plan, self._task
        watch = FileWatch(task, self._world.blobs, await self._materials.digests(task))
        host = self._host = EpisodeHost(
            task,
            sandbox,
            watch,
            clock=self._world.clock,
            steps_max=plan.run.steps or task.limits.steps_max,
            keep=self._keep if plan.run.keep_failed else None,
            on_step=self._on_step,
        )
        timeout_s = plan.run.episode_timeout_s or task.limits.episode_timeout_s
        with anyio.move_on_after(timeout_s) as scope:
            if self._policy.context is ContextKind.AGENT:
                end = await self._run_agent(host)
            else:
                end = await self._run_search(host)
        if scope.cancelled_caught:
            end = PolicyEnd(
                termination=Termination.TIMEOUT, truncated=True, detail=f"the episode's {timeout_s:g} s are over"
            )
        self._bundle = await self._world.capture(sandbox, task, self._world.blobs)
        add_usage(self._memory, memory_of(await sandbox.stats()))
        return end

    async def _run_agent(self, host: EpisodeHost) -> PolicyEnd:
        """The policy at one end of the channel, its sandbox at the other. What breaks the sandbox's end breaks the
        episode, whatever the policy would make of it."""
        send, receive = anyio.create_memory_object_stream[tuple[Action, Answer]](0)
        context = AgentContext(
            TaskView.of(self._task), seed=self._row.seed, steps_max=host.steps_left, channel=send
        )  # fmt: skip
        self._unrecorded = context.tokens_unrecorded
        end: PolicyEnd | None = None
        failures: list[Exception] = []

        async def serve() -> None:
            try:
                await host.serve(receive)
            except Exception as error:
                failures.append(error)
                group.cancel_scope.cancel()

        async with send, receive, anyio.create_task_group() as group:
            group.start_soon(serve)
            try:
                end = await self._by_policy(context)
            except Exception as error:
                failures.append(error)
            group.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return end or PolicyEnd()

    async def _run_search(self, host: EpisodeHost) -> PolicyEnd:
        self._bench = ForkBench(
            host,
            self._world.sandboxes,
            snapshot=self._snapshot,
            save=self._scratch,
            forks_max=self._plan.policy.search.forks_max,
        )
        sources = await self._materials.sources(self._task)
        if self._policy.context is ContextKind.SEARCH:
            context = SearchContext(
                self._task,
                seed=self._row.seed,
                sources=sources,
                bench=self._bench,
                position=self._row.position,
                members=self._plan.run.group,
            )
            return await self._by_policy(context) or PolicyEnd()
        answer = await self._materials.answer(self._task)
        trusted = TrustedContext(
            self._task, seed=self._row.seed, sources=sources, bench=self._bench, answer=answer
        )  # fmt: skip
        return await self._by_policy(trusted) or PolicyEnd()

    async def _by_policy(self, context: AgentContext | SearchContext) -> PolicyEnd | None:
        """The policy's part, whose own mistakes are told apart from what our side or the machine did to it."""
        try:
            end: PolicyEnd | None = await self._policy.run(context)
            return end
        except (UnavailableError, IntegrityError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise
            raise _PolicyCrashedError from error

    async def _keep(self, sandbox: EpisodeSandbox, label: str) -> str:
        return (await self._shelf.take(sandbox, self._row.id, label)).id

    async def _scratch(self, sandbox: EpisodeSandbox, label: str) -> str:
        return (await self._shelf.take(sandbox, scratch(self._row.id), label, durable=False)).id

    def usage(self) -> dict[str, float]:
        """What it used so far: sandboxes, forks, tokens, also those that led to nothing."""
        usage = {"sandbox_s": 0.0, "forks": 0.0, **self._memory}
        for step in self._host.steps if self._host else ():
            add_usage(usage, {f"tokens_{kind}": float(count) for kind, count in step.tokens.items()})
        add_usage(usage, {f"tokens_{kind}": float(count) for kind, count in self._unrecorded.items() if count > 0})
        if self._bench:
            add_usage(usage, self._bench.usage)
        add_usage(usage, self._meter.usage)
        return usage

    def _result(self, end: PolicyEnd, trouble: Trouble | None, started_s: float) -> Played:
        steps = tuple(self._host.steps) if self._host else ()
        time_s: dict[str, float] = {}
        for step in steps:
            add_usage(time_s, step.time_s)
        record = EpisodeRecord(
            id=self._row.id,
            run=self._row.run,
            task=self._task.id,
            policy=self._policy.name,
            group=self._row.group_id,
            index=self._row.position,
            seed=self._row.seed,
            snapshot=self._snapshot,
            steps=steps,
            termination=end.termination,
            # A limit or our side ended it from outside, whoever tells of it: such an end is never the episode's own.
            truncated=end.truncated or end.termination is Termination.TIMEOUT or end.termination.ours,
            detail=clean_text(end.detail[:2000]),
            bundle=digest(self._bundle) if self._bundle else None,
            started_s=started_s,
            ended_s=self._world.clock.now_s(),
            time_s=time_s,
            usage=self.usage(),
        )
        return Played(record=storable(record), bundle=self._bundle, trouble=trouble)


def _named(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
