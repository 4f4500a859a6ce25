"""Why is the reward flat? Findings about a run, each with its numbers and a next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ropewalk.core.outcomes import Termination
from ropewalk.reward.catalogue import CONTROLS
from ropewalk.reward.verdict import VerdictStatus
from ropewalk.rollout.findings import SUBJECTS_MAX, Finding, FindingKind, Severity
from ropewalk.rollout.loaded import LoadedEpisode, LoadedRun
from ropewalk.rollout.marks import NOT_VOUCHED
from ropewalk.rollout.plan import SETTLED_ENDPOINT
from ropewalk.rollout.summarise import PASS, summary_of

TRUNCATED_SHARE = 0.25
NEVER_CHANGED_SHARE = 0.25
CAUSE_SHARE = 0.5
STAGE_SHARE = 0.6
STAGE_S_MIN = 30.0
"""Less is not worth a word, whatever its share."""
FAILURE_FACTOR = 3.0
"""A policy whose attempts fail this many times as often as all others' may be making them fail."""
MOSTLY_SHARE = 0.5
TRIALS_MIN = 4
"""Below, a task's pass rate says too little to call it easy or hard."""

_ADVICE = {
    "value_mismatch": "read `ropewalk episode diff EPISODE`: the files run, and give other values than the fix.",
    "no_change": "nothing was handed in that differs from the source: see `ropewalk episode show EPISODE`.",
    "incomplete_record": "the held-out tests did not run to their end: see crashes in `ropewalk episode show EPISODE`.",
    "candidate_timeout": "the handed-in code is too slow or hangs: see `ropewalk episode diff EPISODE`.",
    "candidate_out_of_memory": "the handed-in code eats its memory: see `ropewalk episode diff EPISODE`.",
    "bundle_refused": "files were handed in that may not be: tell the policy which files are editable.",
    "no_bundle": "episodes ended without a sandbox to take files from: look at their terminations.",
}
_INFRASTRUCTURE = {
    "sandbox_lost": "see `ropewalk doctor` for memory and limits; lower run.concurrency.",
    "endpoint_unreachable": "check policy.openai.base_url and that the model server runs.",
    "endpoint_overloaded": "lower policy.openai.concurrency.",
    "endpoint_garbage": "ask the endpoint with curl: its answers are no chat completions.",
    "endpoint_refused": "check the model's name and the key's reference.",
    "cost_cap": "raise policy.openai.cost_usd_max, then start a new run: what is unscored stays so.",
    "policy_crashed": "read the log: the policy itself raised.",
    "internal_error": "read the log: this is a mistake in Ropewalk.",
    "unavailable": "see `ropewalk doctor`: the machine had no room (memory, disk, open files).",
    "snapshot_lost": "a state was removed (`ropewalk snapshot rm --force`) while it was needed: start a new run.",
    "starved": "lower run.concurrency: the machine gives gradings too little CPU.",
}


_FOR_GOOD = frozenset({"budget_sandbox_s", "snapshot_lost"})
"""Causes that a resume of the same plan only finds again."""


def findings_of(loaded: LoadedRun) -> tuple[Finding, ...]:
    """Findings about a run, worst first; one `healthy` note where there is nothing to find."""
    checks: tuple[Callable[[LoadedRun], Iterator[Finding]], ...] = (
        _open, _doubted, _controls, _no_advantage, _unscored, _failures, _refused, _causes, _held_out, _overfitted,
        _never_changed, _truncated, _difficulty, _slow_stage,
    )  # fmt: skip
    found = [finding for check in checks for finding in check(loaded)]
    order = list(Severity)
    found.sort(key=lambda finding: order.index(finding.severity))
    if not any(finding.severity is not Severity.NOTE for finding in found):
        found.insert(0, _verdict_on_all(loaded))
    return tuple(found)


