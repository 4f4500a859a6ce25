"""The judge: a fresh sandbox, the bundle, tests without expected values, and a comparison outside."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from ropewalk.core import limits
from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError, IntegrityError, RopewalkError, UnavailableError, leaves
from ropewalk.core.outcomes import Termination
from ropewalk.core.paths import is_plain_path
from ropewalk.core.records import Record, canonical_bytes
from ropewalk.interface.task import FileSet, Task
from ropewalk.reward.build import suite_plan
from ropewalk.reward.bundle import Bundle, apply, shown, write_files
from ropewalk.reward.globs import matches_any
from ropewalk.reward.judge import Judgement, judge
from ropewalk.reward.ports import GradingSandbox, GradingSandboxes
from ropewalk.reward.spec import GraderLimits, GraderSpec
from ropewalk.reward.suite import SuiteRecord, SuiteRunner
from ropewalk.reward.values.expected import ExpectedRecord
from ropewalk.reward.verdict import Verdict, VerdictStatus
from ropewalk.sandbox.contract import SandboxGoneError, SandboxSpec, SandboxStats
from ropewalk.sandbox.files import FileError
from ropewalk.store.contract import Blobs
from ropewalk.store.records import read_record

_CLOSE_TIMEOUT_S = 10.0
_PROCESSES_MAX = 64
_PATIENCE = 4.0
R = TypeVar("R", bound=Record)


class Controls(Record):
    """Whether a task's grader tells right from wrong."""

    admitted: bool
    reason: str
    """`ok`, `noop_passes`, `oracle_fails`, `infra_error`, `task_invalid`."""
    verdicts: tuple[Verdict, ...]
    """The no-op's, then the oracle's."""


@dataclass(frozen=True)
class _Hidden:
    """What a spec points to."""

    spec: GraderSpec
    tests: FileSet
    expected: ExpectedRecord
    probe: dict[str, bytes]


@dataclass(frozen=True)
class _Run:
    """What is graded with what."""

    hidden: _Hidden
    bundle: Bundle | None
    data_class: str


_UNDECIDED: Final = frozenset({"starved", "unanswered"})
"""Causes that are the candidate's doing or the machine's; a control beside it tells which."""
_CAUSES_OF_LOSS: Final = {
    Termination.OUT_OF_MEMORY: "candidate_out_of_memory",
    Termination.TIMEOUT: "candidate_timeout",
    Termination.DISK_FULL: "candidate_disk_full",
}


