"""Quantiles of the distributions that intervals are made of, each worked out once."""

from __future__ import annotations

from functools import cache
from typing import Any

from scipy import special


@cache
def studentized_range(arms: int, df: int, level: float = 0.95) -> float:
    """Upper quantile of the studentized range of `arms` means with `df` degrees of freedom (Tukey's q).

    Two arms need no integral: q = sqrt(2) t. Cached because scipy integrates for 50 ms.
    """
    if arms == 2:
        return float(2**0.5 * student_t(df, (1 + level) / 2))
    from scipy.stats import studentized_range as distribution

    return float(distribution.ppf(level, arms, df))


def student_t(df: Any, probability: float) -> Any:
    """Quantile of Student's t; `df` is a number or an array of numbers, whole or not."""
    return special.stdtrit(df, probability)
