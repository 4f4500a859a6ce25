"""Runs under faults: lost sandboxes, a failing grader, crashes at every step of the journal, Ctrl-C.

After all of them: no reward that should be 1 is 0, groups are complete or refused with a cause, a resume gives the
rewards of an undisturbed run, and no sandbox is left.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import msgspec
import pytest

from ropewalk.app.costs import cost_of_run
from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import decode_own
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.provenance.statement import Activity
from ropewalk.rollout import judging, run
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.episodes.context import AgentContext
from ropewalk.rollout.episodes.materials import COLLECTED_TESTS
from ropewalk.rollout.episodes.shelf import Shelf
from ropewalk.rollout.events import AttemptFailed, EpisodeStarted, Event, RunEnded
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.plan import Plan, PolicyName, PricePlan, RunPlan
from ropewalk.rollout.policies.contract import ContextKind, PolicyEnd, PolicyFailedError
from ropewalk.rollout.policies.fixed import NoopPolicy, OraclePolicy
from ropewalk.rollout.rows import EpisodeRow, EpisodeState
from ropewalk.rollout.run import RunLoop
from ropewalk.rollout.summarise import summary_of
from ropewalk.sandbox.contract import SandboxGoneError, SandboxSpec
from ropewalk.sandbox.files import FileError
from ropewalk.store.database import Database
from ropewalk.testing.clock import ManualClock
from tests.unit.rollout.worlds import FIXED, Durable, MemoryBlobs, MemoryRecorder, MemorySandboxes, Result

PLAN = Plan(
    run=RunPlan(policies=(PolicyName.NOOP, PolicyName.ORACLE, PolicyName.SEARCH), group=3, steps=4, concurrency=3)
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(judging, "RETRY_PAUSE_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: these tests commit thousands of times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


class Scripted:
    """Three steps; by its seed it ends with the right file or not."""

    context: ClassVar[ContextKind] = ContextKind.AGENT
    name = "search(scripted)"

    async def run(self, context: AgentContext) -> PolicyEnd | None:
        await context.shell("look around")
        await context.shell("write pkg/code.py a first try")
        right = FIXED.decode() if context.seed % 2 else "wrong"
        await context.shell(f"write pkg/code.py {right}")
        return None

    async def close(self) -> None:
        pass


POLICIES: dict[str, Any] = {"noop": NoopPolicy(), "oracle": OraclePolicy(), "search": Scripted()}


class Crashed(Exception):
    """Stands for the end of the process."""


class Observed(list[Event]):
    def __call__(self, event: Event) -> None:
        self.append(event)


def expected(journal: RunJournal, run_id: str) -> dict[str, float]:
    """Each episode's reward in a world without faults."""
    pays = {"noop": lambda seed: 0.0, "oracle": lambda seed: 1.0, "search": lambda seed: float(seed % 2)}
    return {row.id: pays[row.policy](row.seed) for row in journal.episodes(run_id)}


def check(durable: Durable, journal: RunJournal, run_id: str) -> None:
    """What must hold after any run that came to its end."""
    wanted = expected(journal, run_id)
    rows = journal.episodes(run_id)
    for row in rows:
        if row.state is EpisodeState.SEALED:
            assert row.value in (wanted[row.id], None), f"{row.policy}: {row.value} ({row.cause})"
            assert row.value is not None or row.cause not in ("", "all_matched", "no_bundle", "value_mismatch")
    for group in journal.groups(run_id):
        values = [row.value for row in rows if row.group_id == group.id]
        assert group.state in ("complete", "refused")
        assert (group.state == "complete") == all(value is not None for value in values)
        assert (group.state == "refused") == bool(group.cause)
    activities = Counter(draft.activity for draft in durable.recorder.drafts.values())
    sealed = sum(row.state is EpisodeState.SEALED for row in rows)
    assert activities[Activity.EPISODE] == activities[Activity.VERDICT] == activities[Activity.REWARD] == sealed


async def work(
    durable: Durable, journal: RunJournal, run_id: str, faults: Any = None, **options: Any
) -> MemorySandboxes:
    """One process's work on the run; the sandboxes it leaves behind are the test's to look at."""
    world = durable.world()
    sandboxes: Any = world.sandboxes
    if faults:
        faults(world)
    try:
        await RunLoop(world, journal, run_id, policies=POLICIES, **options).work()
    finally:
        assert not sandboxes.running
    return sandboxes


