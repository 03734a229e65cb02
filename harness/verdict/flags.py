"""Warnings that stand beside a figure and decide nothing: two modes in one arm, an arm that never got warm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median

from harness.metrics import Kind, Metric
from harness.records import Value


def bimodal(arm: str, values: Mapping[int, Value], log_ratio: float) -> str | None:
    """A sentence if one arm's values fall into two tight groups that lie further apart than the two arms do.

    Both groups need two trials, and their spans together at most a quarter of the gap: of 4 to 10 normal values, 2 to
    7 % look so by chance; of two real modes, nearly all.
    """
    logs = sorted(log(cell.value) for cell in values.values() if cell.value > 0)
    if len(logs) < 4:
        return None
    at = max(range(2, len(logs) - 1), key=lambda index: logs[index] - logs[index - 1])
    gap = logs[at] - logs[at - 1]
    spans = (logs[at - 1] - logs[0]) + (logs[-1] - logs[at])
    if gap <= abs(log_ratio) or spans > gap / 4 or gap < 1e-12:
        return None
    return (
        f"{arm} lives in two modes: {at} of {len(logs)} trials lie apart from the others by a factor of"
        f" {exp(gap):.3g}, more than the arms differ; a mean of both is a value that no trial gave"
    )


def trend(arm: str, metric: Metric, values: Mapping[int, Value]) -> str | None:
    """A sentence if first and last thirds of the iterations inside trials differ beyond the arm's spread."""
    if metric.kind is not Kind.SAMPLED:
        return None
    drifts = [drift for cell in values.values() if (drift := _drift(cell.series)) is not None]
    if not drifts:
        return None
    found = [cell.value for cell in values.values()]
    typical = median(drifts)
    if min(found) <= 0 or abs(typical) <= log(max(found) / min(found)) or abs(typical) < 1e-9:
        return None
    return (
        f"{arm}, {metric.name}: within a trial the last third of the iterations differs from the first by"
        f" {(exp(typical) - 1) * 100:+.1f} %, more than its trials spread: not at a steady state"
    )


def _drift(series: Sequence[float]) -> float | None:
    third = len(series) // 3
    if third < 1 or min(series) <= 0:
        return None
    return log(median(series[-third:]) / median(series[:third]))
