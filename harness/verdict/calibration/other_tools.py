"""How other tools would have judged the same data: each rule restated from its documentation, all experiments at once.

Every function takes values [experiments, arms, passes] and gives [experiments, pairs]: is the pair declared different?
Which arm it would call better is the order of the means (of medians for asv). Pairs run as in `itertools.combinations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import comb
from typing import Any

import numpy as np

from harness.verdict.quantiles import student_t

Rule = Callable[[Any], Any]


def _pairs(values: Any) -> tuple[Any, Any]:
    first, second = np.triu_indices(values.shape[1], 1)
    return values[:, first], values[:, second]


def order_of_means(values: Any) -> Any:
    """The closing summary of hyperfine: the arms in the order of their means, whatever the bars say."""
    x, y = _pairs(values)
    return x.mean(2) != y.mean(2)


def sigma_apart(values: Any) -> Any:
    """Mean +- one standard deviation do not overlap: how such a summary is commonly read."""
    x, y = _pairs(values)
    return np.abs(x.mean(2) - y.mean(2)) > x.std(2, ddof=1) + y.std(2, ddof=1)


def student(values: Any) -> Any:
    """The test of pyperf's compare_to: two-sample t test with pooled variance, 95 %, one test a pair."""
    x, y = _pairs(values)
    passes = values.shape[2]
    error = np.sqrt((x.var(2, ddof=1) + y.var(2, ddof=1)) / passes)
    return np.abs(x.mean(2) - y.mean(2)) > student_t(2 * passes - 2, 0.975) * error


def welch(values: Any) -> Any:
    """Two-sample t test without assuming equal variances, 95 %, one test a pair."""
    x, y = _pairs(values)
    passes = values.shape[2]
    u, v = x.var(2, ddof=1) / passes, y.var(2, ddof=1) / passes
    df = (u + v) ** 2 / ((u**2 + v**2) / (passes - 1))
    return np.abs(x.mean(2) - y.mean(2)) > student_t(df, 0.975) * np.sqrt(u + v)


def min_max(values: Any) -> Any:
    """The spreads, lowest to highest, are disjoint; nothing else is asked."""
    x, y = _pairs(values)
    return (x.max(2) < y.min(2)) | (y.max(2) < x.min(2))


def mann_whitney(values: Any, level: float = 0.05) -> Any:
    """Exact two-sided Mann-Whitney U test, one test a pair."""
    x, y = _pairs(values)
    u = (x[:, :, :, None] > y[:, :, None, :]).sum((2, 3))
    least = np.minimum(u, values.shape[2] ** 2 - u)
    return least <= most_extreme_u(values.shape[2], level)


@cache
def most_extreme_u(passes: int, level: float) -> int:
    """Largest u with P(min(U, n*n - U) <= u) <= level for two samples of n values; -1 if even u = 0 is too likely.

    Counts the arrangements by u: f(i, j, u) of i and j values, the largest being either an x (beats j) or a y.
    """

    @cache
    def ways(i: int, j: int, u: int) -> int:
        if u < 0 or i < 0 or j < 0:
            return 0
        if i == 0 or j == 0:
            return int(u == 0)
        return ways(i - 1, j, u - j) + ways(i, j - 1, u)

    total, tail, u = comb(2 * passes, passes), 0, 0
    while 2 * (tail + ways(passes, passes, u)) <= level * total:
        tail += ways(passes, passes, u)
        u += 1
    return u - 1


def asv(values: Any) -> Any:
    """The test of asv's compare: medians apart by a factor of 1.1, and Mann-Whitney at 0.002 where so few values can
    reach that (7 a side). Below, asv asks for disjoint 99 % intervals of the medians: left out here, which only makes
    it rank more.
    """
    x, y = _pairs(values)
    a, b = np.median(x, axis=2), np.median(y, axis=2)
    apart = np.maximum(a, b) > 1.1 * np.minimum(a, b)
    return apart & mann_whitney(values, 0.002) if most_extreme_u(values.shape[2], 0.002) >= 0 else apart


#: Resamples a pair in criterion's rule. It draws 100,000; 200 keep the study short and blur its level by 1.5 points.
RESAMPLES = 200


def criterion(values: Any) -> Any:
    """criterion.rs: bootstrapped Welch t test over both samples together, p < 0.05, and the 95 % bootstrap interval of
    the relative change wholly beyond the noise threshold of 1 %.
    """
    x, y = _pairs(values)
    passes = values.shape[2]
    rng = np.random.default_rng(passes)  # one set of resamples for all experiments
    mixed = _weights(rng, 2 * passes, passes), _weights(rng, 2 * passes, passes)
    single = _weights(rng, passes, passes), _weights(rng, passes, passes)
    both = np.concatenate([x, y], axis=2)
    both = both - both.mean(2, keepdims=True)
    seen = _t_statistic(x.mean(2), x.var(2, ddof=1), y.mean(2), y.var(2, ddof=1), passes)[..., None]
    drawn = _t_statistic(*_moments(both, mixed[0], passes), *_moments(both, mixed[1], passes), passes)
    significant = (np.abs(drawn) >= np.abs(seen)).mean(2) < 0.05
    change = np.sort(x @ single[0].T / (y @ single[1].T) - 1, axis=2)
    low, high = change[..., int(0.025 * RESAMPLES)], change[..., int(0.975 * RESAMPLES) - 1]
    return significant & ((low > 0.01) | (high < -0.01))


def _weights(rng: np.random.Generator, pool: int, size: int) -> Any:
    """[RESAMPLES, pool]: share of each value in a resample of `size` values."""
    return rng.multinomial(size, np.full(pool, 1 / pool), RESAMPLES) / size


def _moments(values: Any, weights: Any, size: int) -> tuple[Any, Any]:
    mean = values @ weights.T
    return mean, np.maximum((values**2) @ weights.T - mean**2, 0) * size / (size - 1)


def _t_statistic(mean_x: Any, var_x: Any, mean_y: Any, var_y: Any, passes: int) -> Any:
    return (mean_x - mean_y) / np.sqrt(np.maximum(var_x + var_y, 1e-300) / passes)


RULES: Mapping[str, Rule] = {
    "hyperfine_order": order_of_means,
    "hyperfine_sigma": sigma_apart,
    "pyperf_t": student,
    "asv": asv,
    "criterion": criterion,
    "min_max": min_max,
    "welch_t": welch,
    "mann_whitney": mann_whitney,
}