def begin(durable: Durable, journal: RunJournal, tasks: int = 2, plan: Plan = PLAN) -> str:
    return begin_run(durable.world(), journal, plan, [durable.task(f"double {n}") for n in range(tasks)])


async def test_without_faults(folder: Path) -> None:
    durable, seen = Durable(folder), Observed()
    journal = durable.journal()
    run_id = begin(durable, journal)
    await work(durable, journal, run_id, observe=seen)
    check(durable, journal, run_id)
    assert {row.id: row.value for row in journal.episodes(run_id)} == expected(journal, run_id)
    assert journal.run(run_id).state == "complete"
    assert isinstance(seen[-1], RunEnded) and seen[-1].state == "complete" and seen[-1].unscored == 0
    assert not durable.snapshots, "nobody needs the states that the episodes began from any more"
    again = Observed()
    await work(durable, journal, run_id, observe=again)
    assert not [event for event in again if isinstance(event, EpisodeStarted)]


@pytest.mark.parametrize("seed", range(6))
async def test_a_tenth_of_the_sandboxes_dies(folder: Path, seed: int) -> None:
    durable, chance = Durable(folder), random.Random(seed)
    journal = durable.journal()
    run_id = begin(durable, journal, tasks=3)
    doomed: dict[str, int] = {}

    def faults(world: Any) -> None:
        def fault(sandbox: str, operation: str) -> None:
            if not sandbox:
                return
            if sandbox not in doomed:
                doomed[sandbox] = chance.randrange(1, 6) if chance.random() < 0.1 else -1
            doomed[sandbox] -= 1
            if doomed[sandbox] == 0:
                raise SandboxGoneError(f"{sandbox} was killed")

        world.sandboxes.fault = fault

    await work(durable, journal, run_id, faults)
    check(durable, journal, run_id)
    killed = [failure for failure in journal.failures(run_id) if failure.cause == "sandbox_lost"]
    assert len(killed) <= sum(count <= 0 for count in doomed.values())


async def test_sandboxes_that_always_die_give_none_and_refused_groups(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal, tasks=1)

    def faults(world: Any) -> None:
        def fault(sandbox: str, operation: str) -> None:
            if operation == "write" and world.sandboxes.forks:
                raise SandboxGoneError("killed")

        world.sandboxes.fault = fault

    seen = Observed()
    await work(durable, journal, run_id, faults, observe=seen)
    check(durable, journal, run_id)
    by_policy = {group.policy: group for group in journal.groups(run_id)}
    assert by_policy["oracle"].cause == "sandbox_lost" and by_policy["noop"].state == "complete"
    oracle = [row for row in journal.episodes(run_id) if row.policy == "oracle"]
    assert [(row.value, row.attempt) for row in oracle] == [(None, PLAN.run.attempts_max)] * 3
    lines = {line.episode: line.attempts for line in summary_of(durable.loaded(run_id)).episodes}
    for row in oracle:
        mine = [event for event in seen if isinstance(event, AttemptFailed) and event.episode == row.id]
        assert [(event.stage, event.attempt, event.again) for event in mine] == [
            ("play", 1, True), ("play", 2, True), ("play", 3, False),
        ]  # fmt: skip
        assert lines[row.id] == 3
    assert journal.run(run_id).state == "incomplete"


async def test_memory_eaten_by_the_policy_is_its_own_fault(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal, tasks=1)

    def faults(world: Any) -> None:
        def fault(sandbox: str, operation: str) -> None:
            if operation == "exec" and world.sandboxes.forks:
                raise SandboxGoneError("out of memory", termination=Termination.OUT_OF_MEMORY)

        world.sandboxes.fault = fault

    await work(durable, journal, run_id, faults)
    scripted = [row for row in journal.episodes(run_id) if row.policy == "search"]
    assert [(row.value, row.cause) for row in scripted] == [(0.0, "no_bundle")] * 3
    assert not journal.failures(run_id)


