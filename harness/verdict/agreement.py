"""Do two runs of one experiment agree? Judged by their within-host ratios, never by their absolute numbers.

For each pair and metric: delta = d2 - d1, the difference of the two log ratios (`agreement_rule`). Before any number is
looked at, three things may forbid to compare: records that are not what was measured, trials that both runs share, and
items of the comparison key that differ and bear on the metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.experiment.types import Claim, ClaimKind
from harness.metrics import Kind, Metric
from harness.records import TrialRecord
from harness.verdict.agreed import Agreed, Agreement, ClaimAgreement, Difference, Fact, Key, PairAgreement, RunEvidence
from harness.verdict.agreement_rule import judge_difference, judge_exact, judge_windows
from harness.verdict.types import Code, Interval, Judgement, PairVerdict, Refused, Unknown

__all__ = [
    "DEFAULT_MARGIN",
    "Agreed",
    "Agreement",
    "ClaimAgreement",
    "Key",
    "PairAgreement",
    "RunEvidence",
    "agree",
    "as_json",
    "compare_keys",
    "judge_difference",
]

#: Margin where the experiment states none for a metric: agreement cannot do without one. The sentence names it.
DEFAULT_MARGIN = 0.02

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
class _Barrier:
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
class _Two:
    """Two runs and what forbids to compare them. `margin`: where the experiment states none."""

    first: RunEvidence
    second: RunEvidence
    barrier: _Barrier
    margin: float


def agree(first: RunEvidence, second: RunEvidence, *, default_margin: float = DEFAULT_MARGIN) -> Agreement:
    """Judge two runs of one experiment against each other. `default_margin`: where the experiment states none."""
    key = compare_keys(first, second)
    problems = tuple(_problems(first, second))
    two = _Two(first, second, _Barrier(_whole(first, second, problems), key), default_margin)
    seen = {(v.metric.name, frozenset((v.a, v.b))): v for v in second.judgement.verdicts}
    return Agreement(
        verdicts=tuple(
            _pair(v, seen.get((v.metric.name, frozenset((v.a, v.b)))), two) for v in first.judgement.verdicts
        ),
        claims=tuple(_claim(claim, two) for claim in first.experiment.claims),
        key=key,
        problems=problems,
        names=(first.name, second.name),
    )


def compare_keys(first: RunEvidence, second: RunEvidence) -> Key:
    """What differs between the two runs' comparison keys. A fact that only one run knows is a difference."""
    one, two = ({"experiment": Fact(run.experiment.identity), **run.key} for run in (first, second))
    return Key(found=tuple(filter(None, (_difference(name, one, two) for name in sorted(one.keys() | two.keys())))))


def _difference(name: str, one: dict[str, Any], two: dict[str, Any]) -> Difference | None:
    here, there = (_fact(side[name]) if name in side else None for side in (one, two))
    if here is not None and there is not None and here.value == there.value:
        return None
    bears = (here or there or Fact(None)).bears
    return Difference(f"{name}: {_shown(here, there)} against {_shown(there, here)}", bears)


def _fact(value: Any) -> Fact:
    return value if isinstance(value, Fact) else Fact(value)


def _shown(fact: Fact | None, other: Fact | None) -> str:
    """A value; of two long lists only what the other lacks."""
    if fact is None or fact.value is None:
        return "not recorded"
    if isinstance(fact.value, list) and other is not None and isinstance(other.value, list):
        only = [item for item in fact.value if item not in other.value]
        return f"{', '.join(map(str, only))} more" if only else "nothing more"
    text = str(fact.value)
    return f"{text[:12]}..." if len(text) == 64 and " " not in text else text


def _problems(first: RunEvidence, second: RunEvidence) -> Iterator[str]:
    for run, word in ((first, "first"), (second, "second")):
        name = f"the {word} run" + (f" ({run.name})" if run.name else "")
        yield from (f"{name}: {problem}" for problem in run.problems)


def _whole(first: RunEvidence, second: RunEvidence, problems: Sequence[str]) -> str | None:
    """Why nothing at all can be compared."""
    if problems:
        return "no evidence: " + "; ".join(problems)
    if _same_trials(first.records, second.records):
        return "both runs hold the same trials: there is no second piece of evidence"
    return None


