"""What a run may meet, and that whoever waits for one is always answered."""

from __future__ import annotations

import inspect
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from ropewalk.app.custody import Custody
from ropewalk.app.facade import RopewalkSync
from ropewalk.app.machines import Machines
from ropewalk.app.ropewalk import Ropewalk
from ropewalk.app.runs import Run
from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.provenance.graph import LineageIndex
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.plan import OpenAISettings, Plan, PoliciesPlan, PolicyName, RunPlan
from ropewalk.rollout.policies.contract import ContextKind
from ropewalk.rollout.policies.fixed import NoopPolicy, OraclePolicy
from ropewalk.store.database import Database
from tests.unit.rollout.worlds import Durable


class Sticky:
    """Cannot be closed."""

    context: ClassVar[ContextKind] = ContextKind.AGENT
    name = "noop"

    async def run(self, context: Any) -> None:
        pass

    async def close(self) -> None:
        raise RuntimeError("it does not let go")


async def test_a_policy_that_cannot_be_closed_leaves_nobody_waiting(tmp_path: Path) -> None:
    durable = Durable(tmp_path / "world")
    durable.folder.mkdir()
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=1))
    with Custody.open(state=tmp_path / "state") as custody:
        world = durable.world()
        id = begin_run(world, custody.journal, plan, [durable.task()])
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                run = Run(id, custody)
                run.start(group, world, {"noop": Sticky(), "other": Sticky()})
                with pytest.raises(RuntimeError, match="let go"):
                    await run.wait()


class Stepwise:
    """Plays one episode for each time it is let."""

    context: ClassVar[ContextKind] = ContextKind.AGENT
    name = "noop"

    def __init__(self) -> None:
        self.let = anyio.Semaphore(0)

    async def run(self, context: Any) -> None:
        await self.let.acquire()

    async def close(self) -> None:
        pass


async def test_every_reader_of_a_run_gets_every_reward_when_it_is_there(tmp_path: Path) -> None:
    durable = Durable(tmp_path / "world")
    durable.folder.mkdir()
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=4, concurrency=1))
    policy = Stepwise()
    with Custody.open(state=tmp_path / "state") as custody:
        world = replace(durable.world(), recorder=custody.recorder)
        run = Run(begin_run(world, custody.journal, plan, [durable.task()]), custody)
        got: list[list[str]] = [[], [], [], []]
        let = 0

        def go_on() -> None:
            nonlocal let
            if min(len(got[0]), len(got[1])) == let:  # both have what there is so far
                let += 1
                policy.let.release()
                if let == 3:
                    group.start_soon(read, 2)  # one who comes late gets those from before first

        async def read(place: int) -> None:
            async for reward in run.rewards():
                got[place].append(reward.episode)
                if place == 3:
                    return  # one who leaves early holds up nobody
                go_on()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                run.start(group, world, {"noop": policy})
                for place in (0, 1, 3):
                    group.start_soon(read, place)
                go_on()
    assert len(set(got[0])) == 4 and got[0] == got[1] == got[2] and got[3] == got[0][:1]


async def test_a_finished_run_is_found_and_read(tmp_path: Path) -> None:
    state = tmp_path / "state"
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP, PolicyName.ORACLE), group=2))
    async with Ropewalk.open(state=state) as rw:
        assert await rw.runs() == ()
        durable = Durable(tmp_path, blobs=rw.custody.blobs)  # type: ignore[arg-type]
        world = replace(durable.world(), recorder=rw.custody.recorder)
        id = begin_run(world, rw.custody.journal, plan, [durable.task()])
        async with anyio.create_task_group() as group:
            run = Run(id, rw.custody)
            run.start(group, world, {"noop": NoopPolicy(), "oracle": OraclePolicy()})
            await run.wait()
    async with Ropewalk.open(state=state) as rw:
        assert [each.id for each in await rw.runs()] == [id]
        found = await rw.open_run(id)
        assert (await found.wait()).state == "complete"
        assert sorted([reward.value async for reward in found.rewards()]) == [0.0, 0.0, 1.0, 1.0]
        assert await found.export(tmp_path / "all.jsonl") == 4 == len((tmp_path / "all.jsonl").read_text().splitlines())
        assert await found.export(tmp_path / "each", format="atif") == 4 == len(list((tmp_path / "each").iterdir()))
        assert "<html" in (await found.report(tmp_path / "report.html")).read_text()
        assert (await found.report()).is_relative_to(state)
        with pytest.raises(CallerError):
            await rw.open_run("run:nobody")
    with RopewalkSync.open(state=state) as sync:
        (same,) = sync.runs()
        assert (same.id, same.row.state, len(list(same.rewards()))) == (id, "complete", 4)
        assert sync.open_run(id).export(tmp_path / "again.jsonl") == 4