async def test_gradings_that_fail_leave_the_attempts_at_playing_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable, seen, pauses = Durable(folder), Observed(), list[float]()
    journal = durable.journal()
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=1))
    run_id = begin_run(durable.world(), journal, plan, [durable.task()])

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def faults(world: Any) -> None:
        def fault(sandbox: str, operation: str) -> None:
            if operation == "fork" and world.sandboxes.forks == 0:
                world.sandboxes.forks = 1
                raise UnavailableError("no room")

        world.sandboxes.fault = fault
        world.judge_on(world.sandboxes).fault = lambda: "starved"

    monkeypatch.setattr("ropewalk.rollout.judging.anyio", SimpleNamespace(sleep=pause))
    await work(durable, journal, run_id, faults, observe=seen)
    (row,) = journal.episodes(run_id)
    assert row.attempt == 2 and row.cause == "starved"
    (line,) = summary_of(durable.loaded(run_id)).episodes
    assert line.attempts == 2
    failed = [event for event in seen if isinstance(event, AttemptFailed)]
    assert [(event.stage, event.attempt, event.again) for event in failed] == [
        ("play", 1, True), ("grade", 1, True), ("grade", 2, True), ("grade", 3, False),
    ]  # fmt: skip
    assert len(pauses) == 2, "nobody waits for a try that is not made"


@pytest.mark.parametrize("seed", range(3))
async def test_a_grader_that_fails_now_and_then(folder: Path, seed: int) -> None:
    durable, chance = Durable(folder), random.Random(seed)
    journal = durable.journal()
    run_id = begin(durable, journal)

    def faults(world: Any) -> None:
        def fault() -> str:
            if chance.random() < 0.2:
                raise UnavailableError("no room for a grading sandbox")
            return "sandbox_lost" if chance.random() < 0.3 else ""

        world.judge_on(world.sandboxes).fault = fault

    await work(durable, journal, run_id, faults)
    check(durable, journal, run_id)
    assert journal.failures(run_id)


async def test_a_task_that_cannot_be_made_ready_is_refused_alone(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal)
    failing = PLAN.run.attempts_max

    def faults(world: Any) -> None:
        def fault(sandbox: str, operation: str) -> None:
            nonlocal failing
            if operation == "create" and failing:
                failing -= 1
                raise UnavailableError("no room")

        world.sandboxes.fault = fault

    await work(durable, journal, run_id, faults)
    check(durable, journal, run_id)
    states = Counter((group.state, group.cause) for group in journal.groups(run_id))
    assert states == {("refused", "task_not_ready"): 3, ("complete", ""): 3}
    await work(durable, journal, run_id)  # the machine has room again
    assert {row.id: row.value for row in journal.episodes(run_id)} == expected(journal, run_id)
    assert journal.run(run_id).state == "complete"


class Unreachable(Scripted):
    """Its endpoint dies after some episodes, and comes back."""

    name = "search(scripted)"

    def __init__(self) -> None:
        self.left = 2
        self.failed = 0

    async def run(self, context: AgentContext) -> PolicyEnd | None:
        if self.left == 0:
            self.failed += 1
            raise PolicyFailedError(
                "nobody there", cause="endpoint_unreachable", retriable=False, for_all=self.failed >= 2,
                next_step="start it.",
            )  # fmt: skip
        self.left -= 1
        return await super().run(context)


async def test_a_dead_endpoint_stops_the_run_instead_of_using_it_up(folder: Path) -> None:
    durable, seen = Durable(folder), Observed()
    journal = durable.journal()
    run_id = begin(durable, journal)
    policy = Unreachable()
    loop = RunLoop(durable.world(), journal, run_id, policies={**POLICIES, "search": policy}, observe=seen)
    with pytest.raises(UnavailableError, match=f"start it. Then go on: ropewalk run --resume {run_id}.*keeps its plan"):
        await loop.work()
    assert isinstance(seen[-1], RunEnded) and seen[-1].state == "interrupted"
    assert journal.run(run_id).state == "open"
    policy.left = 100
    await RunLoop(durable.world(), journal, run_id, policies={**POLICIES, "search": policy}).work()
    check(durable, journal, run_id)
    unscored = [row for row in journal.episodes(run_id) if row.value is None]
    assert len(unscored) <= 1, "only those that failed before it was known"


OWN_DOING = [("write", CallerError("too long")), ("exec", CallerError("a request of 2 MiB")),
             ("snapshot", CallerError("folders nested too deep"))]  # fmt: skip