def _verdict_on_all(loaded: LoadedRun) -> Finding:
    """Where no check found more than notes: fine, as far as anything was paid."""
    scored = [r for r in loaded.players if _value(r) is not None]
    if any(map(_passed, scored)):
        title, next_step = "Nothing is wrong with this run's rewards.", "export it: `ropewalk export`."
        return _finding(FindingKind.HEALTHY, Severity.NOTE, [], title, next_step)
    if not scored:
        played = " and ".join(name for name in CONTROLS if any(r.row.policy == name for r in loaded.episodes))
        return _finding(
            FindingKind.NOTHING_PAID, Severity.NOTE, [],
            f"Only controls were played ({played}): their rewards say whether tasks work, and teach nothing.",
            "play them with a policy that can learn: --policies search, or openai.",
        )  # fmt: skip
    return _finding(
        FindingKind.NOTHING_PAID, Severity.NOTE, [r.row.id for r in scored],
        f"Not one of {len(scored)} scored episodes was paid{_apart(loaded)}.",
        f"see why: `ropewalk episode show {scored[0].row.id}`; raise run.steps or run.group, or choose easier tasks.",
    )  # fmt: skip


def _open(loaded: LoadedRun) -> Iterator[Finding]:
    missing = [r.row.id for r in loaded.episodes if r.reward is None]
    if loaded.row.state == "open":
        yield _finding(
            FindingKind.OPEN, Severity.WARNING, missing,
            f"The run is not through: {len(missing)} of {len(loaded.episodes)} episodes have no reward yet.",
            f"if nothing works on it now: `ropewalk run --resume {loaded.row.run}`.",
            numbers={"missing": len(missing)},
        )  # fmt: skip


def _controls(loaded: LoadedRun) -> Iterator[Finding]:
    oracle = [r for r in loaded.episodes if r.row.policy == "oracle" and _unpaid(r)]
    if oracle:
        yield _finding(
            FindingKind.ORACLE_FAILS, Severity.SERIOUS, _tasks_of(oracle),
            f"The right answer is not paid on {len(set(_tasks_of(oracle)))} tasks: no policy can learn from them.",
            "drop them from the plan, and build them anew: task or grader is broken.",
        )  # fmt: skip
    noop = [r for r in loaded.episodes if r.row.policy == "noop" and _passed(r)]
    if noop:
        yield _finding(
            FindingKind.NOOP_PAID, Severity.SERIOUS, _tasks_of(noop),
            f"Doing nothing is paid on {len(set(_tasks_of(noop)))} tasks.",
            "drop them from the plan: their held-out tests pass without the fix.",
        )  # fmt: skip


def _no_advantage(loaded: LoadedRun) -> Iterator[Finding]:
    groups = [group for group in loaded.groups if group.policy not in CONTROLS]
    values = {group.id: [_value(r) for r in loaded.of_group(group.id) if r.reward] for group in groups}
    scored = {id: [v for v in vs if v is not None] for id, vs in values.items()}
    judged = [id for id, vs in scored.items() if len(vs) > 1]
    flat = [id for id in judged if len(set(scored[id])) == 1]
    if not flat:
        return
    zero = [id for id in flat if scored[id][0] < PASS]
    title = (
        f"{len(flat)} of {len(judged)} groups had equal rewards throughout, which gives a group-relative trainer no "
        f"gradient: {len(zero)} all unpaid, {len(flat) - len(zero)} all paid."
    )
    steps = []
    if zero:
        steps.append("where all are unpaid, raise run.steps or run.group, or choose easier tasks")
    if len(zero) < len(flat):
        steps.append("where all are paid, choose harder tasks: `ropewalk catalogue ls` names the saturated ones")
    yield _finding(
        FindingKind.NO_ADVANTAGE, Severity.WARNING, flat, title, f"{'; '.join(steps)}.",
        numbers={"groups": len(judged), "flat": len(flat), "all_unpaid": len(zero)},
    )  # fmt: skip


def _unscored(loaded: LoadedRun) -> Iterator[Finding]:
    unscored = [r for r in loaded.episodes if r.reward and r.reward.value is None]
    if unscored:
        causes = Counter(r.reward.cause for r in unscored if r.reward)
        cause, count = causes.most_common(1)[0]
        yield _finding(
            FindingKind.UNSCORED, Severity.WARNING, [r.row.id for r in unscored],
            f"{len(unscored)} of {len(loaded.episodes)} rewards are None (not 0): {_listed(causes)}.",
            _INFRASTRUCTURE.get(cause, f"see `ropewalk episode show {unscored[0].row.id}`."),
            numbers={"unscored": len(unscored), cause: count},
        )  # fmt: skip


