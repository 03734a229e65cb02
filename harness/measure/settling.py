"""Settled: the first stretch of at least 3 s in which memory rises or falls by less than 1 MiB/s. Pure.

The slope is that of the least-squares line, so that one page of noise at either end decides nothing; a step inside the
stretch counts 1.5 times its height over the length, so a step of 2 MiB or more is not settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from harness.units import MIB

WINDOW_S: Final = 3.0
SLOPE: Final = float(MIB)  # bytes per second


@dataclass(frozen=True)
class Settled:
    """A steady level. `level`: bytes, median of the stretch; `begin`, `end`: seconds; `slope`: bytes per second."""

    level: int
    begin: float
    end: float
    slope: float


@dataclass(frozen=True)
class NeverSettled:
    """No steady level came; `why` is one sentence."""

    why: str


def settle(
    times: Sequence[float], values: Sequence[int], *, window_s: float = WINDOW_S, slope_limit: float = SLOPE
) -> Settled | NeverSettled:
    """The first settled stretch of a series. `times`: seconds, ascending; `values`: bytes, one for each time."""
    if len(times) < 3 or times[-1] - times[0] < window_s:
        held = times[-1] - times[0] if len(times) > 1 else 0.0
        return NeverSettled(f"{held:.1f} s were sampled; a settled stretch takes {window_s:.0f} s")
    end, least = 0, float("inf")
    for begin in range(len(times)):
        while end < len(times) and times[end] - times[begin] < window_s:
            end += 1
        if end == len(times):
            break
        rate = slope(times[begin : end + 1], values[begin : end + 1])
        if abs(rate) < slope_limit:
            level = int(median(values[begin : end + 1]))
            return Settled(level, times[begin], times[end], rate)
        least = min(least, abs(rate))
    return NeverSettled(
        f"never settled: in {times[-1] - times[0]:.1f} s the flattest {window_s:.0f} s still moved by"
        f" {least / MIB:.2f} MiB/s (limit {slope_limit / MIB:.0f})"
    )


def slope(times: Sequence[float], values: Sequence[int]) -> float:
    """Least-squares slope; `values` per second."""
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    if spread == 0:
        return 0.0
    return sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values, strict=True)) / spread