@pytest.mark.parametrize(("operation", "error"), OWN_DOING, ids=[each[0] for each in OWN_DOING])
async def test_what_a_tasks_code_makes_impossible_ends_the_task_and_not_the_run(
    folder: Path, operation: str, error: CallerError
) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal)

    def faults(world: Any) -> None:
        made: list[str] = []

        def fault(sandbox: str, wanted: str) -> None:
            made.append(sandbox)
            if wanted == operation and sandbox and sandbox == next(filter(None, made)):
                raise error

        world.sandboxes.fault = fault

    await work(durable, journal, run_id, faults)
    check(durable, journal, run_id)
    states = Counter((group.state, group.cause) for group in journal.groups(run_id))
    assert states == {("refused", "task_not_ready"): 3, ("complete", ""): 3}


async def test_a_list_of_tests_that_cannot_be_written_is_done_without(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal)

    def faults(world: Any) -> None:
        def fault(sandbox: str, operation: str) -> None:
            if operation == "write" and not world.sandboxes.forks:
                raise FileError("there is a folder in its place", code="EISDIR", path=COLLECTED_TESTS)

        world.sandboxes.fault = fault

    await work(durable, journal, run_id, faults)
    check(durable, journal, run_id)
    assert {row.id: row.value for row in journal.episodes(run_id)} == expected(journal, run_id)


class CrashingJournal(RunJournal):
    """Crashes at its n-th write, before or after it is done, and writes nothing from then on."""

    writes = 0
    crash_at = -1
    after = False

    def _crashing(self, name: str) -> Any:
        inner = getattr(super(), name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.writes += 1
            dead = 0 <= self.crash_at < self.writes
            if dead or (self.writes == self.crash_at and not self.after):
                raise Crashed(name)
            result = inner(*arguments, **named)
            if self.writes == self.crash_at:
                raise Crashed(name)
            return result

        return call

    def __getattribute__(self, name: str) -> Any:
        if name in WRITES:
            return object.__getattribute__(self, "_crashing")(name)
        return object.__getattribute__(self, name)


WRITES = {name for name, value in vars(RunJournal).items() if callable(value) and not name.startswith("_")} - {
    "own", "begin"
}  # fmt: skip


def crashing(durable: Durable, at: int, *, after: bool) -> CrashingJournal:
    journal = CrashingJournal.__new__(CrashingJournal)
    journal.__dict__.update(durable.journal().__dict__, crash_at=at, after=after)
    return journal


def kept(durable: Durable, row: EpisodeRow) -> list[str]:
    """Snapshots that an unpaid episode keeps."""
    record = decode_own(durable.blobs.get(row.record or "", bytes_max=1 << 20), EpisodeRecord)
    return [step.snapshot for step in record.steps if step.snapshot and row.value != 1.0]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_every_write_of_the_journal(folder: Path, after: bool) -> None:
    """Each crash is followed by a resume; together they must give what one undisturbed run gives."""
    durable = Durable(folder)
    first = crashing(durable, -1, after=after)
    small = Plan(run=RunPlan(policies=(PolicyName.ORACLE, PolicyName.SEARCH), group=2, keep_failed=True))
    run_id = begin(durable, first, tasks=1, plan=small)
    await work(durable, first, run_id)
    total = first.writes
    assert total > 20
    for at in range(3 if after else 1, total + 1, 5):
        durable = Durable(folder / str(at))
        durable.folder.mkdir()
        journal = durable.journal()
        run_id = begin(durable, journal, tasks=1, plan=small)
        with pytest.raises(Crashed):
            await work(durable, crashing(durable, at, after=after), run_id)
        finished = {row.id for row in journal.episodes(run_id) if row.state is not EpisodeState.PLANNED}
        seen = Observed()
        await work(durable, durable.journal(), run_id, observe=seen)
        check(durable, journal, run_id)
        assert {row.id: row.value for row in journal.episodes(run_id)} == expected(journal, run_id)
        started = [event for event in seen if isinstance(event, EpisodeStarted)]
        assert not finished & {event.episode for event in started}, "a finished episode was played again"
        assert all(event.attempt == 1 for event in started), "a crash of ours counts as no attempt"
        held = {snapshot for row in journal.episodes(run_id) for snapshot in kept(durable, row)}
        unpaid = any(row.value != 1.0 for row in journal.episodes(run_id))
        assert set(durable.snapshots) == held | ({row.snapshot for row in journal.tasks(run_id)} if unpaid else set())


@pytest.mark.parametrize("call", (1, 2, 4))
async def test_a_crash_while_statements_are_recorded(folder: Path, call: int) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal, tasks=1)
    calls = 0

    def crash() -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Crashed("while signing")

    durable.recorder.before = crash
    try:
        await work(durable, journal, run_id)
    except Crashed:
        unsealed = [row for row in journal.episodes(run_id) if row.state is not EpisodeState.SEALED]
        assert unsealed, "a reward was shown before its statement was durable"
    durable.recorder.before = lambda: None
    await work(durable, durable.journal(), run_id)
    check(durable, journal, run_id)
    assert {row.id: row.value for row in journal.episodes(run_id)} == expected(journal, run_id)


