"""Warnings that stand beside a figure and decide nothing: two modes in one arm, an arm that never got warm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, expm1, log
from statistics import median

from harness.metrics import Kind, Metric
from harness.records import Value


@dataclass(frozen=True)
class Modes:
    """Two tight groups of one arm's values: how many lie in the lower, of how many, and the log of the gap between."""

    lower: int
    of: int
    gap: float


def modes(values: Sequence[float]) -> Modes | None:
    """The two groups that an arm's values fall into, if they do.

    Both groups need two trials, and their spans together at most a quarter of the gap: 4 to 10 normal values look so
    by chance in 1 to 7 %; two real modes nearly always.
    """
    if len(values) < 4 or min(values) <= 0:
        return None
    ordered = sorted(values)
    gap, at = max((log(ordered[i] / ordered[i - 1]), i) for i in range(2, len(ordered) - 1))
    spans = log(ordered[at - 1] / ordered[0]) + log(ordered[-1] / ordered[at])
    return Modes(at, len(ordered), gap) if spans <= gap / 4 and gap > 1e-12 else None


def bimodal(arm: str, found: Modes | None, log_ratio: float) -> str | None:
    """A sentence if an arm's two modes lie further apart than the two arms do."""
    if found is None or found.gap <= abs(log_ratio):
        return None
    return (
        f"{arm} lives in two modes: {found.lower} of {found.of} trials lie apart from the others by"
        f" {expm1(min(found.gap, 700.0)) * 100:.2g} %, more than the arms differ; a mean of both is a value that no"
        " trial gave"
    )


def repeats(arm: str, metric: Metric, values: Mapping[int, Value]) -> str | None:
    """A sentence if repeats of what repeats exactly on one host and build differ: all figures of it are in doubt."""
    if metric.kind is not Kind.WINDOWED or len({(cell.value, cell.series) for cell in values.values()}) < 2:
        return None
    found = [cell.value for cell in values.values()]
    return (
        f"{arm}, {metric.name}: {len(found)} trials over the same text gave {min(found):.8g} to {max(found):.8g}; it"
        " should repeat to the last digit on one host and build, and no interval here holds that difference"
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
