"""Whoever can write the state directory and cannot sign waits until a run is broken off, and changes what its resume
goes on from: the journal and the blobs. Nothing of it may be signed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.rollout.worlds import Durable, MemorySandboxes

from ropewalk.core.errors import IntegrityError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import canonical_bytes, decode_own, digest_bytes
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import FileSet, Task
from ropewalk.provenance.statement import Activity
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.verdict import Reward, Verdict, VerdictStatus
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.diagnose import findings_of
from ropewalk.rollout.events import EpisodeJudged, Event
from ropewalk.rollout.findings import FindingKind
from ropewalk.rollout.marks import NOT_VOUCHED, RowMarks
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan
from ropewalk.rollout.policies.fixed import NoopPolicy, OraclePolicy
from ropewalk.rollout.rows import EpisodeState
from ropewalk.rollout.run import RunLoop

PLAN = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=2, concurrency=1))
FORGED_STATE = "snapshot:" + "0" * 32
POLICIES: dict[str, Any] = {"noop": NoopPolicy(), "oracle": OraclePolicy()}


class Attacker:
    """Writes rows and blobs."""

    def __init__(self, durable: Durable, folder: Path, run: str) -> None:
        self.durable, self.run = durable, run
        self.db = sqlite3.connect(folder / "state.db", timeout=30, isolation_level=None)
        self.db.row_factory = sqlite3.Row

    def rows(self, table: str) -> list[sqlite3.Row]:
        return self.db.execute(f"SELECT * FROM rollout_{table} WHERE run = ? ORDER BY place", (self.run,)).fetchall()

    def set(self, table: str, key: str, of: str, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self.db.execute(f"UPDATE rollout_{table} SET {names} WHERE {key} = ?", (*values.values(), of))

    def put(self, record: Any) -> str:
        return self.durable.blobs.put(canonical_bytes(record))

    def get(self, digest: str, kind: type[Any]) -> Any:
        return decode_own(self.durable.blobs.data[digest], kind)

    def answer(self, row: sqlite3.Row) -> dict[str, str]:
        """A record of an episode that hands in the task's own answer."""
        named = self.rows("tasks")[0]
        task = self.get(named["blob"], Task)
        files = self.get(task.oracle, FileSet).files
        bundle = Bundle(task=task.id, base=task.source, files=files)
        record = EpisodeRecord(
            id=row["id"], run=self.run, task=row["task"], policy=row["policy"], group=row["group_id"],
            index=row["position"], seed=row["seed"], snapshot=named["snapshot"] or "snapshot:none", steps=(),
            termination=Termination.FINISHED, truncated=False, bundle=self.put(bundle),
            started_s=time.time() - 9, ended_s=time.time() - 8,
        )  # fmt: skip
        return {"record": self.put(record), "cause": ""}

    def outcome(self, row: sqlite3.Row) -> dict[str, Any]:
        """A verdict and a reward for it."""
        played = self.answer(row)
        bundle = self.get(played["record"], EpisodeRecord).bundle
        task = self.get(self.rows("tasks")[0]["blob"], Task)
        verdict = Verdict(episode=row["id"], task=task.id, grader=task.grader, bundle=bundle,
                          status=VerdictStatus.SCORED, score=1.0, cause="all_matched", nonce="0" * 32)  # fmt: skip
        reward = Reward(
            id=f"reward:{row['id'].partition(':')[2]}", episode=row["id"], task=task.id, run=self.run, policy="noop",
            value=1.0, cause="all_matched", verdict=digest_bytes(canonical_bytes(verdict)),
            termination=Termination.FINISHED, truncated=False,
        )  # fmt: skip
        return played | {
            "verdict": self.put(verdict), "reward": self.put(reward), "reward_id": reward.id, "value": 1.0,
            "cause": "all_matched", "judging_started_s": 1.0, "judged_s": 2.0,
        }  # fmt: skip


