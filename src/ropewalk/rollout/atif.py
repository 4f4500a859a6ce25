"""Trajectories in Harbor's Agent Trajectory Interchange Format, version 1.8.

Field names and rules as the models in harbor 0.26.0 (`harbor.models.trajectories`) check them:
https://harborframework.com/docs/trajectory-format. What ATIF has no field for stands under `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from ropewalk.core.clock import utc
from ropewalk.interface.episode import EpisodeRecord, Step
from ropewalk.rollout.chat import shown
from ropewalk.rollout.episodes.tools import tool_definitions
from ropewalk.rollout.export import mask_of
from ropewalk.rollout.loaded import LoadedEpisode, LoadedRun, whole_record
from ropewalk.store.contract import Blobs

SCHEMA_VERSION = "ATIF-v1.8"


def export_atif(loaded: LoadedRun, blobs: Blobs) -> Iterator[dict[str, Any]]:
    """One trajectory document per signed reward, in the order of the plan."""
    for result in loaded.episodes:
        if result.reward and (record := whole_record(blobs, result.row)):
            yield atif(loaded, result, record)


def atif(loaded: LoadedRun, result: LoadedEpisode, record: EpisodeRecord) -> dict[str, Any]:
    """One episode as an ATIF document."""
    model = (
        loaded.plan.policy.openai.model if record.policy.startswith("openai") and loaded.plan.policy.openai else None
    )
    reward = result.reward
    group = next(group for group in loaded.groups if group.id == record.group)
    agent: dict[str, Any] = {"name": f"ropewalk/{result.row.policy}", "version": version("ropewalk")}
    if model:
        agent |= {"model_name": model, "tool_definitions": tool_definitions()}
    agent["extra"] = {"policy": record.policy, "seed": record.seed}
    prompt = None if _speaks(record) else loaded.tasks[record.task].prompt
    steps = list(_steps(record, prompt=prompt, model=model is not None))
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": record.run,
        "trajectory_id": record.id,
        "agent": agent,
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _final(record, len(steps)),
        "extra": {
            "task": record.task,
            "group": record.group,
            "reward": reward.value if reward else None,
            "reward_id": reward.id if reward else None,
            "cause": reward.cause if reward else None,
            "termination": str(record.termination),
            "truncated": record.truncated,
            "mask": mask_of(result, complete=group.state == "complete"),
        },
    }


def _speaks(record: EpisodeRecord) -> bool:
    return any(step.messages for step in record.steps)


def _steps(record: EpisodeRecord, *, prompt: str | None, model: bool) -> Iterator[dict[str, Any]]:
    elapsed_s = record.started_s
    if prompt is not None:
        yield {"timestamp": utc(elapsed_s), "source": "user", "message": prompt}
    for step in record.steps:
        for message in step.messages:
            if message.role in ("system", "user"):
                yield {"timestamp": utc(elapsed_s), "source": message.role, "message": message.content}
        elapsed_s += step.duration_s
        yield _agent_step(step, elapsed_s, model=model)


def _agent_step(step: Step, at_s: float, *, model: bool) -> dict[str, Any]:
    said = [message.content for message in step.messages if message.role == "assistant"]
    calls = [
        {
            # Unique within the trajectory, as a model's own ids need not be.
            "tool_call_id": f"{step.index}.{number}",
            "function_name": call.name,
            "arguments": call.arguments,
            **({"extra": {"id": call.id}} if call.id else {}),
        }
        for number, call in enumerate(step.calls, 1)
    ]
    plain: dict[str, Any] = {
        "timestamp": utc(at_s),
        "source": "agent",
        "message": "\n".join(said),
        # Without a model the step is a deterministic dispatch, which has no metrics.
        "llm_call_count": 1 if model else 0,
    }
    if calls:
        plain["tool_calls"] = calls
        plain["observation"] = {
            "results": [
                {
                    "source_call_id": f"{step.index}.{number}",
                    "content": shown(result),
                    "extra": {"exit_code": result.exit_code, "termination": str(result.termination)},
                }
                for number, result in enumerate(step.results, 1)
            ]
        }
    if model:
        plain["metrics"] = {
            "prompt_tokens": step.tokens.get("prompt", 0),
            "completion_tokens": step.tokens.get("completion", 0),
        }
    plain["extra"] = {"files_changed": step.files_changed, "duration_s": step.duration_s}
    return plain


def _final(record: EpisodeRecord, steps: int) -> dict[str, Any]:
    metrics: dict[str, Any] = {"total_steps": steps, "extra": {"usage": record.usage, "time_s": record.time_s}}
    if "tokens_prompt" in record.usage:
        metrics["total_prompt_tokens"] = int(record.usage["tokens_prompt"])
        metrics["total_completion_tokens"] = int(record.usage.get("tokens_completion", 0))
    return metrics