@pytest.mark.parametrize("operations", [3, 11, 41])
async def test_ctrl_c(folder: Path, operations: int) -> None:
    durable, seen = Durable(folder), Observed()
    journal = durable.journal()
    run_id = begin(durable, journal)
    count = 0
    with anyio.CancelScope() as scope:

        def faults(world: Any) -> None:
            def fault(sandbox: str, operation: str) -> None:
                nonlocal count
                count += 1
                if count == operations:
                    scope.cancel()

            world.sandboxes.fault = fault

        await work(durable, journal, run_id, faults, observe=seen)
    assert scope.cancelled_caught
    assert isinstance(seen[-1], RunEnded) and seen[-1].state == "interrupted"
    assert journal.run(run_id).state == "open"
    await work(durable, durable.journal(), run_id)
    check(durable, journal, run_id)
    assert {row.id: row.value for row in journal.episodes(run_id)} == expected(journal, run_id)


async def test_two_processes_do_not_work_on_one_run(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal)
    with journal.own(run_id), pytest.raises(UnavailableError, match="Another process"):
        await work(durable, durable.journal(), run_id)


async def test_a_budget_refuses_what_does_not_fit(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=4, concurrency=1, sandbox_s_max=0.0))
    run_id = begin_run(durable.world(), journal, plan, [durable.task()])
    await work(durable, journal, run_id)
    assert [(group.state, group.cause) for group in journal.groups(run_id)] == [("refused", "budget_sandbox_s")]
    assert all(row.state is EpisodeState.PLANNED for row in journal.episodes(run_id))
    check(durable, journal, run_id)


class Spender(Scripted):
    """Says what it spent; its endpoint fails now and then."""

    def __init__(self, fails: int, *, for_all: bool) -> None:
        self.fails, self.for_all = fails, for_all
        self.told: list[tuple[float, float]] = []

    def spent(self, tokens_prompt: float, tokens_completion: float) -> None:
        self.told.append((tokens_prompt, tokens_completion))

    async def run(self, context: AgentContext) -> PolicyEnd | None:
        context.tokens_unrecorded.update(prompt=7, completion=3)
        await context.shell("look around")
        if self.fails:
            self.fails -= 1
            raise PolicyFailedError("nobody there", cause="endpoint_unreachable", for_all=self.for_all)
        return None


@pytest.mark.parametrize("for_all", [False, True])
async def test_what_lost_attempts_took_counts_also_after_a_resume(folder: Path, for_all: bool) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    plan = Plan(run=RunPlan(policies=(PolicyName.SEARCH,), group=1, concurrency=1))
    run_id = begin_run(durable.world(), journal, plan, [durable.task()])
    policy = Spender(1 if for_all else 2, for_all=for_all)
    for _ in range(2):
        try:
            await RunLoop(durable.world(), journal, run_id, policies={"search": policy}).work()
        except UnavailableError:
            assert for_all
    lost = [used for used in journal.usages(run_id) if used.stage == "play"]
    assert [used.usage["tokens_prompt"] for used in lost] == [7] * (1 if for_all else 2)
    assert all(used.usage["sandbox_s"] > 0 for used in lost)
    assert (7, 3) in policy.told, "the resumed loop tells the policy"
    summary = summary_of(durable.loaded(run_id))
    assert summary.usage["tokens_prompt"] == 7 * (2 if for_all else 3), "those that failed and the one that did not"


