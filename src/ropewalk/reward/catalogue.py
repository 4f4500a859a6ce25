"""The catalogue: what the counts of a task say about its worth for training. Pure functions and records.

Counts are kept per task, policy and grader; the pass rate of a policy has a Beta(1, 1) prior. Thresholds: a task is
saturated where P(p ≥ 0.7) ≥ 0.95 (8 of 8, 12 of 12, 15 of 16, 21 of 24), watched from a mean of 0.5 on, and dead
after 64 failures without a success, since 0 of 64 leaves at most 0.045 at 95%.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from ropewalk.core.records import Record
from ropewalk.reward.statistics import beta_cdf, beta_quantile, pass_at, wilson
from ropewalk.reward.verdict import Verdict, VerdictStatus

SATURATED_RATE: Final = 0.7
CONFIDENCE: Final = 0.95
WATCH_RATE: Final = 0.5
DEAD_TRIALS: Final = 64
CONTROLS: Final = ("noop", "oracle")
"""Policies that measure the task, not themselves."""


class Call(StrEnum):
    """What to do with a task."""

    KEEP = "keep"
    WATCH = "watch"
    """It is getting easy."""
    SATURATED = "saturated"
    """Too easy to teach anything."""
    DEAD = "dead"
    """Never solved, though the oracle solves it."""
    BROKEN = "broken"
    """The oracle fails, or doing nothing passes."""


class PassCounts(Record):
    """Scored gradings of one task under one policy and grader. What is unscored counts nowhere else."""

    task: str
    policy: str
    grader: str
    successes: int = 0
    trials: int = 0
    unscored: int = 0


class PassRate(Record):
    """What counts say about a pass rate."""

    counts: PassCounts
    mean: float
    """Of the posterior."""
    low: float
    """Equal-tailed 95% interval of the posterior."""
    high: float
    wilson_low: float
    wilson_high: float
    pass_at: dict[str, float]
    """`1`, `4`, `8` …: as far as there are trials."""
    saturated_probability: float
    """P(p ≥ 0.7)."""


class CatalogueEntry(Record):
    """The call on one task under one grader."""

    task: str
    grader: str
    call: Call
    reason: str
    """One line for people."""
    rates: tuple[PassRate, ...]
    """Per policy, by name."""


def count(observations: Iterable[tuple[str, Verdict]]) -> tuple[PassCounts, ...]:
    """Counts of verdicts, each with the name of its policy; sorted by task, grader and policy."""
    tallies: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for policy, verdict in observations:
        tally = tallies[verdict.task, verdict.grader, policy]
        if verdict.status is VerdictStatus.SCORED and verdict.score is not None:
            tally[0] += verdict.score >= 1.0
            tally[1] += 1
        else:
            tally[2] += 1
    return tuple(
        PassCounts(task=task, policy=policy, grader=grader, successes=tally[0], trials=tally[1], unscored=tally[2])
        for (task, grader, policy), tally in sorted(tallies.items())
    )


def merged(counts: Iterable[PassCounts]) -> tuple[PassCounts, ...]:
    """Counts of several runs as one: those of the same task, grader and policy added up; sorted by these."""
    totals: dict[tuple[str, str, str], PassCounts] = {}
    for one in counts:
        key = (one.task, one.grader, one.policy)
        if (so_far := totals.get(key)) is not None:
            one = PassCounts(
                task=one.task, policy=one.policy, grader=one.grader, successes=so_far.successes + one.successes,
                trials=so_far.trials + one.trials, unscored=so_far.unscored + one.unscored,
            )  # fmt: skip
        totals[key] = one
    return tuple(totals[key] for key in sorted(totals))


def pass_rate(counts: PassCounts, *, ks: tuple[int, ...] = (1, 4, 8)) -> PassRate:
    """The posterior for one policy."""
    a, b = 1.0 + counts.successes, 1.0 + counts.trials - counts.successes
    low, high = wilson(counts.successes, counts.trials)
    estimates = {str(k): pass_at(k, counts.successes, counts.trials) for k in ks}
    return PassRate(
        counts=counts,
        mean=a / (a + b),
        low=beta_quantile((1 - CONFIDENCE) / 2, a, b),
        high=beta_quantile((1 + CONFIDENCE) / 2, a, b),
        wilson_low=low,
        wilson_high=high,
        pass_at={k: estimate for k, estimate in estimates.items() if estimate is not None},
        saturated_probability=1.0 - beta_cdf(SATURATED_RATE, a, b),
    )


def decide(counts: Iterable[PassCounts]) -> CatalogueEntry:
    """The call on one task, from the counts of all its policies under one grader.

    The policies `oracle` and `noop` (with or without settings in brackets) are controls.

    Raises:
        ValueError: no counts, or of more than one task or grader.
    """
    rates = tuple(pass_rate(one) for one in sorted(counts, key=lambda one: one.policy))
    if len({(rate.counts.task, rate.counts.grader) for rate in rates}) != 1:
        raise ValueError("counts of exactly one task and grader are needed")
    call, reason = _decide(rates)
    first = rates[0].counts
    return CatalogueEntry(task=first.task, grader=first.grader, call=call, reason=reason, rates=rates)


def _decide(rates: tuple[PassRate, ...]) -> tuple[Call, str]:
    for rate in rates:
        counts, name = rate.counts, _family(rate.counts.policy)
        if name == "oracle" and counts.successes < counts.trials:
            return Call.BROKEN, f"the oracle fails {counts.trials - counts.successes} of {counts.trials} times"
        if name == "noop" and counts.successes:
            return Call.BROKEN, f"doing nothing passes {counts.successes} of {counts.trials} times"
    players = [rate for rate in rates if _family(rate.counts.policy) not in CONTROLS and rate.counts.trials]
    if not players:
        return Call.KEEP, "no policy has tried it yet"
    best = max(players, key=lambda rate: rate.saturated_probability)
    told = f"{best.counts.policy}: {best.counts.successes} of {best.counts.trials}"
    if best.saturated_probability >= CONFIDENCE:
        return Call.SATURATED, f"{told}; {best.saturated_probability:.1%} sure that at least {SATURATED_RATE:.0%} pass"
    trials = sum(rate.counts.trials for rate in players)
    if not any(rate.counts.successes for rate in players):
        if trials >= DEAD_TRIALS:
            return Call.DEAD, f"0 of {trials}: no policy has ever passed"
        return Call.KEEP, f"0 of {trials} so far; called dead after {DEAD_TRIALS}"
    if best.mean > WATCH_RATE:
        return (
            Call.WATCH,
            f"{told}, more than half; called saturated once {SATURATED_RATE:.0%} is {CONFIDENCE:.0%} sure",
        )
    return Call.KEEP, told


def _family(policy: str) -> str:
    return policy.split("(")[0]
