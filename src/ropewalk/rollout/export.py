"""A run's trajectories for a trainer, one JSON object per episode and line.

Rewards that are None stay null, and `mask` says by type what a trainer must leave out. Format:
docs/design/formats/exports.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ropewalk.core.records import json_text, to_plain
from ropewalk.interface.episode import EpisodeRecord, Step
from ropewalk.rollout.chat import conversation
from ropewalk.rollout.loaded import LoadedEpisode, LoadedRun, whole_record
from ropewalk.store.contract import Blobs

FORMAT = "ropewalk.trajectories/1"


def export_jsonl(loaded: LoadedRun, blobs: Blobs) -> Iterator[bytes]:
    """Lines, each with its line break: one per signed reward, in the order of the plan."""
    for result in loaded.episodes:
        if result.reward and (record := whole_record(blobs, result.row)):
            plain = trajectory(loaded, result, record)
            yield json_text(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def trajectory(loaded: LoadedRun, result: LoadedEpisode, record: EpisodeRecord) -> dict[str, Any]:
    """One episode as plain data."""
    reward, verdict = result.reward, result.verdict
    assert reward is not None and verdict is not None
    group = next(group for group in loaded.groups if group.id == record.group)
    task = loaded.tasks[record.task]
    return {
        "format": FORMAT,
        "run": record.run,
        "episode": record.id,
        "task": record.task,
        "task_name": task.name,
        "prompt": task.prompt,
        "policy": record.policy,
        "group": record.group,
        "index": record.index,
        "seed": record.seed,
        "steps": [_step(step) for step in record.steps],
        "messages": list(conversation(record.steps)),
        "reward": reward.value,
        "reward_id": reward.id,
        "cause": reward.cause,
        "verdict": {
            "status": str(verdict.status),
            "level": verdict.level,
            # Counted: who has the names of held-out tests could train on them.
            "held_out": len(verdict.outcomes),
            "held_out_failed": sum(not passed for passed in verdict.outcomes.values()),
        },
        "termination": str(record.termination),
        "terminated": not record.truncated,
        "truncated": record.truncated,
        "mask": mask_of(result, complete=group.state == "complete"),
        "data_class": task.data_class,
        "usage": record.usage,
    }


def mask_of(result: LoadedEpisode, *, complete: bool) -> dict[str, bool]:
    """What a trainer must leave out, each by its reason. `loss`: whether the episode may enter the loss at all."""
    reward = result.reward
    unscored = reward is None or reward.value is None
    ours = reward is not None and reward.termination.ours
    return {
        "unscored": unscored,
        "infrastructure": ours,
        "truncated": reward is not None and reward.truncated,
        "group_incomplete": not complete,
        "loss": not unscored and not ours and complete,
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "index": step.index,
        "actions": [to_plain(call) for call in step.calls],
        "results": [to_plain(result) for result in step.results],
        "files_changed": step.files_changed,
        "duration_s": step.duration_s,
        "tokens": step.tokens,
    }