def _doubted(loaded: LoadedRun) -> Iterator[Finding]:
    doubted = list(dict.fromkeys(failure.episode for failure in loaded.failures if failure.cause == NOT_VOUCHED))
    if doubted:
        yield _finding(
            FindingKind.JOURNAL_CHANGED, Severity.WARNING, doubted,
            f"Somebody else wrote into the journal while the run was broken off: {len(doubted)} episodes were played "
            "again, and nothing of what it said was signed.",
            "find out who can write the state directory; `ropewalk verify` says whether what is signed still holds.",
            numbers={"episodes": len(doubted)},
        )  # fmt: skip


def _failures(loaded: LoadedRun) -> Iterator[Finding]:
    failures = [failure for failure in loaded.failures if failure.cause != NOT_VOUCHED]
    if not failures:
        return
    policy_of = {r.row.id: r.row.policy for r in loaded.episodes}
    causes = Counter(failure.cause for failure in failures)
    whose, counted = "Our side", loaded.episodes
    if all(map(_of_endpoint, causes)):
        asking = {policy_of.get(failure.episode) for failure in failures}
        whose, counted = "The endpoint", tuple(r for r in loaded.episodes if r.row.policy in asking)
    attempts = len(failures) + sum(map(_came_through, counted))
    yield _finding(
        FindingKind.INFRASTRUCTURE, Severity.NOTE, [failure.episode for failure in failures],
        f"{whose} failed {len(failures)} of {attempts} attempts: {_listed(causes)}.",
        _INFRASTRUCTURE.get(causes.most_common(1)[0][0], "see the log."),
        numbers={"failures": len(failures), "attempts": attempts},
    )  # fmt: skip
    # No policy makes an endpoint fail by what it does to a sandbox.
    inside = [failure for failure in failures if not _of_endpoint(failure.cause)]
    per_policy = Counter(policy_of.get(failure.episode, "") for failure in inside)
    for policy, count in per_policy.items():
        mine = [r for r in loaded.episodes if r.row.policy == policy]
        others = len(loaded.episodes) - len(mine)
        rate = count / (len(mine) + count)
        rest = (len(inside) - count) / max(others, 1)
        if count >= TRIALS_MIN and others and rate > max(FAILURE_FACTOR * rest, 0.1):
            yield _finding(
                FindingKind.INFRASTRUCTURE, Severity.WARNING, [r.row.id for r in mine],
                f"Attempts of {policy} fail on our side {rate:.0%} of the time, others' {rest:.0%}: it may be "
                "breaking its sandboxes to have bad episodes dropped.",
                "look at what it runs: `ropewalk episode show`.",
                numbers={"rate": rate, "others": rest},
            )  # fmt: skip


def _refused(loaded: LoadedRun) -> Iterator[Finding]:
    refused = [group for group in loaded.groups if group.state == "refused"]
    if refused:
        causes = Counter(group.cause for group in refused)
        open_groups = {r.row.group_id for r in loaded.episodes if r.reward is None}
        resumable = any(group.id in open_groups and group.cause not in _FOR_GOOD for group in refused)
        yield _finding(
            FindingKind.GROUP_REFUSED, Severity.WARNING, [group.id for group in refused],
            f"{len(refused)} of {len(loaded.groups)} groups are refused: {_listed(causes)}.",
            _after_mending(loaded, causes) if resumable
            else "mend the cause, then start a new run: everything in this one is decided.",
        )  # fmt: skip


def _after_mending(loaded: LoadedRun, causes: Iterable[str]) -> str:
    step = f"mend the cause, then `ropewalk run --resume {loaded.row.run}` plays what was not played yet."
    if any(map(_of_endpoint, causes)):
        step += f" {SETTLED_ENDPOINT}"
    return step