class World:
    """A run of a policy that does nothing, broken off."""

    def __init__(self, folder: Path) -> None:
        self.durable = Durable(folder)
        self.journal = self.durable.journal()
        tasks = [self.durable.task("double"), self.durable.task("twice")]
        self.run = begin_run(self.durable.world(), self.journal, PLAN, tasks)
        self.attacker = Attacker(self.durable, folder, self.run)

    async def work(self, observe: Callable[[Event], None] = lambda event: None) -> None:
        world = self.durable.world()
        await RunLoop(world, self.journal, self.run, policies=POLICIES, observe=observe).work()

    async def break_off(self, *, beside_judged: bool = False) -> None:
        """Everything is judged or played, and only the first few are signed.

        Args:
            beside_judged: not before one that is not signed yet is judged; else whether there is one is chance.
        """
        signed: list[int] = []
        broken: list[int] = []

        def crash() -> None:
            signed.append(1)
            # a state, a reward, and then no more
            if broken or (len(signed) > 3 and (self.has_judged() or not beside_judged)):
                broken.append(1)
                raise OSError("crash")

        self.durable.recorder.before = crash
        with pytest.raises(OSError, match="crash"):
            await self.work()
        self.durable.recorder.before = lambda: None

    def has_judged(self) -> bool:
        """Whether an episode is judged and not signed."""
        return any(each.state is EpisodeState.JUDGED for each in self.journal.episodes(self.run))

    @property
    def values(self) -> list[float | None]:
        drafts = self.durable.recorder.drafts.values()
        return [draft.predicate["value"] for draft in drafts if draft.activity is Activity.REWARD]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield World(tmp_path)


def unsealed(attacker: Attacker) -> list[sqlite3.Row]:
    return [row for row in attacker.rows("episodes") if row["state"] != "sealed"]


def played(attacker: Attacker) -> None:
    for row in unsealed(attacker):
        attacker.set("episodes", "id", row["id"], state="played", **attacker.answer(row))


def judged(attacker: Attacker) -> None:
    for row in unsealed(attacker):
        attacker.set("episodes", "id", row["id"], state="judged", **attacker.outcome(row))


def unmarked(attacker: Attacker) -> None:
    played(attacker)
    for row in attacker.rows("episodes"):
        attacker.db.execute("DELETE FROM rollout_marks WHERE subject = ?", (row["id"],))


def with_marks_of_others(attacker: Attacker) -> None:
    played(attacker)
    mark = attacker.db.execute("SELECT mark FROM rollout_marks ORDER BY subject LIMIT 1").fetchone()
    attacker.db.execute("UPDATE rollout_marks SET mark = ? WHERE subject LIKE 'episode:%'", tuple(mark))
    for row in unsealed(attacker):
        attacker.db.execute(
            "INSERT OR IGNORE INTO rollout_marks (subject, run, mark) VALUES (?, ?, ?)",
            (row["id"], attacker.run, mark[0]),
        )


def better_value(attacker: Attacker) -> None:
    """The verdict stays, the reward says more."""
    for row in unsealed(attacker):
        if row["reward"]:
            reward = msgspec.structs.replace(attacker.get(row["reward"], Reward), value=1.0)
            attacker.set("episodes", "id", row["id"], reward=attacker.put(reward), value=1.0)


def other_verdict(attacker: Attacker) -> None:
    for row in unsealed(attacker):
        if row["verdict"]:
            verdict = msgspec.structs.replace(attacker.get(row["verdict"], Verdict), score=1.0)
            attacker.set("episodes", "id", row["id"], verdict=attacker.put(verdict))


def other_record(attacker: Attacker) -> None:
    for row in unsealed(attacker):
        attacker.set("episodes", "id", row["id"], record=attacker.answer(row)["record"])


def called_unscored(attacker: Attacker) -> None:
    """What was played is to be dropped as our side's failure."""
    for row in unsealed(attacker):
        if row["state"] == "played":
            attacker.set("episodes", "id", row["id"], cause="sandbox_lost")
        elif row["state"] == "judged":
            attacker.set("episodes", "id", row["id"], value=None, cause="sandbox_lost")


FORGED = [
    played, judged, unmarked, with_marks_of_others, better_value, other_verdict, other_record, called_unscored,
]  # fmt: skip


