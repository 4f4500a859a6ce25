"""Ids as people type them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ropewalk.cli.opening import beginning, named
from ropewalk.core.errors import CallerError
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan
from ropewalk.rollout.policies.fixed import NoopPolicy
from ropewalk.rollout.run import RunLoop
from tests.unit.rollout.worlds import Durable

SNAPSHOTS = ["snapshot:" + "0a1b" * 8, "snapshot:" + "0a1c" * 8]


def known(text: str) -> list[str]:
    return beginning([SimpleNamespace(id=id) for id in SNAPSHOTS], text)


@pytest.mark.parametrize("typed", [SNAPSHOTS[0], SNAPSHOTS[0].partition(":")[2], "snapshot:0a1b", "0a1b0a1b"])
def test_the_beginning_of_an_id_is_enough(typed: str) -> None:
    assert named(typed, "snapshot", known) == SNAPSHOTS[0]


@pytest.mark.parametrize(
    ("typed", "kind", "said"),
    [
        ("0a1", "snapshot", "is not the id of a snapshot"),
        ("ffff", "snapshot", "give one like snapshot:0123…"),
        ("x%y%", "episode", "is not the id of an episode"),
        ("nothing", "episode", "give one like episode:01JDY…"),
        ("reward:01JD", "episode", "an episode"),
    ],
)
def test_what_is_no_id_is_told_what_one_looks_like(typed: str, kind: str, said: str) -> None:
    with pytest.raises(CallerError) as caught:
        named(typed, kind, known)
    assert said in f"{caught.value.message} {caught.value.next_step}"


def test_a_beginning_of_several_names_them() -> None:
    with pytest.raises(CallerError, match="Several ids begin with 'snapshot:0a1b'") as caught:
        named("snapshot:0a1b", "snapshot", lambda _: SNAPSHOTS)
    assert caught.value.next_step.startswith("give more of it")


async def test_the_journal_knows_ids_by_their_beginning(tmp_path: Path) -> None:
    durable = Durable(tmp_path)
    journal, world = durable.journal(), durable.world()
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=2, concurrency=1))
    run = begin_run(world, journal, plan, [durable.task()])
    await RunLoop(world, journal, run, policies={"noop": NoopPolicy()}).work()
    one, two = journal.episodes(run)
    assert named(run[:-3], "run", journal.beginning) == run
    assert named(one.id[:-1], "episode", journal.beginning) == one.id
    assert one.reward_id and named(one.reward_id[7:-1], "reward", journal.beginning) == one.reward_id
    assert journal.beginning("episode:") == sorted([one.id, two.id])
    assert journal.beginning("episode:%") == journal.beginning("lake:0") == [], "nothing is a pattern"