def _causes(loaded: LoadedRun) -> Iterator[Finding]:
    zeros = [r for r in loaded.players if _unpaid(r)]
    causes = Counter(r.reward.cause for r in zeros if r.reward)
    for cause, count in causes.most_common(1):
        if len(zeros) >= TRIALS_MIN and count >= CAUSE_SHARE * len(zeros):
            meant = [r for r in zeros if r.reward and r.reward.cause == cause]
            changed = [r for r in meant if _changed(r)]
            hint = "no_change" if cause == "value_mismatch" and not changed else cause
            advice = _ADVICE.get(hint, "see `ropewalk episode show EPISODE`.")
            yield _finding(
                FindingKind.CAUSE, Severity.NOTE, [r.row.id for r in meant],
                f"{count} of {len(zeros)} unpaid rewards have the cause {cause}{_apart(loaded)}.",
                advice.replace("EPISODE", (changed or meant)[0].row.id),
                numbers=dict(causes),
            )  # fmt: skip


def _held_out(loaded: LoadedRun) -> Iterator[Finding]:
    """Which parts of the reward are missing: counted, since the names of held-out tests are nobody's to read."""
    shares = []
    for task in loaded.tasks.values():
        unpaid = [
            result.verdict.outcomes
            for result in loaded.players
            if result.row.task == task.id and result.verdict and result.verdict.outcomes and _unpaid(result)
        ]
        if len(unpaid) >= TRIALS_MIN:
            failed = Counter(test for outcomes in unpaid for test, passed in outcomes.items() if not passed)
            mostly = sum(count > MOSTLY_SHARE * len(unpaid) for count in failed.values())
            tests = len({test for outcomes in unpaid for test in outcomes})
            shares.append((mostly / tests, mostly, tests, len(unpaid), task))
    if shares:
        shares.sort(key=lambda share: (share[0], share[4].name))
        told = [f"{mostly} of {tests} on {task.name} ({n} verdicts)" for _, mostly, tests, n, task in shares[:4]]
        more = f" and {len(shares) - 4} more tasks" if len(shares) > 4 else ""
        yield _finding(
            FindingKind.HELD_OUT, Severity.NOTE, [task.id for *_, task in shares],
            f"Held-out tests that fail in most unpaid verdicts: {', '.join(told)}{more}.",
            "where few fail, policies come close: more steps or forks help; where nearly all do, look at the prompt.",
            numbers={task.id: share for share, *_, task in shares},
        )  # fmt: skip


def _overfitted(loaded: LoadedRun) -> Iterator[Finding]:
    over = [r for r in loaded.players if r.record and _unpaid(r) and r.visible_passed]
    if over:
        yield _finding(
            FindingKind.OVERFITTED, Severity.WARNING, [r.row.id for r in over],
            f"{len(over)} episodes made all visible tests pass and failed held-out ones: they fit the tests, not the "
            "cause.",
            f"{_beside_the_fix(loaded, over[0])}; show more tests, or tell the policy that others decide.",
        )  # fmt: skip


def _never_changed(loaded: LoadedRun) -> Iterator[Finding]:
    played = [r for r in loaded.players if r.record and not r.record.termination.ours]
    idle = [r for r in played if not _changed(r)]
    if played and len(idle) >= max(NEVER_CHANGED_SHARE * len(played), 1):
        yield _finding(
            FindingKind.NEVER_CHANGED, Severity.WARNING, [r.row.id for r in idle],
            f"{len(idle)} of {len(played)} episodes never changed a file that may be handed in{_apart(loaded)}.",
            f"see `ropewalk episode show {idle[0].row.id}`: too few steps, wrong paths, or no better edit found.",
        )  # fmt: skip


def _truncated(loaded: LoadedRun) -> Iterator[Finding]:
    played = [r.record for r in loaded.players if r.record and not r.record.termination.ours]
    cut = [record for record in played if record.truncated]
    if played and len(cut) >= max(TRUNCATED_SHARE * len(played), 1):
        timeouts = sum(record.termination is Termination.TIMEOUT for record in cut)
        yield _finding(
            FindingKind.TRUNCATED, Severity.WARNING, [record.id for record in cut],
            f"{len(cut)} of {len(played)} episodes were ended from outside: {timeouts} by time, {len(cut) - timeouts} "
            f"by steps, forks or tokens{_apart(loaded)}.",
            "raise run.episode_timeout_s." if timeouts * 2 > len(cut) else "raise run.steps or the policy's budget.",
        )  # fmt: skip


