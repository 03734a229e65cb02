"""One ratio on many hosts: whether all of them say the same, and if not, how far apart they are.

Welch's test of equal means from summary figures (each host's log ratio, its standard error and degrees of freedom): it
stays honest with a handful of degrees of freedom a host, where Cochran's Q with its chi-square does not. The spread
between hosts beyond what their errors explain is the estimate of DerSimonian and Laird, never below 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from harness.verdict.types import Estimate, Unknown


@dataclass(frozen=True, kw_only=True)
class Heterogeneity:
    """One pair and metric over all runs that have an estimate. `statistic`: Welch's F with `df` degrees of freedom;
    `p`: how often equal hosts would differ this much. `between`: standard deviation of the log ratio between hosts that
    their errors do not explain (0.02: about 2 %). `largest`: the run furthest from the common ratio, by its place.
    """

    statistic: float
    df: tuple[float, float]
    p: float
    between: float
    largest: int

    @property
    def words(self) -> str:
        """A sentence."""
        if self.p >= 0.05:
            return f"no difference between the hosts shown (p = {self.p:.2g}); that is no proof that there is none"
        return f"the hosts differ (p = {self.p:.2g}), by about {100 * self.between:.2g} % beyond their errors"


def heterogeneity(estimates: Sequence[Estimate]) -> Heterogeneity | Unknown:
    """Judge at least three estimates of one log ratio, each with a standard error above 0."""
    k = len(estimates)
    if k < 3:
        return Unknown(f"{k} runs with an estimate; two runs are judged as a pair, three are the least for this view")
    if any(one.standard_error <= 0 for one in estimates):
        return Unknown("an estimate without an error")
    from scipy import special

    weights = [one.standard_error**-2 for one in estimates]
    whole = sum(weights)
    mean = sum(w * one.log_ratio for w, one in zip(weights, estimates, strict=True)) / whole
    q = sum(w * (one.log_ratio - mean) ** 2 for w, one in zip(weights, estimates, strict=True))
    lack = sum((1 - w / whole) ** 2 / one.df for w, one in zip(weights, estimates, strict=True))
    statistic = q / (k - 1) / (1 + 2 * (k - 2) / (k**2 - 1) * lack)
    df = (float(k - 1), (k**2 - 1) / (3 * lack) if lack else 1e9)
    between = max(q - (k - 1), 0.0) / (whole - sum(w**2 for w in weights) / whole)
    away = [abs(one.log_ratio - mean) for one in estimates]
    return Heterogeneity(
        statistic=statistic,
        df=df,
        p=float(special.fdtrc(*df, statistic)),
        between=sqrt(between),
        largest=away.index(max(away)),
    )