class _Unfit(Exception):
    """A bundle beside which the grading's own files cannot be written."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


@dataclass
class _Usage:
    attempts: int = 0
    duration_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes_peak: int = 0

    def add(self, record: SuiteRecord, stats: SandboxStats | None) -> None:
        """One run of the tests."""
        self.cpu_s += max(record.cpu_s, (stats.cpu_s or 0.0) if stats else 0.0)
        self.memory_bytes_peak = max(self.memory_bytes_peak, (stats.memory_bytes_peak or 0) if stats else 0)


@dataclass(frozen=True)
class _Attempt:
    judgement: Judgement
    record: SuiteRecord | None = None


class Grader:
    """Grades bundles. Stateless between gradings; safe to use from many tasks at once."""

    def __init__(self, sandboxes: GradingSandboxes, blobs: Blobs, *, tenant: str, clock: Clock | None = None) -> None:
        self._sandboxes = sandboxes
        self._blobs = blobs
        self._tenant = tenant
        self._clock = clock or SystemClock()
        self._runner = SuiteRunner()

    async def grade(self, task: Task, *, episode: str, bundle: Bundle | None, nonce: str = "") -> Verdict:
        """The verdict on one bundle.

        One that changes nothing is scored 0 (`no_change`) without being run: that the untouched source earns nothing
        was shown, in a sandbox, when the task was admitted.

        Args:
            task: The task that the episode worked on.
            episode: Its id.
            bundle: What it handed in; None where it ended without one (scored 0, `no_bundle`).
            nonce: 32 hexadecimal characters; drawn here if empty.

        Raises:
            CallerError: the bundle is another task's.
            IntegrityError: the spec, hidden or expected data do not match their digests.
        """
        return await self._grade(task, episode, bundle, nonce=nonce, runs_unchanged=False)

    async def _grade(
        self, task: Task, episode: str, bundle: Bundle | None, *, nonce: str = "", runs_unchanged: bool
    ) -> Verdict:
        began_s = self._clock.monotonic_s()
        usage = _Usage()
        status, hidden = VerdictStatus.SCORED, None
        if bundle is not None and (bundle.task != task.id or bundle.base != task.source):
            raise CallerError(f"{bundle.id} belongs to {bundle.task}, not to {task.id}.")
        try:
            hidden = await anyio.to_thread.run_sync(self._load, task.grader)
        except CallerError as error:
            status, judgement = VerdictStatus.TASK_INVALID, Judgement(None, "grader_missing", error.message)
        if hidden is not None:
            judgement = self._without_running(hidden, bundle, runs_unchanged) or await self._attempts(
                _Run(hidden, bundle, task.data_class), usage
            )
            if judgement.score is None:
                status = VerdictStatus.INFRA_ERROR
        usage.duration_s = self._clock.monotonic_s() - began_s
        return Verdict(
            episode=episode,
            task=task.id,
            grader=task.grader,
            bundle=bundle.digest if bundle else None,
            status=status,
            score=judgement.score,
            cause=judgement.cause,
            detail=shown(judgement.detail),
            outcomes=judgement.outcomes,
            level=hidden.spec.level if hidden else "H3",
            nonce=nonce or secrets.token_hex(16),
            termination=judgement.termination,
            limits=_limits(hidden.spec) if hidden else {},
            usage={
                "duration_s": round(usage.duration_s, 6),
                "cpu_s": round(usage.cpu_s, 6),
                "memory_bytes_peak": float(usage.memory_bytes_peak),
                "attempts": float(usage.attempts),
            },
        )

    async def admit_controls(self, task: Task, *, repeats: int = 3) -> Controls:
        """No-op must score 0 and the oracle 1, `repeats` times.

        Raises:
            CallerError, IntegrityError: the oracle is missing or damaged.
        """
        noop = Bundle(task=task.id, base=task.source)
        verdicts = [await self._grade(task, "control:noop", noop, runs_unchanged=True)]
        fixed = await anyio.to_thread.run_sync(self._get, task.oracle, FileSet)
        oracle = Bundle(task=task.id, base=task.source, files=fixed.files, deleted=fixed.deleted)
        await anyio.to_thread.run_sync(lambda: self._blobs.put(canonical_bytes(oracle)))
        if verdicts[0].score == 0.0:
            for _ in range(repeats):
                verdicts.append(await self.grade(task, episode="control:oracle", bundle=oracle))
                if verdicts[-1].score != 1.0:
                    break
        reason = _controls_reason(verdicts)
        return Controls(admitted=reason == "ok", reason=reason, verdicts=tuple(verdicts))

    def _get(self, digest: str, kind: type[R]) -> R:
        return read_record(self._blobs, digest, kind)

    def _load(self, digest: str) -> _Hidden:
        spec = self._get(digest, GraderSpec)
        probe = {
            name: self._blobs.get(blob, bytes_max=limits.FILE_BYTES_MAX)
            for name, blob in self._get(spec.probe, FileSet).files.items()
        }
        return _Hidden(
            spec=spec,
            tests=self._get(spec.hidden, FileSet),
            expected=self._get(spec.expected, ExpectedRecord),
            probe=probe,
        )

    def _without_running(self, hidden: _Hidden, bundle: Bundle | None, runs_unchanged: bool) -> Judgement | None:
        """What is clear before any code runs."""
        if bundle is None:
            return Judgement(0.0, "no_bundle", "the episode handed nothing in")
        if bundle.refused:
            return Judgement(0.0, "bundle_refused", f"{bundle.refused}: {bundle.detail}")
        if not (bundle.files or bundle.deleted or runs_unchanged):
            return Judgement(0.0, "no_change", "no file was changed")
        strange = [path for path in (*bundle.files, *bundle.deleted) if not _may_hand_in(path, hidden.spec)]
        if strange:
            return Judgement(0.0, "bundle_refused", f"{ascii(strange[0])[:200]} may not be handed in")
        barred = [path for path in bundle.files if _in_the_way(path, hidden.tests.files)]
        if barred:
            return Judgement(0.0, "bundle_refused", f"{ascii(barred[0])[:200]} stands in the way of a test")
        return None

    async def _attempts(self, run: _Run, usage: _Usage) -> Judgement:
        """Until one attempt blames somebody other than the machine, or there were enough of them."""
        judgement = Judgement(None, "infra_error")
        for _ in range(run.hidden.spec.limits.attempts_max):
            usage.attempts += 1
            attempt = self._beside_control if judgement.cause in _UNDECIDED else self._attempt
            judgement = (await attempt(run, usage)).judgement
            if judgement.score is not None:
                break
        return judgement

    async def _beside_control(self, run: _Run, usage: _Usage) -> _Attempt:
        """Once more and with more time, with the untouched source graded beside it.

        More wall time lets the CPU limit decide, also where the machine is busy.
        A candidate can make its own processes wait for each other and so look starved, and it might keep the agent
        from answering. The machine is to blame only if it gives the control too little as well.
        """
        found: dict[str, _Attempt] = {}

        async def attempt(name: str, what: _Run) -> None:
            found[name] = await self._attempt(what, usage, patience=_PATIENCE)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(attempt, "candidate", run)
                group.start_soon(attempt, "control", replace(run, bundle=None))
        except* RopewalkError as errors:
            # Callers know our errors, not groups of them; one of tampering goes before one of a call.
            raise _gravest(errors) from None
        candidate, control = found["candidate"], found["control"]
        if candidate.judgement.cause in _UNDECIDED and _at_ease(control, run.hidden.spec.limits):
            detail = "a control ran at ease beside it"
            return _Attempt(Judgement(0.0, "candidate_timeout", detail, {}, Termination.TIMEOUT))
        return candidate

    async def _attempt(self, run: _Run, usage: _Usage, *, patience: float = 1.0) -> _Attempt:
        """`patience` stretches the wall time."""
        hidden, began = run.hidden, False
        try:
            sandbox = await self._sandboxes.create(_sandbox_spec(hidden.spec, self._tenant, run.data_class))
            try:
                await self._furnish(sandbox, run)
                began = True
                record, stats = await self._run(sandbox, hidden, patience)
            finally:
                with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                    await sandbox.close()
        except _Unfit as unfit:
            return _Attempt(Judgement(0.0, "bundle_refused", unfit.detail))
        except SandboxGoneError as error:
            return _Attempt(_loss(error, hidden.spec.limits, began=began))
        except UnavailableError as error:
            return _Attempt(Judgement(None, "infra_error", error.message, {}, Termination.INFRASTRUCTURE))
        usage.add(record, stats)
        judgement = await anyio.to_thread.run_sync(judge, record, hidden.expected, hidden.spec.limits, stats)
        return _Attempt(judgement, record)

    async def _furnish(self, sandbox: GradingSandbox, run: _Run) -> None:
        """No code of the candidate runs yet."""
        hidden, bundle, spec = run.hidden, run.bundle, run.hidden.spec
        try:
            if bundle is not None:
                await apply(bundle, sandbox, self._blobs, workdir=spec.workdir)
            # The tests come last: whatever a bundle put in their place is overwritten.
            await write_files(sandbox, self._blobs, hidden.tests.files, workdir=spec.workdir)
        except FileError as error:
            # Without a bundle all of it could be written when the task was admitted.
            if bundle is None or not (bundle.files or bundle.deleted):
                raise
            raise _Unfit(f"it stands in the way of the grading's own files ({error.code})") from error

    async def _run(
        self, sandbox: GradingSandbox, hidden: _Hidden, patience: float
    ) -> tuple[SuiteRecord, SandboxStats | None]:
        plan = suite_plan(hidden.spec, tests=hidden.spec.tests)
        plan = msgspec.structs.replace(plan, timeout_s=plan.timeout_s * patience)
        record = await self._runner.run(sandbox, plan, probe=hidden.probe)
        try:
            return record, await sandbox.stats()
        except SandboxGoneError:
            return record, None


def _sandbox_spec(spec: GraderSpec, tenant: str, data_class: str) -> SandboxSpec:
    return SandboxSpec(
        tenant=tenant,
        data_class=data_class,
        image=spec.image,
        layers=spec.layers,
        workdir=spec.workdir,
        memory_bytes=spec.limits.memory_bytes,
        processes_max=_PROCESSES_MAX,
        labels={"purpose": "grading"},
    )


def _loss(error: SandboxGoneError, bounds: GraderLimits, *, began: bool) -> Judgement:
    """Of a sandbox that died: by what the candidate did, by what the machine did, or not to be told yet.

    `began`: whether code of the candidate may have run.
    """
    silence = error.silence
    if error.termination.ours if silence is None else silence.held is not None:
        return Judgement(None, "sandbox_lost", error.message, {}, error.termination)
    if began and (silence is None or (silence.cpu_s or 0.0) >= bounds.cpu_s):
        # Nothing but the candidate ran in there: it took the memory, or kept the agent from its time limits.
        termination = error.termination if silence is None else Termination.TIMEOUT
        cause = _CAUSES_OF_LOSS.get(termination, "candidate_ended_sandbox")
        return Judgement(0.0, cause, "", {}, termination)
    return Judgement(None, "unanswered", error.message, {}, Termination.INFRASTRUCTURE)


def _at_ease(control: _Attempt, bounds: GraderLimits) -> bool:
    """Whether a machine that gave everybody as much as the control would have let all CPU time be used in time."""
    record = control.record
    return (
        record is not None
        and record.termination is Termination.FINISHED
        and record.duration_s * bounds.cpu_s <= bounds.wall_s * _PATIENCE * record.cpu_s
    )


def _may_hand_in(path: str, spec: GraderSpec) -> bool:
    return matches_any(path, spec.editable) and is_plain_path(path)


def _in_the_way(path: str, tests: Mapping[str, str]) -> bool:
    """Whether a file would make a test's folder a file, or the other way round."""
    return any(test.startswith(f"{path}/") or path.startswith(f"{test}/") for test in tests)


def _gravest(errors: BaseExceptionGroup[RopewalkError]) -> RopewalkError:
    found = [error for error in leaves(errors) if isinstance(error, RopewalkError)]
    return next((error for error in found if isinstance(error, IntegrityError)), found[0])


def _limits(spec: GraderSpec) -> dict[str, float]:
    bounds = spec.limits
    return {
        "cpu_s": bounds.cpu_s,
        "wall_s": bounds.wall_s,
        "memory_bytes": float(bounds.memory_bytes),
        "output_bytes_max": float(bounds.output_bytes_max),
    }


def _controls_reason(verdicts: list[Verdict]) -> str:
    last = verdicts[-1]
    if last.status is not VerdictStatus.SCORED:
        return str(last.status)
    if len(verdicts) == 1:
        return "noop_passes"
    return "ok" if last.score == 1.0 else "oracle_fails"
