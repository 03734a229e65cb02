"""One pair of arms on one metric in two runs: what forbids to compare it, and the rule for its kind of metric."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from harness.metrics import Kind, Metric
from harness.verdict.agreed import Agreed, Key, PairAgreement, RunEvidence
from harness.verdict.agreement_rule import judge_difference, judge_exact, judge_windows
from harness.verdict.types import Code, Interval, Judgement, PairVerdict, Refused, Unknown

#: Refusals that leave a run's ratio standing; any other voids it, and nothing can be said by it.
_BEARABLE = frozenset(
    {
        Code.SPREADS_OVERLAP,
        Code.INTERVAL_CONTAINS_ONE,
        Code.WITHIN_MARGIN,
        Code.ORDER_CONFOUNDED,
        Code.BRACKETS_OVERLAP,
        Code.TOO_FEW_PASSES,
    }
)


@dataclass(frozen=True)
class Barrier:
    """What forbids to compare. `whole`: why nothing at all can be; None if something can."""

    whole: str | None
    key: Key

    def on(self, metric: Metric) -> str | None:
        """Why that metric cannot be compared; None if it can."""
        if self.whole is not None:
            return self.whole
        differs = self.key.on(metric)
        return f"the comparison key differs: {'; '.join(differs)}" if differs else None


@dataclass(frozen=True)
class Two:
    """Two runs and what forbids to compare them. `margin`: where the experiment states none."""

    first: RunEvidence
    second: RunEvidence
    barrier: Barrier
    margin: float


_Found = tuple[Agreed, Interval | Unknown, str]


def pair_agreement(one: PairVerdict, other: PairVerdict | None, two: Two) -> PairAgreement:
    """Judge one pair; `one` and `other` are its verdicts in the first and the second run, None if it has none there."""
    agreement, difference, why = _found(one, other, two)
    return PairAgreement(
        metric=one.metric.name,
        a=one.a,
        b=one.b,
        agreement=agreement,
        ratios=(one.ratio, _turned_ratio(one, other)),
        difference=difference,
        why=why,
    )


def _found(one: PairVerdict, other: PairVerdict | None, two: Two) -> _Found:
    forbidden = two.barrier.on(one.metric)
    if other is None:
        return _not_comparable(forbidden or "the second run has no verdict on this pair and metric")
    if void := forbidden or _redefined(one.metric, other.metric) or _void(one, "first") or _void(other, "second"):
        return _not_comparable(void)
    stated = _margin(one.metric.name, two)
    if one.metric.kind is Kind.EXACT:
        return _exact(one, two.first.judgement, two.second.judgement, stated)
    if Code.TOO_FEW_PASSES in (*one.codes, *other.codes):
        why = "a run has too few complete passes to confirm or contradict anything"
        return Agreed.IMPRECISE, Unknown(why), why
    margin = two.margin if stated is None else stated
    arms = sum(one.metric.name in arm.metrics for arm in two.first.judgement.arms.values())
    pairs = max(arms * (arms - 1) // 2, 1)
    if one.metric.kind is Kind.WINDOWED:
        return _windows(one, two, margin, pairs)
    found = _sampled(one, other, margin, pairs)
    return _peak(one, two, found) if one.metric.kind is Kind.PEAK else found


def _redefined(one: Metric, other: Metric) -> str | None:
    """An experiment's identity names its metrics, and no more: a metric of one's own may mean two things."""
    if (one.unit, one.better, one.kind) == (other.unit, other.better, other.kind):
        return None
    return f"the two runs define {one.name} differently (unit, direction or kind)"


def _margin(metric: str, two: Two) -> float | None:
    """The margin stated for a metric; where two runs state different ones (it is no part of an experiment's identity),
    the narrower: a margin that was widened since confirms nothing.
    """
    margins = (run.experiment.margins for run in (two.first, two.second))
    return min((stated[metric] for stated in margins if metric in stated), default=None)


def _not_comparable(why: str) -> _Found:
    return Agreed.NOT_COMPARABLE, Unknown(why), why


def _void(verdict: PairVerdict, name: str) -> str | None:
    if isinstance(verdict.outcome, Refused):
        bad = [reason for reason in verdict.outcome.reasons if reason.code not in _BEARABLE]
        if bad:
            return f"the {name} run cannot speak for this pair: " + "; ".join(reason.sentence for reason in bad)
    return None


def _turned_ratio(first: PairVerdict, second: PairVerdict | None) -> float | Unknown:
    if second is None:
        return Unknown("no verdict")
    if isinstance(second.ratio, Unknown) or first.a == second.a:
        return second.ratio
    return 1 / second.ratio


def _sampled(one: PairVerdict, two: PairVerdict, margin: float, pairs: int) -> _Found:
    if isinstance(one.estimate, Unknown) or isinstance(two.estimate, Unknown):
        return _not_comparable("one of the runs has no interval for this pair")
    turned = two.estimate.log_ratio if one.a == two.a else -two.estimate.log_ratio
    return judge_difference(turned - one.estimate.log_ratio, one.estimate, two.estimate, margin, pairs=pairs)


def _peak(verdict: PairVerdict, two: Two, found: _Found) -> _Found:
    """A contradiction stands only where the ratios that the brackets of the peaks allow are disjoint: a sampler that
    missed more on one host is none.
    """
    (low, high), (other_low, other_high) = (_bracket(verdict, run) for run in (two.first, two.second))
    if found[0] is not Agreed.CONTRADICTED or high < other_low or other_high < low:
        return found
    why = f"{found[2].partition(':')[0]}, but the ratios that the peaks' brackets allow overlap"
    return Agreed.IMPRECISE, found[1], why


def _bracket(verdict: PairVerdict, run: RunEvidence) -> tuple[float, float]:
    """Least and largest ratio a/b that every trial's bracket allows; a peak without an upper bound allows any."""
    from harness.verdict.cells import collect

    cells = collect(run.experiment, run.records)
    ends = []
    for arm in (verdict.a, verdict.b):
        values = cells.values(arm, verdict.metric.name).values()
        uppers = [inf if value.upper is None else value.upper for value in values]
        ends.append((min(value.value if value.lower is None else value.lower for value in values), max(uppers)))
    (a_low, a_high), (b_low, b_high) = ends
    return a_low / b_high, a_high / b_low


def _windows(verdict: PairVerdict, two: Two, margin: float, pairs: int) -> _Found:
    from harness.verdict.cells import collect, collect_scorings
    from harness.verdict.repeatable import window_ratios

    found = []
    for run in (two.first, two.second):
        choose = collect_scorings if run.experiment.scored_apart else collect
        cells = choose(run.experiment, run.records)
        arms = (cells.values(arm, verdict.metric.name) for arm in (verdict.a, verdict.b))
        found.append(window_ratios(verdict.a, verdict.b, *arms))
    here, there = found
    if isinstance(here, Unknown) or isinstance(there, Unknown):
        return _not_comparable(next(side.why for side in (here, there) if isinstance(side, Unknown)))
    if len(here) != len(there):
        return _not_comparable(f"{len(here)} windows against {len(there)}: not the same text")
    return judge_windows(here, there, margin, pairs=pairs)


def _exact(verdict: PairVerdict, first: Judgement, second: Judgement, margin: float | None) -> _Found:
    name, arms = verdict.metric.name, (verdict.a, verdict.b)
    if any(name not in run.arms[arm].metrics for run in (first, second) for arm in arms):
        return _not_comparable("an arm has no value of this exact metric in one of the runs")
    one, two = ([run.arms[arm].metrics[name].median for arm in arms] for run in (first, second))
    return judge_exact(one, two, verdict.metric.resolution or 0.0, margin)