def _same_trials(first: Sequence[TrialRecord], second: Sequence[TrialRecord]) -> bool:
    """Any trial that stands in both runs, by its digest (or whole, where it carries none)."""
    one = {record.digest for record in first if record.digest}
    two = {record.digest for record in second if record.digest}
    if one or two:
        return bool(one & two)
    return bool(first) and list(first) == list(second)


_Found = tuple[Agreed, Interval | Unknown, str]


def _pair(one: PairVerdict, other: PairVerdict | None, two: _Two) -> PairAgreement:
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


def _found(one: PairVerdict, other: PairVerdict | None, two: _Two) -> _Found:
    forbidden = two.barrier.on(one.metric)
    if other is None:
        return _not_comparable(forbidden or "the second run has no verdict on this pair and metric")
    if void := forbidden or _void(one, "first") or _void(other, "second"):
        return _not_comparable(void)
    stated = two.first.experiment.margins.get(one.metric.name)
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
    return _sampled(one, other, margin, pairs)


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


def _windows(verdict: PairVerdict, two: _Two, margin: float, pairs: int) -> _Found:
    from harness.verdict.cells import collect, collect_scorings
    from harness.verdict.repeatable import window_ratios

    found = []
    for run in (two.first, two.second):
        chosen = collect_scorings if run.experiment.scored_apart else collect
        cells = chosen(run.experiment, run.records)
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


def _claim(claim: Claim, two: _Two) -> ClaimAgreement:
    """A claim is confirmed if both runs judge it alike and decidedly, contradicted if one supports what the other
    contradicts; an undecided one is imprecise.
    """
    pair = (_judged(claim, two.first), _judged(claim, two.second))
    metric = next((metric for metric in two.first.experiment.metrics if metric.name == claim.metric), None)
    forbidden = two.barrier.whole if metric is None else two.barrier.on(metric)
    forbidden = forbidden or _absolute(claim, metric, two)
    if forbidden is not None or "not_comparable" in pair:
        agreement, why = Agreed.NOT_COMPARABLE, forbidden or "a run could not judge this claim"
    elif "undecided" in pair:
        agreement, why = Agreed.IMPRECISE, "a run left this claim undecided"
    elif pair[0] == pair[1]:
        agreement, why = Agreed.CONFIRMED, f"both runs judge it {pair[0]}"
    else:
        agreement, why = Agreed.CONTRADICTED, f"the first run judges it {pair[0]}, the second {pair[1]}"
    return ClaimAgreement(id=claim.id, agreement=agreement, verdicts=pair, why=why)


def _judged(claim: Claim, run: RunEvidence) -> str:
    """How that run judged the claim; `not_comparable` where it has no such claim."""
    return next((found.verdict.value for found in run.judgement.claims if found.id == claim.id), "not_comparable")


def _absolute(claim: Claim, metric: Metric | None, two: _Two) -> str | None:
    """A difference in seconds or tokens per second is an absolute number of its host; one in bytes is not."""
    if claim.kind is not ClaimKind.DIFFERENCE or metric is None or metric.kind is Kind.EXACT or metric.unit == "B":
        return None
    if two.first.host == two.second.host:
        return None
    return f"the claim states a difference in {metric.unit}: absolute figures are never compared across hosts"


def as_json(agreement: Agreement) -> dict[str, Any]:
    """The shape of `harness agree --json`: strict JSON, null where a number could not be worked out."""
    return {
        "verdicts": [
            {
                "metric": pair.metric,
                "a": pair.a,
                "b": pair.b,
                "agreement": pair.agreement.value,
                "ratios": [None if isinstance(ratio, Unknown) else ratio for ratio in pair.ratios],
                "difference_interval": None
                if isinstance(pair.difference, Unknown)
                else [pair.difference.low, pair.difference.high],
                "why": pair.why,
            }
            for pair in agreement.verdicts
        ],
        "claims": [
            {"id": claim.id, "agreement": claim.agreement.value, "verdicts": list(claim.verdicts), "why": claim.why}
            for claim in agreement.claims
        ],
        "key": {"equal": agreement.key.equal, "differs": list(agreement.key.differs)},
        "problems": list(agreement.problems),
    }
