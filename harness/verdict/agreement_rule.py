"""The rule by which two ratios agree: one difference, its error, a margin stated in advance.

`confirmed` asks for equivalence of the two ratios inside the margin, and nothing less will do: "the same verdict and
inside the prediction interval" lets a true shift of 1 % through 86 % of the time at 1 % noise and 5 passes. Overlap of
two intervals is not a test of agreement either.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, inf, log, log1p, sqrt
from statistics import fmean, variance

from harness.verdict.agreed import Agreed
from harness.verdict.types import Estimate, Interval

Found = tuple[Agreed, Interval, str]

METHOD = "difference of two log ratios, Welch-Satterthwaite"
PAIRED_METHOD = "difference of two log ratios, paired over the same windows"


def judge_difference(delta: float, one: Estimate, two: Estimate, margin: float, *, pairs: int = 1) -> Found:
    """The verdict on `delta` = d2 - d1 in logs of two independent estimates, see `judge_delta`."""
    return judge_delta(delta, hypot(one.standard_error, two.standard_error), _welch_df(one, two), margin, pairs=pairs)


def judge_delta(delta: float, error: float, df: float, margin: float, *, pairs: int = 1, method: str = METHOD) -> Found:
    """`confirmed`: the 95 % interval of the difference lies inside the margin. `contradicted`: the 95 % interval that
    holds for all `pairs` of the metric at once lies beyond the margin.

    So a shift as large as the margin is confirmed in 2.5 % of pairs of runs (a 90 % interval, as two one-sided tests at
    5 % would take, lets exactly 5 % through, which is not under 5 %). And the contradiction is simultaneous because it
    decides an exit code: of 10 pairs at noise far above the margin, one in three runs would be contradicted by chance.
    """
    from harness.verdict.quantiles import student_t

    own, all_pairs = (float(student_t(df, 1 - 0.025 / count)) * error for count in (1, pairs))
    room = log1p(margin)
    interval = Interval(delta - own, delta + own, 0.95, method)
    shown = (
        f"the second ratio is {exp(delta):.4g} times the first"
        f" ({Interval(exp(interval.low), exp(interval.high), interval.level, interval.method).words})"
    )
    if abs(delta) + own < room:
        return Agreed.CONFIRMED, interval, f"{shown}: equivalent inside the margin of {margin:.3g}"
    if abs(delta) - all_pairs > room:
        why = f"{shown}: not 1, and beyond the margin of {margin:.3g}; on another host this may be a real interaction"
        return Agreed.CONTRADICTED, interval, why
    return Agreed.IMPRECISE, interval, f"{shown}: neither equivalent inside {margin:.3g} nor apart beyond it"


def judge_windows(first: Sequence[float], second: Sequence[float], margin: float, *, pairs: int = 1) -> Found:
    """Perplexity: the log ratio of each window in both runs. The text is the same, so its windows are paired: what
    differs from window to window but not from run to run is no noise. Both as long, at least two.
    """
    changes = [y - x for x, y in zip(first, second, strict=True)]
    error = sqrt(max(variance(changes), 1e-12) / len(changes))  # a log is known to one part in a million, see metrics
    return judge_delta(fmean(changes), error, len(changes) - 1, margin, pairs=pairs, method=PAIRED_METHOD)


def judge_exact(first: Sequence[float], second: Sequence[float], resolution: float, margin: float | None) -> Found:
    """Exact metrics carry no noise to be imprecise about: the values of the two arms, a and b, are the same in both
    runs, or they are not. Where the experiment states a margin for the metric, ratios that agree inside it will do.
    """
    delta = log(second[0] / second[1]) - log(first[0] / first[1])
    interval = Interval(delta, delta, 1.0, "exact")
    if margin is not None:
        inside = abs(delta) < log1p(margin)
        where = f"{'inside' if inside else 'beyond'} the margin of {margin:.3g}"
        shown = f"the second ratio is {exp(delta):.6g} times the first, {where}"
        return Agreed.CONFIRMED if inside else Agreed.CONTRADICTED, interval, shown
    changed = [f"{x:.10g} against {y:.10g}" for x, y in zip(first, second, strict=True) if abs(x - y) > resolution]
    if changed:
        return Agreed.CONTRADICTED, interval, f"an exact metric must repeat exactly: {'; '.join(changed)}"
    return Agreed.CONFIRMED, interval, "exactly the same values in both runs"


def _welch_df(one: Estimate, two: Estimate) -> float:
    u, v = one.standard_error**2, two.standard_error**2
    if u + v == 0:
        return inf
    return (u + v) ** 2 / (u**2 / one.df + v**2 / two.df)