@pytest.mark.parametrize("begun", [False, True], ids=["planned", "judged"])
@pytest.mark.parametrize("forge", FORGED)
async def test_what_the_run_did_not_write_is_played_again(
    world: World, forge: Callable[[Attacker], None], *, begun: bool
) -> None:
    if begun:
        await world.break_off()
    before = {row["id"]: tuple(row) for row in world.attacker.rows("episodes")}
    forge(world.attacker)
    changed = {row["id"] for row in world.attacker.rows("episodes") if tuple(row) != before[row["id"]]}
    await world.work()
    assert world.values == [0.0] * 4, "one reward for each, and doing nothing earns nothing"
    assert {failure.episode for failure in world.journal.failures(world.run)} == changed
    assert {failure.cause for failure in world.journal.failures(world.run)} <= {NOT_VOUCHED}
    loaded = world.durable.loaded(world.run)
    found = {finding.kind for finding in findings_of(loaded)}
    assert (FindingKind.JOURNAL_CHANGED in found) == bool(changed)
    assert FindingKind.INFRASTRUCTURE not in found


async def test_what_was_written_is_not_done_twice(world: World) -> None:
    await world.break_off()
    before = {row.id: row.record for row in world.journal.episodes(world.run) if row.record}
    assert before
    await world.work()
    assert {row.id: row.record for row in world.journal.episodes(world.run) if row.id in before} == before
    assert not world.journal.failures(world.run)


def other_plan(attacker: Attacker) -> None:
    plan = msgspec.structs.replace(PLAN, run=msgspec.structs.replace(PLAN.run, attempts_max=9))
    attacker.set("runs", "run", attacker.run, plan=attacker.put(plan))


def other_task(attacker: Attacker) -> None:
    row = attacker.rows("tasks")[0]
    task = msgspec.structs.replace(attacker.get(row["blob"], Task), grader="0" * 64)
    attacker.set("tasks", "task", row["task"], blob=attacker.put(task))


def other_policy(attacker: Attacker) -> None:
    attacker.set("episodes", "run", attacker.run, policy="oracle")


def other_group(attacker: Attacker) -> None:
    rows = attacker.rows("episodes")
    attacker.set("episodes", "id", rows[0]["id"], group_id=rows[-1]["group_id"])


def other_seed(attacker: Attacker) -> None:
    attacker.set("episodes", "id", attacker.rows("episodes")[0]["id"], seed=1)


def one_more(attacker: Attacker) -> None:
    row = dict(attacker.rows("episodes")[0]) | {
        "id": "episode:01J00000000000000000000000",
        "place": 99,
        "reward_id": None,
    }
    attacker.db.execute(
        f"INSERT INTO rollout_episodes ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
    )


def one_less(attacker: Attacker) -> None:
    attacker.db.execute("DELETE FROM rollout_episodes WHERE id = ?", (attacker.rows("episodes")[-1]["id"],))


def no_mark(attacker: Attacker) -> None:
    attacker.db.execute("DELETE FROM rollout_marks")


@pytest.mark.parametrize(
    "change", [other_plan, other_task, other_policy, other_group, other_seed, one_more, one_less, no_mark]
)
async def test_a_run_that_was_not_begun_so_is_not_gone_on_with(
    world: World, change: Callable[[Attacker], None]
) -> None:
    await world.break_off()
    signed = dict(world.durable.recorder.drafts)
    change(world.attacker)
    with pytest.raises(IntegrityError, match="not what was begun"):
        await world.work()
    assert world.durable.recorder.drafts == signed


@pytest.mark.parametrize("field", ["snapshot", "snapshot_blob"])
async def test_no_episode_begins_from_a_state_that_others_named(world: World, field: str) -> None:
    await world.break_off()
    for row in world.attacker.rows("tasks"):
        if row["snapshot"]:
            world.attacker.set("tasks", "task", row["task"], **{field: FORGED_STATE})
    await world.work()
    assert set(world.values) == {0.0}
    named = [link.name for draft in world.durable.recorder.drafts.values() for link in draft.inputs]
    assert FORGED_STATE not in named


