"""Makes a run's summary out of its journal and records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ropewalk.reward import catalogue
from ropewalk.reward.statistics import wilson, wilson_of_clusters
from ropewalk.reward.verdict import Reward
from ropewalk.rollout.loaded import LoadedEpisode, LoadedRun
from ropewalk.rollout.metering import add_usage
from ropewalk.rollout.rows import EpisodeState, GroupRow
from ropewalk.rollout.summary import CatalogueCall, EpisodeLine, Interval, PolicyRow, Row, RunSummary

PASS = 1.0
"""A reward from here on counts as passed."""
RUNS_NAMED = 2
"""In a reason, the newest of others."""


def summary_of(loaded: LoadedRun, *, cost: Mapping[str, float] | None = None) -> RunSummary:
    """The summary of a run, also of one that still goes on.

    Args:
        loaded: the run.
        cost: As the cost model names it; goes into the summary as it is.
    """
    played = [result.record for result in loaded.episodes if result.record]
    time_s = _times(loaded.episodes)
    time_s["signing"] = loaded.row.signing_s
    time_s["prepare"] = sum(row.prepare_s for row in loaded.task_rows)
    return RunSummary(
        run=loaded.row.run,
        plan=loaded.plan.id,
        state=loaded.row.state,
        started_s=loaded.row.created_s,
        ended_s=loaded.row.ended_s or max((record.ended_s for record in played), default=loaded.row.created_s),
        rows=tuple(_row(loaded, group) for group in loaded.groups),
        policies=tuple(_policy_row(loaded, policy) for policy in loaded.plan.run.policies),
        catalogue=_catalogue(loaded),
        episodes=tuple(_line(result) for result in loaded.episodes),
        time_s=time_s,
        usage={**_usages(loaded.episodes, loaded), **_preparing(loaded)},
        cost=dict(cost or {}),
    )


def interval(results: Iterable[LoadedEpisode]) -> Interval:
    """The pass rate of what is scored."""
    values = [result.reward.value for result in results if result.reward and result.reward.value is not None]
    passed = sum(value >= PASS for value in values)
    return _interval(passed, len(values), wilson(passed, len(values)))


def interval_over_tasks(results: Iterable[LoadedEpisode]) -> Interval:
    """The pass rate of what is scored, for tasks like these: episodes of one task are much alike."""
    by_task = defaultdict[str, list[LoadedEpisode]](list)
    for result in results:
        by_task[result.row.task].append(result)
    each = [interval(of_task) for of_task in by_task.values()]
    bounds = wilson_of_clusters([(one.passed, one.n) for one in each])
    return _interval(sum(one.passed for one in each), sum(one.n for one in each), bounds)


def _interval(passed: int, n: int, bounds: tuple[float, float]) -> Interval:
    return Interval(passed=passed, n=n, rate=passed / n if n else None, low=bounds[0], high=bounds[1])


def _row(loaded: LoadedRun, group: GroupRow) -> Row:
    results = loaded.of_group(group.id)
    task = loaded.tasks[group.task]
    rewards = [result.reward for result in results if result.reward]
    values = [reward.value for reward in rewards if reward.value is not None]
    return Row(
        task=task.id,
        task_name=task.name,
        kind=str(task.kind),
        policy=group.policy,
        episodes=len(results),
        scored=len(values),
        unscored=len(rewards) - len(values),
        passes=interval(results),
        reward_mean=sum(values) / len(values) if values else None,
        steps_mean=_steps_mean(results),
        terminations=_terminations(results),
        causes=dict(Counter(reward.cause for reward in rewards).most_common()),
        time_s=_times(results),
        usage=_usages(results, loaded),
        advantage=len(set(values)) > 1,
        complete=group.state == "complete",
        refusal=group.cause,
    )


def _policy_row(loaded: LoadedRun, policy: str) -> PolicyRow:
    results = [result for result in loaded.episodes if result.row.policy == policy]
    return PolicyRow(
        policy=policy,
        episodes=len(results),
        unscored=sum(result.reward is not None and result.reward.value is None for result in results),
        passes=interval_over_tasks(results),
        steps_mean=_steps_mean(results),
        terminations=_terminations(results),
        time_s=_times(results),
        usage=_usages(results, loaded),
    )


def _catalogue(loaded: LoadedRun) -> tuple[CatalogueCall, ...]:
    """Of tasks that this run has rewards of; other runs' on the same tasks count as well."""
    calls = []
    for task in loaded.tasks.values():
        seen = [
            (result.reward.policy, result.verdict)
            for result in loaded.episodes
            if result.row.task == task.id and result.verdict and result.reward
        ]
        if not seen:
            continue
        elsewhere = [reward for reward in loaded.elsewhere if reward.task == task.id]
        entry = catalogue.decide(
            catalogue.merged([*catalogue.count(seen), *(_counted(reward, task.grader) for reward in elsewhere)])
        )
        reason = entry.reason + _also_in(sorted({reward.run for reward in elsewhere}))
        calls.append(CatalogueCall(task=task.id, task_name=task.name, call=str(entry.call), reason=reason))
    return tuple(calls)


