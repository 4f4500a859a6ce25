"""Policies in real sandboxes under a real grader: what they hand in, what it is worth, what a killed sandbox is."""

from __future__ import annotations

import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import anyio
import msgspec
import pytest

from ropewalk.core.records import decode_own
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import Task, TaskLimits
from ropewalk.orchestration.fleet import open_fleet
from ropewalk.reward.grader import Grader
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.episodes.context import AgentContext
from ropewalk.rollout.events import EpisodeStepped, Event
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan
from ropewalk.rollout.policies.contract import ContextKind, PolicyEnd
from ropewalk.rollout.policies.fixed import NoopPolicy, OraclePolicy
from ropewalk.rollout.policies.search.policy import SearchPolicy
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.run import RunLoop
from ropewalk.store.database import Database
from tests.grading import TENANT, GradedProblem, GradingWorld, grading_world
from tests.marks import MemoryMarks
from tests.unit.reward.worlds import grading_root  # noqa: F401
from tests.unit.rollout.worlds import MemoryRecorder

pytestmark = pytest.mark.timeout(240)

BROKEN = '''"""Money."""


def owed(amounts, fee=3):
    total = 0
    for amount in amounts:
        if amount > 0:
            total -= amount
    return total + fee


def label(number):
    return f"{number:04d}"
'''
FIXED = BROKEN.replace("total -= amount", "total += amount")
VISIBLE = """from money.owing import label, owed


def test_one():
    assert owed([4100]) == 4103


def test_label():
    assert label(7) == "0007"
"""
HELD_OUT = """from money.owing import owed


def test_many():
    assert owed([1201, 3307, -5]) == 4511


def test_fee():
    assert owed([77], fee=1009) == 1086
"""
PROBLEM = GradedProblem(
    name="money",
    before={"money/__init__.py": "", "money/owing.py": BROKEN},
    after={"money/owing.py": FIXED},
    tests={"tests/test_held.py": HELD_OUT},
    held_out=("tests/test_held.py::test_many", "tests/test_held.py::test_fee"),
    editable=("money/**/*.py",),
)


class Sed:
    """An agent that runs two commands."""

    context: ClassVar[ContextKind] = ContextKind.AGENT
    name = "openai(sed)"

    async def run(self, context: AgentContext) -> PolicyEnd | None:
        seen = await context.read("money/owing.py")
        assert "total -= amount" in seen.output
        hidden = await context.shell("ls -R / 2>/dev/null | grep -c test_held")
        assert hidden.output.strip() == "0", "the held-out tests are where the policy is"
        await context.shell("sed -i 's/-= amount/+= amount/' money/owing.py")
        tests = " ".join(context.task.visible_tests)
        assert (await context.shell(f"python3 -m pytest -q {tests}")).exit_code == 0
        return None

    async def close(self) -> None:
        pass


@dataclass
class Real:
    world: RunWorld
    journal: RunJournal
    task: Task
    sandboxes: Any

    async def run(self, plan: Plan, policies: dict[str, Any], observe: Any = lambda event: None) -> str:
        run = begin_run(self.world, self.journal, plan, [self.task])
        await RunLoop(self.world, self.journal, run, policies=policies, observe=observe).work()
        mine = {
            record.id for record in await self.sandboxes.records() if record.spec.labels.get("task") == self.task.id
        }
        assert not mine, "sandboxes are left"
        return run

    def values(self, run: str) -> dict[str, list[float | None]]:
        found: dict[str, list[float | None]] = {}
        for row in self.journal.episodes(run):
            found.setdefault(row.policy, []).append(row.value)
        return found

    def records(self, run: str) -> list[EpisodeRecord]:
        return [
            decode_own(self.world.blobs.get(row.record or "", bytes_max=1 << 22), EpisodeRecord)
            for row in self.journal.episodes(run)
        ]


async def _task(made: GradingWorld) -> Task:
    task, built = await made.build(PROBLEM)
    assert built.spec, built
    tests = made.layers.add_files({"work/tests/test_visible.py": VISIBLE.encode()})
    visible = tuple(f"tests/test_visible.py::{name}" for name in ("test_one", "test_label"))
    return msgspec.structs.replace(
        task,
        layers=(*task.layers, tests.digest),
        visible_tests=visible,
        visible_killers=visible[:1],
        test_command=("python3", "-m", "pytest", "-q"),
        limits=TaskLimits(test_timeout_s=20.0),
    )