async def test_the_budget_counts_all_sandboxes_and_stops_what_was_not_begun(folder: Path) -> None:
    durable = Durable(folder)
    clock = ManualClock()
    made = durable.world()
    sandboxes: Any = made.sandboxes

    class Judge:
        """Takes 50 s of a sandbox, and asks how much it took."""

        def __init__(self, sandboxes: Any) -> None:
            self.sandboxes = sandboxes

        async def grade(self, *arguments: Any, **named: Any) -> Any:
            sandbox = await self.sandboxes.create(SandboxSpec(tenant="tests", image="0" * 64))
            clock.advance(50.0)
            await sandbox.stats()
            await sandbox.close()
            return await made.judge_on(made.sandboxes).grade(*arguments, **named)

    def slow(sandbox: str, operation: str) -> None:
        clock.advance(10.0 if operation == "snapshot" else 0.0)  # of the preparation

    sandboxes.fault = slow
    world = replace(made, clock=clock, judge_on=Judge)
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=3, concurrency=1, sandbox_s_max=100.0))
    journal = durable.journal()
    run_id = begin_run(world, journal, plan, [durable.task("a"), durable.task("b")])
    for _ in range(2):  # a resume finds the same
        await RunLoop(world, journal, run_id, policies=POLICIES).work()
        rows = journal.episodes(run_id)
        assert [row.state is EpisodeState.SEALED for row in rows] == [True, True, False, False, False, False]
        assert {group.cause for group in journal.groups(run_id)} == {"budget_sandbox_s"}
    used = [(row.stage, row.usage["sandbox_s"]) for row in journal.usages(run_id)]
    assert sorted(used)[:2] == [("grade", 50.0)] * 2 and ("prepare", 10.0) in used
    summary = summary_of(durable.loaded(run_id))
    cost = cost_of_run(summary, PricePlan())
    assert cost.sandbox_h * 3600 >= 110 and cost.usd_rollout == pytest.approx(cost.usd_total / 2), "two were played"
    assert summary.usage["grading_cpu_sandbox_s"] == 100.0 and summary.usage["grading_cpu_s"] == 1.0


async def test_a_lost_snapshot_refuses_the_group_that_began_with_it(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal, tasks=1)
    with anyio.CancelScope() as scope:

        def faults(world: Any) -> None:
            def fault() -> str:
                if world.judge_on(world.sandboxes).calls == 3:
                    scope.cancel()
                return ""

            world.judge_on(world.sandboxes).fault = fault

        await work(durable, journal, run_id, faults)
    durable.snapshots.clear()

    def other_state(world: Any) -> None:
        def answer(sandbox: Any, command: Any, options: Any) -> Any:
            sandbox.files["/work/other"] = b"not as before"
            return Result()

        world.sandboxes.answer = answer

    await work(durable, journal, run_id, other_state)
    check(durable, journal, run_id)
    assert {group.cause for group in journal.groups(run_id) if group.state == "refused"} == {"snapshot_lost"}


async def test_failed_episodes_keep_their_snapshots_and_paid_ones_do_not(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    plan = Plan(run=RunPlan(policies=(PolicyName.SEARCH,), group=6, keep_failed=True))
    run_id = begin_run(durable.world(), journal, plan, [durable.task()])
    await work(durable, journal, run_id)
    ready = {row.snapshot for row in journal.tasks(run_id)}
    for row in journal.episodes(run_id):
        record = decode_own(durable.blobs.get(row.record or "", bytes_max=1 << 20), EpisodeRecord)
        kept = [step.snapshot for step in record.steps if step.snapshot]
        assert len(kept) == 3
        if row.value == 0.0:
            assert set(kept) <= set(durable.snapshots)
    values = {row.value for row in journal.episodes(run_id)}
    assert values == {0.0, 1.0}
    assert ready <= set(durable.snapshots)
    assert not any(saved.files["/work/pkg/code.py"] == FIXED for saved in durable.snapshots.values())


async def test_a_run_with_unscored_episodes_keeps_no_states_once_all_is_decided(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal)

    def starved(world: Any) -> None:
        world.judge_on(world.sandboxes).fault = lambda: "starved"

    await work(durable, journal, run_id, starved)
    assert journal.run(run_id).state == "incomplete"
    assert all(row.state is EpisodeState.SEALED for row in journal.episodes(run_id))
    assert not durable.snapshots and not journal.holds()


async def test_a_run_that_can_go_on_keeps_what_its_episodes_begin_from(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=2, concurrency=1))
    run_id = begin_run(durable.world(), journal, plan, [durable.task()])
    with anyio.CancelScope() as scope:

        def faults(world: Any) -> None:
            def fault() -> str:
                scope.cancel()
                return ""

            world.judge_on(world.sandboxes).fault = fault

        await work(durable, journal, run_id, faults)
    assert set(durable.snapshots) == set(journal.holds()) and len(durable.snapshots) == 1


