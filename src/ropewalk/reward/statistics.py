"""Intervals for pass rates, in pure Python: exact enough, and no numeric library in the base install."""

from __future__ import annotations

import math


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X ≤ x) for X ~ Beta(a, b): the regularised incomplete beta function.

    Continued fraction DLMF 8.17.22, evaluated by the modified Lentz method. Absolute error below 1e-12 for the
    parameters that pass counts give.

    Raises:
        ValueError: a or b is not positive.
    """
    if a <= 0 or b <= 0:
        raise ValueError("a and b must be positive")
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - beta_cdf(1.0 - x, b, a)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - (math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)))
    return front * _fraction(x, a, b) / a


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with P(X ≤ x) = p, by bisection.

    Raises:
        ValueError: p is not in [0, 1], or a or b is not positive.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError("p must be in [0, 1]")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def wilson(successes: int, trials: int, *, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval for a rate, by default at 95% (Wilson 1927). Without trials: (0, 1).

    Raises:
        ValueError: the counts make no sense.
    """
    _check(successes, trials)
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def pass_at(k: int, successes: int, trials: int) -> float | None:
    """The unbiased estimate of P(at least one of k samples passes); None with fewer than k trials.

    1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    Raises:
        ValueError: k is not positive, or the counts make no sense.
    """
    _check(successes, trials)
    if k < 1:
        raise ValueError("k must be positive")
    if trials < k:
        return None
    return 1.0 - math.comb(trials - successes, k) / math.comb(trials, k)


def _check(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1.0 + coefficient * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + coefficient / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return value
