"""What is read of a run is what was signed of it, whatever somebody wrote into the database."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from ropewalk.core.errors import IntegrityError
from ropewalk.core.records import canonical_bytes
from ropewalk.provenance.intoto import Statement
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.loaded import load_episodes
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan
from ropewalk.rollout.policies.fixed import NoopPolicy, OraclePolicy
from ropewalk.rollout.run import RunLoop
from tests.unit.rollout.worlds import Durable, MemoryRecorder

PAID = "(select {0} from rollout_episodes where value=1.0 order by id limit 1)"


def copied(*columns: str) -> str:
    """Everything that a paid episode's row says, in a failed one's."""
    return "update rollout_episodes set " + ", ".join(f"{c}={PAID.format(c)}" for c in columns) + " where value=0.0"


CHANGES: dict[str, str] = {
    "another episode's reward and verdict": copied("verdict", "reward", "value", "cause"),
    "another episode's reward": copied("reward"),
    "another episode's verdict": copied("verdict"),
    "another episode's record": copied("record"),
    "a better value": "update rollout_episodes set value=1.0",
    "another cause": "update rollout_episodes set cause='all_matched'",
    "no failed episodes": "delete from rollout_episodes where value=0.0",
    "no episodes": "delete from rollout_episodes",
    "a failed episode begins anew": "update rollout_episodes set state='planned', record=null, verdict=null, "
    "reward=null, reward_id=null, value=null where value=0.0",
    "no reward any more": "update rollout_episodes set reward=null where value=0.0",
    "a failed episode of another run": "update rollout_episodes set run='run:other' where value=0.0",
    "policies swapped": "update rollout_episodes set policy=case policy when 'noop' then 'oracle' else 'noop' end",
    "policies and groups swapped": "update rollout_groups set policy=case policy when 'noop' then 'oracle' else 'noop' "
    "end; update rollout_episodes set policy=case policy when 'noop' then 'oracle' else 'noop' end",
    "another task": "update rollout_episodes set task=(select task from rollout_tasks where place=1)",
    "tasks swapped": "update rollout_tasks set blob=(select blob from rollout_tasks where place=1)",
    "another group": "update rollout_episodes set group_id=(select id from rollout_groups where place=1)",
    "another seed": "update rollout_episodes set seed=seed + 1",
    "another place in the group": "update rollout_episodes set position=1 - position",
    "another id": "update rollout_episodes set id=id || 'X' where value=0.0",
    "another name of the reward": "update rollout_episodes set reward_id=reward_id || 'X' where value=0.0",
}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Durable, str]:
    """A run; never changed, only copied."""
    return anyio.run(play, Durable(tmp_path_factory.mktemp("run")))


@pytest.fixture
def played(once: tuple[Durable, str], tmp_path: Path) -> tuple[Durable, str]:
    durable, run = once
    shutil.copytree(durable.folder, tmp_path, dirs_exist_ok=True)
    recorder = MemoryRecorder()
    recorder.drafts = dict(durable.recorder.drafts)
    return Durable(tmp_path, durable.blobs, recorder, durable.snapshots), run


async def play(durable: Durable) -> tuple[Durable, str]:
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP, PolicyName.ORACLE), group=2))
    journal = durable.journal()
    run = begin_run(durable.world(), journal, plan, [durable.task("double"), durable.task("twice")])
    policies: dict[str, Any] = {"noop": NoopPolicy(), "oracle": OraclePolicy()}
    await RunLoop(durable.world(), journal, run, policies=policies).work()
    return durable, run


def change(durable: Durable, script: str) -> None:
    with sqlite3.connect(durable.folder / "state.db") as database:
        database.executescript(script)
    database.close()


@pytest.mark.parametrize("name", CHANGES)
def test_a_journal_that_is_not_what_was_signed_is_refused(played: tuple[Durable, str], name: str) -> None:
    durable, run = played
    assert {result.reward.value for result in durable.loaded(run).episodes if result.reward} == {0.0, 1.0}
    change(durable, CHANGES[name])
    with pytest.raises(IntegrityError, match="not what was signed"):
        durable.loaded(run)


def test_a_reward_that_was_never_signed_is_refused(played: tuple[Durable, str]) -> None:
    durable, run = played
    durable.recorder.drafts = dict(list(durable.recorder.drafts.items())[:-1])
    with pytest.raises(IntegrityError, match="never signed"):
        durable.loaded(run)


def test_what_is_signed_counts_also_where_the_journal_was_not_told(played: tuple[Durable, str]) -> None:
    """A crash between the two, or somebody who hides the failed episodes."""
    durable, run = played
    change(
        durable, "update rollout_episodes set state='judged' where value=0.0; update rollout_groups set state='open'"
    )
    values = [result.reward.value for result in durable.loaded(run).episodes if result.reward]
    assert sorted(v for v in values if v is not None) == [0.0] * 4 + [1.0] * 4


def test_unscored_groups_cannot_be_called_complete(played: tuple[Durable, str]) -> None:
    durable, run = played
    with sqlite3.connect(durable.folder / "state.db") as database:
        database.execute("update rollout_episodes set reward=null, state='played' where value=0.0")
    durable.recorder.drafts = {
        digest: draft for digest, draft in durable.recorder.drafts.items() if draft.predicate.get("value") != 0.0
    }
    with pytest.raises(IntegrityError, match="called complete, and by its rewards it is open"):
        durable.loaded(run)


@pytest.mark.parametrize(
    "change_to",
    [
        "update rollout_groups set state='refused', cause='sandbox_lost'",
        "update rollout_groups set state='refused', cause=''",
        "update rollout_groups set cause='sandbox_lost'",
        "delete from rollout_tasks",
        "delete from rollout_episodes where position=1",
    ],
)
def test_no_row_says_what_may_be_learnt_from(played: tuple[Durable, str], change_to: str) -> None:
    durable, run = played
    change(durable, change_to)
    with pytest.raises(IntegrityError, match="not what was signed"):
        durable.loaded(run)


def test_a_group_that_nobody_closed_is_what_its_rewards_say(played: tuple[Durable, str]) -> None:
    durable, run = played
    change(durable, "update rollout_groups set state='open'")
    assert {group.state for group in durable.loaded(run).groups} == {"complete"}


def test_another_plan_than_the_signed_one_is_refused(played: tuple[Durable, str]) -> None:
    durable, run = played
    other = durable.blobs.put(canonical_bytes(Plan(run=RunPlan(group=7))))
    change(durable, f"update rollout_runs set plan='{other}'")
    with pytest.raises(IntegrityError, match="another plan"):
        durable.loaded(run)


def test_rewards_of_older_versions_name_no_plan_and_are_read(played: tuple[Durable, str]) -> None:
    durable, run = played
    without = [
        msgspec.structs.replace(draft, inputs=tuple(link for link in draft.inputs if not link.name.startswith("plan:")))
        for draft in durable.recorder.drafts.values()
    ]
    durable.recorder.drafts = {}
    durable.recorder.record(tuple(without))
    assert sum(result.reward is not None for result in durable.loaded(run).episodes) == 8


async def test_other_runs_are_read_only_for_who_asks(
    played: tuple[Durable, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    durable, first = played
    _, second = await play(durable)
    read: list[str] = []
    of_run = durable.recorder.of_run

    def told(run: str) -> tuple[Statement, ...]:
        read.append(run)
        return of_run(run)

    monkeypatch.setattr(durable.recorder, "of_run", told)
    journal, log = durable.journal(), durable.recorder
    alone = load_episodes(journal, durable.blobs, first, log=log, elsewhere=False)  # type: ignore[arg-type]
    assert set(read) == {first} and not alone.elsewhere
    whole = durable.loaded(first)
    assert set(read) == {first, second} and {reward.run for reward in whole.elsewhere} == {second}
    assert alone == msgspec.structs.replace(whole, elsewhere=()), "nothing else is missing"
