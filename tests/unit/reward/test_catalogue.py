"""Counts, intervals and calls."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.reward.catalogue import Call, PassCounts, count, decide, pass_rate
from ropewalk.reward.statistics import beta_cdf, beta_quantile, pass_at, wilson, wilson_of_clusters
from ropewalk.reward.verdict import Verdict, VerdictStatus


def counts(successes: int, trials: int, policy: str = "search(budget=8)", **fields: str) -> PassCounts:
    return PassCounts(
        task=fields.get("task", "task:1"), policy=policy, grader="g", successes=successes, trials=trials
    )  # fmt: skip


@pytest.mark.parametrize(("successes", "trials", "call"), [
    (8, 8, Call.SATURATED), (7, 7, Call.WATCH), (12, 12, Call.SATURATED), (15, 16, Call.SATURATED),
    (14, 16, Call.WATCH), (21, 24, Call.SATURATED), (20, 24, Call.WATCH), (27, 32, Call.SATURATED),
    (26, 32, Call.WATCH), (51, 64, Call.SATURATED), (50, 64, Call.WATCH), (3, 8, Call.KEEP), (0, 16, Call.KEEP),
    (0, 64, Call.DEAD), (1, 64, Call.KEEP), (0, 0, Call.KEEP),
])  # fmt: skip
def test_calls(successes: int, trials: int, call: Call) -> None:
    entry = decide([counts(successes, trials), counts(3, 3, "oracle"), counts(0, 3, "noop")])
    assert entry.call is call, entry.reason


@pytest.mark.parametrize(("successes", "trials", "said"), [
    (0, 2, "0 of 2 so far; called dead after 64"), (0, 64, "0 of 64: no policy has ever passed"),
    (2, 2, "search(budget=8): 2 of 2, more than half; called saturated once 70% is 95% sure"),
    (8, 8, "search(budget=8): 8 of 8; 96.0% sure that at least 70% pass"), (3, 8, "search(budget=8): 3 of 8"),
])  # fmt: skip
def test_the_reason_is_counts_that_people_can_check(successes: int, trials: int, said: str) -> None:
    assert decide([counts(successes, trials), counts(3, 3, "oracle")]).reason == said


def test_a_broken_task_is_broken_whatever_policies_do() -> None:
    assert decide([counts(8, 8), counts(2, 3, "oracle")]).call is Call.BROKEN
    assert decide([counts(8, 8), counts(1, 3, "noop")]).call is Call.BROKEN
    assert decide([counts(3, 3, "oracle")]).call is Call.KEEP


def test_counts_of_several_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        decide([counts(1, 1), counts(1, 1, task="task:2")])
    with pytest.raises(ValueError, match="exactly one"):
        decide([])


def test_unscored_verdicts_count_as_unscored_alone() -> None:
    def verdict(score: float | None) -> Verdict:
        status = VerdictStatus.SCORED if score is not None else VerdictStatus.INFRA_ERROR
        return Verdict(
            episode="e", task="t", grader="g", bundle=None, status=status, score=score, cause="x", nonce="0" * 32
        )  # fmt: skip

    (found,) = count([("p", verdict(1.0)), ("p", verdict(0.0)), ("p", verdict(None))])
    assert (found.successes, found.trials, found.unscored) == (1, 2, 1)


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.001, 0.999))
def test_quantile_inverts_the_distribution(a: int, b: int, p: float) -> None:
    assert beta_cdf(beta_quantile(p, a, b), a, b) == pytest.approx(p, abs=1e-9)


@given(st.integers(0, 12), st.integers(1, 12), st.floats(0.01, 0.99))
def test_beta_is_a_binomial_tail(successes: int, rest: int, x: float) -> None:
    # DLMF 8.17.5: I_x(m, n-m+1) is the probability of at least m successes in n.
    n, m = successes + rest, successes + 1
    tail = sum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(m, n + 1))
    assert beta_cdf(x, m, n - m + 1) == pytest.approx(tail, abs=1e-12)


def test_known_values() -> None:
    assert beta_cdf(0.5, 1, 1) == pytest.approx(0.5)
    assert pass_rate(counts(0, 16)).high == pytest.approx(0.1951, abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert pass_at(1, 3, 10) == pytest.approx(0.3)
    assert pass_at(4, 3, 10) == pytest.approx(1 - math.comb(7, 4) / math.comb(10, 4))
    assert pass_at(4, 3, 3) is None
    assert pass_rate(counts(3, 6)).pass_at.keys() == {"1", "4"}


@pytest.mark.parametrize("wrong", [
    lambda: wilson(3, 2), lambda: pass_at(0, 1, 2), lambda: beta_cdf(0.5, 0, 1), lambda: beta_quantile(2.0, 1, 1),
])  # fmt: skip
def test_senseless_numbers(wrong: object) -> None:
    with pytest.raises(ValueError):
        wrong()  # type: ignore[operator]


def test_episodes_of_one_task_are_no_independent_trials() -> None:
    def width(clusters: list[tuple[int, int]]) -> float:
        low, high = wilson_of_clusters(clusters)
        return high - low

    pooled = wilson(12, 24)[1] - wilson(12, 24)[0]
    assert width([(2, 4)] * 6) == pytest.approx(pooled), "tasks without differences are as good as independent trials"
    assert width([(4, 4), (0, 4)] * 3) > 1.6 * pooled
    assert wilson_of_clusters([(4, 4)] * 6) == wilson(6, 6) and wilson_of_clusters([(0, 8)]) == wilson(0, 1)
    assert wilson_of_clusters([]) == wilson_of_clusters([(0, 0)]) == (0.0, 1.0)
    with pytest.raises(ValueError, match="5 successes in 4"):
        wilson_of_clusters([(5, 4)])


def test_intervals_hold_what_they_promise_where_tasks_differ() -> None:
    chance = random.Random(7)
    kept = pooled_kept = 0
    for _ in range(400):
        rates = [chance.betavariate(0.5, 0.5) for _ in range(6)]
        clusters = [(sum(chance.random() < rate for _ in range(4)), 4) for rate in rates]
        low, high = wilson_of_clusters(clusters)
        kept += low <= 0.5 <= high
        low, high = wilson(sum(passed for passed, _ in clusters), 24)
        pooled_kept += low <= 0.5 <= high
    assert kept >= 0.93 * 400 > 0.85 * 400 > pooled_kept


@given(st.lists(st.integers(0, 9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), max_size=9))
def test_such_an_interval_holds_the_rate_and_is_no_narrower(clusters: list[tuple[int, int]]) -> None:
    low, high = wilson_of_clusters(clusters)
    passed, n = sum(s for s, _ in clusters), sum(t for _, t in clusters)
    assert 0 <= low <= high <= 1
    if n:
        assert low - 1e-9 <= passed / n <= high + 1e-9
        assert high - low >= wilson(passed, n)[1] - wilson(passed, n)[0] - 1e-9