def test_both_faces_open_alike(tmp_path: Path) -> None:
    assert inspect.signature(RopewalkSync.open).parameters == inspect.signature(Ropewalk.open).parameters
    with pytest.raises(CallerError, match="no_such_driver"), RopewalkSync.open(state=tmp_path, driver="no_such_driver"):
        pass


@pytest.mark.parametrize(
    ("data_class", "url", "rule"),
    [
        ("internal", "https://api.example.com/v1", "data_class:internal:endpoint"),
        ("restricted", "https://127.0.0.1.example.com/v1", "data_class:restricted:endpoint"),
        ("unheard-of", "http://127.0.0.1:9/v1", "data_class:unheard-of:driver"),
    ],
)
async def test_tasks_meet_only_what_their_class_allows(tmp_path: Path, data_class: str, url: str, rule: str) -> None:
    durable = Durable(tmp_path / "world")
    plan = Plan(
        run=RunPlan(policies=(PolicyName.OPENAI,)), policy=PoliciesPlan(openai=OpenAISettings(base_url=url, model="m"))
    )
    async with Ropewalk.open(state=tmp_path / "state") as rw:
        with pytest.raises(DeniedError) as denied:
            await rw.run(plan, tasks=[durable.task(data_class=data_class)])
        assert denied.value.rule == rule
        assert not rw.custody.journal.runs(), "nothing was begun"
        begun = begin_run(await rw.world(), rw.custody.journal, plan, [durable.task(data_class=data_class)])
        with pytest.raises(DeniedError):
            await rw.resume(begun)


async def test_a_run_whose_key_is_not_there_is_not_begun(tmp_path: Path) -> None:
    durable = Durable(tmp_path / "world")
    settings = OpenAISettings(base_url="http://127.0.0.1:9/v1", model="m", key="env:ROPEWALK_NO_SUCH_KEY")
    plan = Plan(run=RunPlan(policies=(PolicyName.OPENAI,)), policy=PoliciesPlan(openai=settings))
    async with Ropewalk.open(state=tmp_path / "state") as rw:
        with pytest.raises(CallerError, match=r"policy\.openai\.key \(--key\): env:ROPEWALK_NO_SUCH_KEY") as caught:
            await rw.run(plan, tasks=[durable.task()])
        assert "ROPEWALK_NO_SUCH_KEY" in caught.value.next_step
        assert not rw.custody.journal.runs()


async def test_a_sandbox_for_data_of_a_class_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    async with Ropewalk.open(state=tmp_path / "state") as rw:
        with pytest.raises(DeniedError) as denied:
            await rw.machines.spec("nothing", data_class="unheard-of")
        assert denied.value.rule == "data_class:unheard-of:driver"
        with pytest.raises(DeniedError):
            await rw.machines.spec("nothing", tenant="somebody-else")


async def test_the_world_is_made_once_and_not_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, bool]] = []

    def noting(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            made.append((name, threading.current_thread() is threading.main_thread()))
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, name, noted)

    noting(Machines, "probe")
    noting(LineageIndex, "catch_up")
    noting(Database, "open")
    async with Ropewalk.open(state=tmp_path / "state") as rw:
        noting(type(rw.custody.keys), "create")
        assert not made, "who only looks at sandboxes needs none of it"
        worlds = []

        async def ask() -> None:
            worlds.append(await rw.world())

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(ask)
        assert len(worlds) == 4 and all(world is worlds[0] for world in worlds)
        assert worlds[0].judge_on, "gradings are counted too"
    assert sorted(made) == [("create", False), ("open", False), ("probe", False)]
