"""Statements of a run: what each step made, out of what. The drafts depend on stored records alone, so that a resumed
run derives the very same drafts and the recorder recognises them."""

from __future__ import annotations

from ropewalk.core.records import Record, digest, to_plain
from ropewalk.interface.episode import EpisodeRecord
from ropewalk.interface.task import Task
from ropewalk.provenance.statement import Activity, Link, StatementDraft
from ropewalk.reward.verdict import Reward, Verdict
from ropewalk.sandbox.contract import SnapshotRecord


class Outcome(Record):
    """An episode that is played and judged: all that its three statements need."""

    episode: EpisodeRecord
    verdict: Verdict
    reward: Reward
    judging_started_s: float
    judged_s: float


def task_link(task: Task) -> Link:
    """How statements name a task."""
    return Link(name=task.id, sha256=digest(task))


def snapshot_draft(task: Task, snapshot: SnapshotRecord, *, started_s: float, ended_s: float) -> StatementDraft:
    """A warmed state was made of a task."""
    return StatementDraft(
        activity=Activity.SNAPSHOT,
        subjects=(Link(name=snapshot.id, sha256=digest(snapshot)),),
        inputs=(task_link(task),),
        predicate={
            "driver": snapshot.driver,
            "layers": list(snapshot.layers),
            "image": snapshot.spec.image,
            "memory": snapshot.memory,
            "data_class": snapshot.data_class,
        },
        started_s=started_s,
        ended_s=ended_s,
    )


def plan_link(plan: str) -> Link:
    """How statements name a run's plan, by the digest of its blob."""
    return Link(name=f"plan:{plan[:32]}", sha256=plan)


def outcome_drafts(
    task: Task, snapshot: SnapshotRecord, outcome: Outcome, *, plan: str
) -> tuple[StatementDraft, ...]:  # fmt: skip
    """Episode, verdict and reward, each out of the ones before; the reward also out of the run's plan (a digest)."""
    episode, verdict, reward = outcome.episode, outcome.verdict, outcome.reward
    task_input = task_link(task)
    played = Link(name=episode.id, sha256=digest(episode))
    judged = Link(name=f"verdict:{digest(verdict)[:32]}", sha256=digest(verdict))
    bundle = () if episode.bundle is None else (Link(name=f"bundle:{episode.bundle[:32]}", sha256=episode.bundle),)
    return (
        StatementDraft(
            activity=Activity.EPISODE,
            subjects=(played, *bundle),
            inputs=(task_input, Link(name=snapshot.id, sha256=digest(snapshot))),
            predicate={
                "run": episode.run,
                "policy": episode.policy,
                "group": episode.group,
                "index": episode.index,
                "seed": episode.seed,
                "steps": len(episode.steps),
                "termination": str(episode.termination),
                "truncated": episode.truncated,
            },
            started_s=episode.started_s,
            ended_s=episode.ended_s,
        ),
        StatementDraft(
            activity=Activity.VERDICT,
            subjects=(judged,),
            inputs=(played, *bundle, task_input, Link(name=f"grader:{task.grader[:32]}", sha256=task.grader)),
            predicate={
                "status": str(verdict.status),
                "score": verdict.score,
                "cause": verdict.cause,
                "level": verdict.level,
                "nonce": verdict.nonce,
            },
            started_s=outcome.judging_started_s,
            ended_s=outcome.judged_s,
        ),
        StatementDraft(
            activity=Activity.REWARD,
            subjects=(Link(name=reward.id, sha256=digest(reward)),),
            inputs=(judged, played, plan_link(plan)),
            predicate=to_plain(reward),
            started_s=outcome.judged_s,
            ended_s=outcome.judged_s,
        ),
    )
