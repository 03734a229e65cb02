"""Metrics that repeat: exact ones are compared exactly; perplexity is paired over the same text windows.

Repeats of either give no error bar, so the number of passes does not matter. For perplexity the windows are the
replicates: half widths are Student t over windows, Bonferroni over all pairs. A window's own difficulty, which moves
its log-likelihood by far more than arms do, drops out of the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import isfinite, log, sqrt
from statistics import fmean, median, variance

from harness.metrics import Metric
from harness.records import Value
from harness.verdict import quantiles
from harness.verdict.compare import MIN_DF, Comparison, Field
from harness.verdict.types import Unknown

WINDOWS = (
    "negative log-likelihood per token paired over the same text windows, which are the replicates: Student t,"
    " Bonferroni over all pairs"
)


@dataclass(frozen=True)
class Exact:
    """Two exact values: a/b, its log, and whether they are `equal`: closer than the metric's resolution."""

    ratio: float
    log_ratio: float
    equal: bool


def exact(metric: Metric, values: Mapping[str, Mapping[int, Value]]) -> Mapping[tuple[str, str], Exact | Unknown]:
    """Compare exactly; an arm whose repeats differ is no exact value."""
    single = {arm: _one_value(arm, cells) for arm, cells in values.items()}
    return {(a, b): _exact_pair(metric, single[a], single[b]) for a, b in combinations(values, 2)}


def _one_value(arm: str, cells: Mapping[int, Value]) -> float | Unknown:
    found = {cell.value for cell in cells.values()}
    if not found:
        return Unknown(f"{arm} has no value")
    if len(found) > 1:
        return Unknown(f"{arm} gave {len(found)} different values for a metric that repeats exactly")
    value = found.pop()
    if not isfinite(value) or value <= 0:
        return Unknown(f"{arm} reads {value:g}: no ratio can be formed")
    return value


def _exact_pair(metric: Metric, a: float | Unknown, b: float | Unknown) -> Exact | Unknown:
    if isinstance(a, Unknown):
        return a
    if isinstance(b, Unknown):
        return b
    return Exact(a / b, log(a) - log(b), equal=a == b or abs(a - b) < (metric.resolution or 0.0))


def windowed(metric: Metric, values: Mapping[str, Mapping[int, Value]]) -> Field:
    """Compare perplexities: log ratio = mean over windows of the difference of negative log-likelihoods per token.

    `Value.series` holds one negative log-likelihood per window. Repeats of one arm collapse to their median by window.
    """
    series = {arm: window_means(arm, cells) for arm, cells in values.items()}
    family = sum(not isinstance(found, Unknown) for found in series.values())
    pairs = max(family * (family - 1) // 2, 1)
    return Field(
        metric=metric,
        values=values,
        family=family,
        comparisons={(a, b): _window_pair(metric, series[a], series[b], pairs) for a, b in combinations(values, 2)},
        position=Unknown("windows are compared within trials: places in a pass play no part"),
    )


def window_ratios(a: str, b: str, of_a: Mapping[int, Value], of_b: Mapping[int, Value]) -> tuple[float, ...] | Unknown:
    """Log ratio a/b of each window: the difference of the two negative log-likelihoods, at least two windows."""
    one, two = window_means(a, of_a), window_means(b, of_b)
    if isinstance(one, Unknown):
        return one
    if isinstance(two, Unknown):
        return two
    if len(one) != len(two):
        return Unknown(f"{len(one)} windows against {len(two)}: not the same text")
    if len(one) <= MIN_DF:
        return Unknown(f"{len(one)} windows are too few for an interval; {MIN_DF + 1} are the least")
    return tuple(x - y for x, y in zip(one, two, strict=True))


def window_means(arm: str, cells: Mapping[int, Value]) -> tuple[float, ...] | Unknown:
    """Negative log-likelihood per token of each window of one arm, in nats; repeats collapse to their median."""
    kept = [cell.series for cell in cells.values() if cell.series]
    if not kept:
        return Unknown(f"{arm} has no value per window")
    if len({len(windows) for windows in kept}) > 1:
        return Unknown(f"{arm} was scored over different numbers of windows from trial to trial")
    return tuple(median(column) for column in zip(*kept, strict=True))


def _window_pair(
    metric: Metric, a: tuple[float, ...] | Unknown, b: tuple[float, ...] | Unknown, pairs: int
) -> Comparison | Unknown:
    if isinstance(a, Unknown):
        return a
    if isinstance(b, Unknown):
        return b
    if len(a) != len(b):
        return Unknown(f"{len(a)} windows against {len(b)}: not the same text")
    df = len(a) - 1
    if df < MIN_DF:
        return Unknown(f"{len(a)} windows are too few for an interval; {MIN_DF + 1} are the least")
    differences = [x - y for x, y in zip(a, b, strict=True)]
    floor = (metric.resolution or 1e-6) ** 2
    error = sqrt(max(variance(differences), floor) / len(a))
    return Comparison(
        log_ratio=fmean(differences),
        half_width=float(quantiles.student_t(df, 1 - 0.025 / pairs)) * error,
        equivalence_width=float(quantiles.student_t(df, 0.95)) * error,
        standard_error=error,
        error_df=df,
        df=df,
        passes=len(a),
        place=0.0,
        method=WINDOWS,
    )
