"""The randomised complete block analysis of one metric: arms are rows, passes are blocks, values are logs.

Two intervals are made for each pair, and the wider one counts:

* pooled: studentized range over all arms on the residual mean square, df = (m-1)(k-1);
* own: the two arms' own residual variances, Welch-Satterthwaite df, at level 1 - `own_alpha(m, k)`.

Alone, the pooled interval ranks identical arms in 7 to 22 % of experiments when their standard deviations range from
0.3 to 3 (3 to 8 arms, eleven patterns of noisy and quiet arms, 20,000 experiments each). Switching between the two by
a test of variances cannot help where passes are few: of eight equal variances with 2 degrees of freedom each, the
largest ratio passes 400 by chance. The wider of the two never switches. It can only be more careful than the pooled
interval, so what holds under equal variances still holds, and the own interval stops the rest. `own_alpha` was fixed
as the simplest level that kept every pattern at 5 % (worst of 528 cells 5.2 % +- 0.16 %). Power for eight equal arms, 5
passes, a difference of three standard deviations: .82, against .92 pooled alone, .22 by per-pair t with Bonferroni and
.66 by shrinking each pair's variance toward the pooled one with 2 prior degrees of freedom (which still errs in 9 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, sqrt
from typing import Any

import numpy as np

from harness.verdict import quantiles

POOLED = "randomised complete block analysis of logs, studentized range over all pairs"
OWN = "randomised complete block analysis of logs, widened to this pair's own variances (Welch-Satterthwaite)"


def own_alpha(arms: int, passes: int) -> float:
    """Level of a pair's own interval: fixed in advance by simulation, see the module's docstring."""
    return float(min(0.025, 0.3 / (arms * passes ** (2 / 3))))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The analysis of m arms by k passes, all in logs (or in the unit, if values were not logged).

    Matrices are m x m, arms in the order of the rows. `df`, `mean_square`: of the pooled residuals. `standard_error`,
    `error_df`: of each difference, as its interval used them. `difference[i][j]`: mean of row i less that of row j.
    `half_width`: of its simultaneous 95 % interval. `equivalence_width`: of the 90 % interval of the single pair.
    `own[i][j]`: the own interval was the wider. `imbalance`: difference of mean positions. `slope`: change per place in
    a pass, `slope_error` its standard error; nan where positions cannot be told from arms. `variance`: per arm.
    """

    arms: int
    passes: int
    df: int
    mean_square: float
    variance: Sequence[float]
    difference: Sequence[Sequence[float]]
    half_width: Sequence[Sequence[float]]
    equivalence_width: Sequence[Sequence[float]]
    standard_error: Sequence[Sequence[float]]
    error_df: Sequence[Sequence[float]]
    own: Sequence[Sequence[bool]]
    imbalance: Sequence[Sequence[float]]
    slope: float
    slope_error: float

    @property
    def slope_bound(self) -> float:
        """The largest position effect that the data leave open at 95 %; infinite where it cannot be estimated."""
        if not isfinite(self.slope_error):
            return float("inf")
        return abs(self.slope) + float(quantiles.student_t(self.df - 1, 0.975)) * self.slope_error


def fit(values: Any, positions: Any, floor: float, family: int) -> Fit:
    """Analyse `values` [m arms, k passes] with `positions` of the same shape; m, k >= 2.

    `floor`: least variance, from the metric's resolution. `family`: arms whose pairs share the 5 %; at least m.
    """
    arms, passes = values.shape
    df = (arms - 1) * (passes - 1)
    means = values.sum(1) / passes
    residual = _swept(values, means)
    squares = (residual * residual).sum(1)
    mean_square = max(float(squares.sum()) / df, floor)
    variance = _arm_variances(squares, mean_square, floor, arms, passes)
    pooled_error, own_error, own_df = _errors(mean_square, variance, passes, df)
    pooled = quantiles.studentized_range(family, df) / sqrt(2) * pooled_error
    if arms > 2:
        own = quantiles.student_t(own_df, 1 - own_alpha(family, passes) / 2) * own_error
        wide = np.maximum(pooled, own)
        equivalence = np.maximum(
            quantiles.student_t(df, 0.95) * pooled_error, quantiles.student_t(own_df, 0.95) * own_error
        )
        is_own = own > pooled
    else:  # the two residual rows mirror each other: the pair's own variance is the pooled one
        wide = np.full((arms, arms), pooled)
        equivalence = np.full((arms, arms), quantiles.student_t(df, 0.95) * pooled_error)
        is_own = np.zeros((arms, arms), dtype=bool)
    place_means = positions.sum(1) / passes
    slope, slope_error = _position_slope(residual, _swept(positions, place_means), floor, df)
    return Fit(
        arms=arms,
        passes=passes,
        df=df,
        mean_square=mean_square,
        variance=variance.tolist(),
        difference=np.subtract.outer(means, means).tolist(),
        half_width=wide.tolist(),
        equivalence_width=equivalence.tolist(),
        standard_error=np.where(is_own, own_error, pooled_error).tolist(),
        error_df=np.where(is_own, own_df, float(df)).tolist(),
        own=is_own.tolist(),
        imbalance=np.abs(np.subtract.outer(place_means, place_means)).tolist(),
        slope=slope,
        slope_error=slope_error,
    )


def _swept(table: Any, row_means: Any) -> Any:
    """The table less its row and column means."""
    rows = table - row_means[:, None]
    return rows - rows.sum(0) / table.shape[0]


def _arm_variances(squares: Any, mean_square: float, floor: float, arms: int, passes: int) -> Any:
    """Each arm's own variance from its row of residuals; unbiased before the floor.

    With independent errors of variance v_i, E[row's squares] / (k-1) = v_i (1 - 2/m) + mean(v) / m, and the residual
    mean square estimates mean(v). Two arms share one residual, so each gets the pooled value.
    """
    if arms == 2:
        return np.full(2, mean_square)
    return np.maximum((squares / (passes - 1) - mean_square / arms) * arms / (arms - 2), floor)


def _errors(mean_square: float, variance: Any, passes: int, df: int) -> tuple[float, Any, Any]:
    """Standard errors of a difference of two means: pooled, own, and the own one's degrees of freedom."""
    total = np.add.outer(variance, variance)
    squared = variance * variance
    own_df = (passes - 1) * total * total / np.add.outer(squared, squared)
    return sqrt(2 * mean_square / passes), np.sqrt(total / passes), np.minimum(own_df, df)


def _position_slope(residual: Any, places: Any, floor: float, df: int) -> tuple[float, float]:
    """Position as a covariate of the block model: slope per place and its standard error."""
    leverage = float((places * places).sum())
    if leverage < 1e-9 or df < 2:
        return float("nan"), float("nan")
    slope = float((places * residual).sum()) / leverage
    left = max(float((residual * residual).sum()) - slope * slope * leverage, 0.0) / (df - 1)
    return slope, sqrt(max(left, floor) / leverage)


def as_fraction(log_value: float) -> float:
    """`0.0198 -> 0.02`: a log ratio as a relative change; infinite where exp overflows."""
    return exp(log_value) - 1 if log_value < 700 else float("inf")