def _difficulty(loaded: LoadedRun) -> Iterator[Finding]:
    easy, hard = [], []
    for task in loaded.tasks:
        values = [_value(r) for r in loaded.players if r.row.task == task]
        scored = [value for value in values if value is not None]
        if len(scored) >= TRIALS_MIN:
            if min(scored) >= PASS:
                easy.append(task)
            elif max(scored) < PASS:
                hard.append(task)
    if easy:
        yield _finding(
            FindingKind.TOO_EASY, Severity.NOTE, easy, f"{len(easy)} tasks are always solved.",
            "leave them out: they cost rollouts and teach nothing.",
        )  # fmt: skip
    if hard:
        yield _finding(
            FindingKind.TOO_HARD, Severity.NOTE, hard, f"{len(hard)} tasks are never solved.",
            "raise run.steps or run.group, or leave them for a stronger policy.",
        )  # fmt: skip


def _slow_stage(loaded: LoadedRun) -> Iterator[Finding]:
    time_s = summary_of(loaded).time_s
    total = sum(time_s.values())
    if total <= 0:
        return
    stage = max(time_s, key=lambda name: time_s[name])
    if time_s[stage] > STAGE_SHARE * total and time_s[stage] >= STAGE_S_MIN:
        yield Finding(
            kind=FindingKind.SLOW_STAGE,
            severity=Severity.NOTE,
            title=f"{time_s[stage] / total:.0%} of the time went into {stage} ({time_s[stage]:.1f} s).",
            next_step=_faster(stage),
            numbers=time_s,
        )


def _faster(stage: str) -> str:
    advice = {
        "tests": "tasks with quicker visible tests; the rest is the suite's own time.",
        "model": "raise policy.openai.concurrency and run.concurrency together, if the server has room.",
        "sandbox": "see `ropewalk bench` for this machine's cost per fork.",
        "grading": "tasks with fewer or quicker held-out tests.",
    }
    return advice.get(stage, "nothing to do, if the total is small.")


def _beside_the_fix(loaded: LoadedRun, result: LoadedEpisode) -> str:
    """How to see what an episode changed beside the right answer, which only an oracle's episode shows."""
    task = result.row.task
    answers = [r.row.id for r in loaded.episodes if r.row.policy == "oracle" and r.row.task == task and r.record]
    mine = f"`ropewalk episode diff {result.row.id}`"
    if answers:
        return f"compare {mine} with the fix, `ropewalk episode diff {answers[0]}` (the oracle's)"
    oracle = f"`ropewalk run --task {task} --policies oracle`"
    return f"see {mine}; {oracle} plays the fix, for `ropewalk episode diff` of its episode"


def _value(result: LoadedEpisode) -> float | None:
    return result.reward.value if result.reward else None


def _passed(result: LoadedEpisode) -> bool:
    value = _value(result)
    return value is not None and value >= PASS


def _unpaid(result: LoadedEpisode) -> bool:
    return _value(result) is not None and not _passed(result)


def _changed(result: LoadedEpisode) -> bool:
    return result.record is not None and any(step.files_changed for step in result.record.steps)


def _came_through(result: LoadedEpisode) -> bool:
    """Whether its last attempt did not fail on our side; that one is among the failures."""
    if result.record is None or result.record.termination.ours:
        return False
    return result.verdict is None or result.verdict.status is not VerdictStatus.INFRA_ERROR


def _of_endpoint(cause: str) -> bool:
    return cause.startswith("endpoint_")


def _apart(loaded: LoadedRun) -> str:
    """Why such a count is less than the run's episodes."""
    left_out = [name for name in CONTROLS if any(r.row.policy == name for r in loaded.episodes)]
    return f" ({' and '.join(left_out)} left out)" if left_out else ""


def _tasks_of(results: Iterable[LoadedEpisode]) -> list[str]:
    return list(dict.fromkeys(result.row.task for result in results))


def _listed(causes: Counter[str]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in causes.most_common(4))


def _finding(
    kind: FindingKind, severity: Severity, subjects: Sequence[str], title: str, next_step: str,
    *, numbers: dict[str, float] | None = None,
) -> Finding:  # fmt: skip
    shown = tuple(dict.fromkeys(subjects))[:SUBJECTS_MAX]
    return Finding(
        kind=kind, severity=severity, title=title, next_step=next_step, subjects=shown,
        numbers={name: float(value) for name, value in (numbers or {}).items()},
    )  # fmt: skip