@asynccontextmanager
async def real(root: Path, folder: Path) -> AsyncIterator[Real]:
    with (root.parent / "policies.lock").open("w") as lock:  # runs of one state belong into one journal
        await anyio.to_thread.run_sync(fcntl.flock, lock, fcntl.LOCK_EX)
        async with _world(root, folder) as here:
            yield here


@asynccontextmanager
async def _world(root: Path, folder: Path) -> AsyncIterator[Real]:
    async with grading_world(root) as made:
        journal = RunJournal(Database.open(folder / "journal.db"), locks=folder / "locks")
        world = RunWorld(
            sandboxes=made.sandboxes,
            blobs=made.blobs,
            judge_on=lambda sandboxes: Grader(sandboxes, made.blobs, tenant=TENANT),
            recorder=MemoryRecorder(),
            marks=MemoryMarks(),
            fleet=open_fleet(),
            tenant=TENANT,
        )
        yield Real(world, journal, await _task(made), made.sandboxes)


def plan(*names: PolicyName, **fields: Any) -> Plan:
    return Plan(run=RunPlan(policies=names, **{"group": 2, "concurrency": 2, **fields}))


async def test_each_policy_gets_what_it_deserves(tmp_path: Path, grading_root: Path) -> None:  # noqa: F811
    async with real(grading_root, tmp_path) as here:
        chosen = plan(
            PolicyName.NOOP, PolicyName.ORACLE, PolicyName.SEARCH, PolicyName.OPENAI, steps=30, keep_failed=True
        )
        chosen = msgspec.structs.replace(
            chosen, policy=msgspec.convert({"openai": {"base_url": "http://h/v1", "model": "m"}}, type(chosen.policy))
        )
        policies = {
            "noop": NoopPolicy(),
            "oracle": OraclePolicy(),
            "search": SearchPolicy(chosen.policy.search),
            "openai": Sed(),
        }
        run = await here.run(chosen, policies)
        assert here.values(run) == {
            "noop": [0.0, 0.0], "oracle": [1.0, 1.0], "search": [1.0, 1.0], "openai": [1.0, 1.0],
        }, here.journal.failures(run)  # fmt: skip
        used = here.journal.usages(run)
        graded = [each for each in used if each.stage == "grade" and each.usage]  # what changes nothing is not run
        assert len(graded) == 6 and all(each.usage["sandbox_s"] > 0 for each in graded)
        assert [each.stage for each in used].count("prepare") == 1 and used[0].usage["sandbox_s"] > 0
        if all("cpu_s" in record.usage for record in here.records(run)):  # the machine measures it
            assert all(0 < each.usage["cpu_sandbox_s"] <= each.usage["sandbox_s"] for each in graded)
        searched = [record for record in here.records(run) if record.policy.startswith("search")]
        for record in searched:
            assert record.usage["forks"] >= len(record.steps) >= 1
            assert record.usage["sandbox_s"] > 0 and record.time_s["tests"] > 0
            assert record.steps[-1].results[0].output.endswith("; kept")
            assert list(record.steps[-1].files_changed) == ["money/owing.py"]
        agents = [record for record in here.records(run) if record.policy == Sed.name]
        assert [list(step.files_changed) for step in agents[0].steps] == [[], [], ["money/owing.py"], []]
        ready = {row.snapshot for row in here.journal.tasks(run)}
        kept = {record.id for record in here.sandboxes.snapshots()} - ready
        assert all(step.snapshot not in kept for record in agents for step in record.steps), "paid ones keep nothing"


async def test_a_killed_sandbox_is_no_zero(tmp_path: Path, grading_root: Path) -> None:  # noqa: F811
    """The first attempt's sandbox is destroyed from outside while the agent works in it."""
    async with real(grading_root, tmp_path) as here:
        destroyed: list[str] = []

        class Victim(Sed):
            name = "noop"

            async def run(self, context: AgentContext) -> PolicyEnd | None:
                await context.read("money/owing.py")
                if not destroyed:
                    for record in await here.sandboxes.records():
                        if record.snapshot is not None:  # the episode's fork
                            destroyed.append(record.id)
                            await here.sandboxes.destroy(record.id)
                return await super().run(context)

        seen: list[Event] = []
        run = await here.run(
            plan(PolicyName.NOOP, group=1, concurrency=1), {"noop": Victim()}, observe=seen.append
        )  # fmt: skip
        assert destroyed and here.values(run) == {"noop": [1.0]}
        assert [failure.cause for failure in here.journal.failures(run)] == ["sandbox_lost"]
        assert here.journal.episodes(run)[0].attempt == 2
        assert any(isinstance(event, EpisodeStepped) for event in seen)