def _counted(reward: Reward, grader: str) -> catalogue.PassCounts:
    """One reward. Its task names the grader, so that equal tasks are graded alike."""
    scored, passed = reward.value is not None, reward.value is not None and reward.value >= PASS
    return catalogue.PassCounts(
        task=reward.task, policy=reward.policy, grader=grader, successes=int(passed),
        trials=int(scored), unscored=int(not scored),
    )  # fmt: skip


def _also_in(runs: Sequence[str]) -> str:
    """Which other runs the counts are from."""
    if not runs:
        return ""
    named, more = ", ".join(runs[-RUNS_NAMED:]), len(runs) - RUNS_NAMED
    return f" (with {named}{f' and {more} more' if more > 0 else ''})"


def _line(result: LoadedEpisode) -> EpisodeLine:
    record, reward, row = result.record, result.reward, result.row
    kept = [step.snapshot for step in record.steps if step.snapshot] if record else []
    unpaid = reward is not None and (reward.value is None or reward.value < PASS)
    return EpisodeLine(
        episode=row.id,
        task=row.task,
        policy=row.policy,
        index=row.position,
        steps=len(record.steps) if record else 0,
        attempts=row.attempt - (row.state is EpisodeState.PLANNED),
        termination=record.termination if record else None,
        truncated=bool(record and record.truncated),
        value=reward.value if reward else None,
        cause=reward.cause if reward else row.cause,
        reward=reward.id if reward else None,
        duration_s=record.ended_s - record.started_s if record else 0.0,
        kept_snapshot=kept[-1] if kept and unpaid else None,
    )


def _steps_mean(results: Sequence[LoadedEpisode]) -> float:
    counts = [len(result.record.steps) for result in results if result.record]
    return sum(counts) / len(counts) if counts else 0.0


def _terminations(results: Iterable[LoadedEpisode]) -> dict[str, int]:
    return dict(Counter(str(result.record.termination) for result in results if result.record).most_common())


def _times(results: Iterable[LoadedEpisode]) -> dict[str, float]:
    total = dict.fromkeys(("sandbox", "tests", "model", "policy", "grading"), 0.0)
    for result in results:
        if result.record:
            add_usage(total, result.record.time_s)
        if result.verdict:
            total["grading"] += result.verdict.usage.get("duration_s", 0.0)
    return total


def _usages(results: Sequence[LoadedEpisode], loaded: LoadedRun) -> dict[str, float]:
    """See `Row.usage`; attempts that were made again count as their episode's."""
    total: dict[str, float] = {}
    held = []
    apart = _apart(loaded)
    for result in results:
        usage = result.record.usage if result.record else {}
        # What it holds alone is known of its end, when little runs: a host must have room for the peak.
        if memory := usage.get("memory_bytes_peak") or usage.get("memory_bytes_unique"):
            held.append(memory)
        for each in [usage, *apart["play", result.row.id]]:
            # Records of before this was told apart: all that lived was measured.
            add_usage(total, {"cpu_sandbox_s": each["sandbox_s"], **each} if "cpu_s" in each else each)
        for each in apart["grade", result.row.id] or _by_verdict(result):
            add_usage(total, {f"grading_{name}": value for name, value in each.items()})
    if held:
        total["memory_bytes_mean"] = sum(held) / len(held)
    if (openai := loaded.plan.policy.openai) and "tokens_prompt" in total:
        total["model_usd"] = openai.usd(total["tokens_prompt"], total.get("tokens_completion", 0.0))
    return total


def _preparing(loaded: LoadedRun) -> dict[str, float]:
    total: dict[str, float] = {}
    for used in loaded.usages:
        if used.stage == "prepare":
            add_usage(total, {f"prepare_{name}": value for name, value in used.usage.items()})
    return total


def _apart(loaded: LoadedRun) -> defaultdict[tuple[str, str], list[dict[str, float]]]:
    """What no record says, by stage and episode."""
    found = defaultdict[tuple[str, str], list[dict[str, float]]](list)
    for used in loaded.usages:
        found[used.stage, used.episode].append(used.usage)
    return found


def _by_verdict(result: LoadedEpisode) -> list[dict[str, float]]:
    """Of gradings whose sandboxes were not counted: about as much."""
    if not result.verdict or "duration_s" not in result.verdict.usage:
        return []
    used, lived_s = result.verdict.usage, result.verdict.usage["duration_s"]
    measured = {"cpu_s": used["cpu_s"], "cpu_sandbox_s": lived_s} if "cpu_s" in used else {}
    return [{"sandbox_s": lived_s, **measured}]