@pytest.mark.parametrize("forge", [judged, better_value, other_verdict, other_record, called_unscored])
async def test_a_change_while_it_runs_is_not_signed_either(world: World, forge: Callable[[Attacker], None]) -> None:
    def strike(event: Event) -> None:
        if isinstance(event, EpisodeJudged):
            forge(world.attacker)

    with pytest.raises(IntegrityError, match=r"nothing of it is signed|any more"):
        await world.work(strike)
    assert 1.0 not in world.values and None not in world.values
    await world.work()
    assert world.values == [0.0] * 4


def unfit(attacker: Attacker, row: sqlite3.Row, part: str) -> dict[str, Any]:
    """Columns of a judged row in which one thing does not fit the others."""
    record, verdict, reward = (
        attacker.get(row[name], kind)
        for name, kind in (("record", EpisodeRecord), ("verdict", Verdict), ("reward", Reward))
    )
    changed: dict[str, Any] = {}
    if part in UNFIT_RECORD:
        record = msgspec.structs.replace(record, **UNFIT_RECORD[part])
    elif part in UNFIT_VERDICT:
        verdict = msgspec.structs.replace(verdict, **UNFIT_VERDICT[part])
        reward = msgspec.structs.replace(reward, verdict=digest_bytes(canonical_bytes(verdict)))
    else:
        reward = msgspec.structs.replace(reward, **UNFIT_REWARD[part])
        changed = {"value": reward.value}
    return changed | {name: attacker.put(of) for name, of in zip(PARTS, (record, verdict, reward), strict=True)}


PARTS = ("record", "verdict", "reward")
UNFIT_RECORD = {
    "episode": {"seed": 12345}, "policy": {"policy": "oracle"}, "snapshot": {"snapshot": FORGED_STATE},
    "bundle": {"bundle": "f" * 64},
}  # fmt: skip
UNFIT_VERDICT = {"verdict": {"grader": "f" * 64}, "score": {"score": None}}
UNFIT_REWARD = {
    "reward": {"verdict": "f" * 64}, "value": {"value": 1.0}, "cause": {"cause": "all_matched"},
    "termination": {"truncated": True},
}  # fmt: skip


@pytest.mark.parametrize("part", [*UNFIT_RECORD, *UNFIT_VERDICT, *UNFIT_REWARD])
async def test_what_does_not_fit_together_is_not_signed_whoever_wrote_it(world: World, part: str) -> None:
    """Marks and all: a defect of ours that mixes episodes up must not become a statement either."""
    await world.break_off(beside_judged=True)
    row = next(row for row in unsealed(world.attacker) if row["state"] == "judged")
    world.attacker.set("episodes", "id", row["id"], **unfit(world.attacker, row, part))
    (now,) = world.journal.chosen_episodes([row["id"]])
    world.attacker.set("marks", "subject", row["id"], mark=RowMarks(world.durable.marks).of_episode(now))
    with pytest.raises(IntegrityError, match=rf"does not fit together \([^)]*\b{part}\b"):
        await world.work()
    sealed = {each["id"] for each in world.attacker.rows("episodes") if each["state"] == "sealed"}
    assert row["id"] not in sealed and 1.0 not in world.values


async def test_another_state_under_the_same_id_is_not_forked(world: World) -> None:
    await world.break_off()
    row = unsealed(world.attacker)[0]  # how many were played by then is chance; one at least is to be played now
    world.attacker.set("episodes", "id", row["id"], state="planned", record=None, verdict=None, reward=None)
    for saved in world.durable.snapshots.values():
        saved.record = msgspec.structs.replace(saved.record, layers=("f" * 64,))
    with pytest.raises(IntegrityError, match="is not the state that was saved"):
        await world.work()


async def test_nothing_is_signed_that_came_of_a_layer_which_was_touched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def touched(_: MemorySandboxes, image: str, layers: Sequence[str]) -> None:
        asked.append(image)
        raise IntegrityError("Layer 0123… was touched while sandboxes stood on it.")

    monkeypatch.setattr(MemorySandboxes, "check_unchanged", touched)
    with pytest.raises(IntegrityError, match="was touched"):
        await world.work()
    assert asked and not world.values