async def test_two_processes_never_drop_what_the_other_needs(folder: Path) -> None:
    """Equal states have equal ids: while one lets go of the last hold, the other takes the same state."""
    durable, chance = Durable(folder), random.Random(1)
    services = [durable.world().sandboxes for _ in range(2)]
    services[1].lock = services[0].lock  # type: ignore[attr-defined]
    shelves = [Shelf(service, durable.journal()) for service in services]

    async def use(service: Any, shelf: Shelf, owner: str) -> None:
        sandbox = await service.create(SandboxSpec(tenant="tests", image="0" * 64))
        for _ in range(6):
            sandbox.files = {"/work/x": b"%d" % chance.randrange(2)}
            state = await shelf.take(sandbox, owner, "")
            await anyio.lowlevel.checkpoint()
            assert shelf.exists(state.id), "it was dropped while it was held"
            await shelf.release(owner)

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(use, services[number % 2], shelves[number % 2], f"owner {number}")
    assert not durable.snapshots


async def test_the_loop_never_waits_for_the_journal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a write waits for a lock, everything else goes on."""
    durable = Durable(folder)
    journal = durable.journal()
    run_id = begin(durable, journal, tasks=1)
    loop_thread, elsewhere, in_the_way = threading.get_ident(), 0, list[str]()

    def watched(kind: type, name: str) -> None:
        inner = getattr(kind, name)

        def watch(*arguments: Any, **named: Any) -> Any:
            nonlocal elsewhere
            if threading.get_ident() == loop_thread:
                in_the_way.append("".join(traceback.format_stack(limit=6)))
            elsewhere += 1
            return inner(*arguments, **named)

        monkeypatch.setattr(kind, name, watch)

    for kind, name in ((Database, "write"), (Database, "read"), (MemoryBlobs, "get"), (MemoryRecorder, "record")):
        watched(kind, name)
    await work(durable, journal, run_id)
    assert elsewhere and not in_the_way, in_the_way[:1]
    monkeypatch.undo()
    check(durable, journal, run_id)


async def test_rows_are_read_once_or_so_however_many_there_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    rows = RunJournal._rows

    def counted(self: RunJournal, *arguments: Any) -> list[Any]:
        nonlocal read
        found = rows(self, *arguments)
        read += len(found)
        return found

    monkeypatch.setattr(RunJournal, "_rows", counted)
    counts = []
    for tasks in (3, 9):
        durable = Durable(folder / str(tasks))
        durable.folder.mkdir()
        journal = durable.journal()
        plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=2, concurrency=1))
        run_id = begin_run(durable.world(), journal, plan, [durable.task(f"double {n}") for n in range(tasks)])
        read = 0
        await work(durable, journal, run_id)
        counts.append(read)
    assert counts[1] < 4 * counts[0], "three times the episodes, three times the rows"


async def test_a_row_that_somebody_else_moved_stops_the_run(folder: Path) -> None:
    durable = Durable(folder)
    journal = durable.journal()
    row = journal.episodes(begin(durable, journal, tasks=1))[0]
    played = msgspec.structs.replace(row, state=EpisodeState.PLAYED, record="0" * 64)
    journal.played(played, mark="first")
    with pytest.raises(IntegrityError, match="as planned any more"):
        journal.played(msgspec.structs.replace(played, record="1" * 64), mark="second")
    assert journal.marks(row.run)[row.id] == "first"
    with pytest.raises(IntegrityError, match="as judged any more"):
        journal.sealed(row.run, [row.id], signing_s=0.0)
    assert journal.episode(row.id).record == "0" * 64
