"""Do two runs of one experiment agree? Judged by their within-host ratios, never by their absolute numbers.

For each pair and metric: delta = d2 - d1, the difference of the two log ratios, with Welch-Satterthwaite degrees of
freedom. `confirmed` asks for equivalence of the two ratios inside the stated margin, and nothing less will do: "the
same verdict and inside the prediction interval" lets a true shift of 1 % through 86 % of the time at 1 % noise and 5
passes. Overlap of two intervals is not a test of agreement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, hypot, inf, log, log1p
from typing import Any

from harness.experiment.types import Experiment
from harness.records import TrialRecord
from harness.verdict.types import Code, Estimate, Interval, Judgement, PairVerdict, Refused, Unknown


class Agreed(StrEnum):
    """How two runs stand to each other on one pair and metric."""

    CONFIRMED = "confirmed"
    IMPRECISE = "consistent_but_imprecise"
    CONTRADICTED = "contradicted"
    NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True, kw_only=True)
class PairAgreement:
    """One pair on one metric in two runs. `ratios`: a/b in each. `difference`: 95 % interval of delta, the second
    log ratio less the first (0: the same), or why there is none.
    """

    metric: str
    a: str
    b: str
    agreement: Agreed
    ratios: tuple[float | Unknown, float | Unknown]
    difference: Interval | Unknown
    why: str


@dataclass(frozen=True, kw_only=True)
class ClaimAgreement:
    """One claim in two runs. `verdicts`: as each run judged it."""

    id: str
    agreement: Agreed
    verdicts: tuple[str, str]
    why: str


@dataclass(frozen=True, kw_only=True)
class Key:
    """The comparison key of two runs: what must be equal for their ratios to be compared. `differs`: each item that
    is not, with both values, as a sentence.
    """

    differs: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Nothing in the key differs."""
        return not self.differs


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What two runs say of each other."""

    verdicts: tuple[PairAgreement, ...]
    claims: tuple[ClaimAgreement, ...]
    key: Key


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """One run as agreement needs it. `key`: facts that must be equal in both runs, JSON values by name (experiment
    identity, engine and plugin versions, model digest, threads, instruction sets used, KV bytes, huge pages).
    """

    experiment: Experiment
    records: Sequence[TrialRecord]
    judgement: Judgement
    key: Mapping[str, Any]


#: Margin where the experiment states none for a metric: agreement cannot do without one. The sentence names it.
DEFAULT_MARGIN = 0.02


def agree(first: RunEvidence, second: RunEvidence, *, default_margin: float = DEFAULT_MARGIN) -> Agreement:
    """Judge two runs of one experiment against each other. `default_margin`: where the experiment states none."""
    key = compare_keys(first, second)
    same = _same_trials(first.records, second.records)
    seen = {(v.metric.name, frozenset((v.a, v.b))): v for v in second.judgement.verdicts}
    verdicts = []
    for verdict in first.judgement.verdicts:
        other = seen.get((verdict.metric.name, frozenset((verdict.a, verdict.b))))
        margin = first.experiment.margins.get(verdict.metric.name, default_margin)
        verdicts.append(_pair(verdict, other, margin, _barrier(key, same)))
    return Agreement(
        verdicts=tuple(verdicts), claims=tuple(_claim(first.judgement, second.judgement, _barrier(key, same))), key=key
    )


def compare_keys(first: RunEvidence, second: RunEvidence) -> Key:
    """What differs between the two runs' comparison keys. A fact that only one run knows is a difference."""
    one = {"experiment": first.experiment.identity, **first.key}
    two = {"experiment": second.experiment.identity, **second.key}
    names = sorted(one.keys() | two.keys())
    return Key(
        differs=tuple(
            f"{name}: {one.get(name, 'not recorded')} against {two.get(name, 'not recorded')}"
            for name in names
            if name not in one or name not in two or one[name] != two[name]
        )
    )


def _same_trials(first: Sequence[TrialRecord], second: Sequence[TrialRecord]) -> bool:
    """Any trial that stands in both runs, by its digest (or whole, where it carries none)."""
    one = {record.digest for record in first if record.digest}
    two = {record.digest for record in second if record.digest}
    if one or two:
        return bool(one & two)
    return bool(first) and list(first) == list(second)


def _barrier(key: Key, same: bool) -> str | None:
    """Why nothing at all can be compared; None if it can."""
    if same:
        return "both runs hold the same trials: there is no second piece of evidence"
    if not key.equal:
        return "the comparison key differs: " + "; ".join(key.differs)
    return None


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


def _pair(first: PairVerdict, second: PairVerdict | None, margin: float, barrier: str | None) -> PairAgreement:
    ratio = _turned_ratio(first, second)
    found: tuple[Agreed, Interval | Unknown, str]
    void = barrier or _void(first, "first") or (_void(second, "second") if second is not None else None)
    if second is None:
        found = Agreed.NOT_COMPARABLE, Unknown("no verdict"), "the second run has no verdict on this pair and metric"
    elif void is not None:
        found = Agreed.NOT_COMPARABLE, Unknown(void), void
    elif Code.TOO_FEW_PASSES in (*first.codes, *second.codes):
        why = "a run has too few complete passes to confirm or contradict anything"
        found = Agreed.IMPRECISE, Unknown(why), why
    else:
        found = _judge(first, second, margin)
    return PairAgreement(
        metric=first.metric.name,
        a=first.a,
        b=first.b,
        agreement=found[0],
        ratios=(first.ratio, ratio),
        difference=found[1],
        why=found[2],
    )


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


def _judge(first: PairVerdict, second: PairVerdict, margin: float) -> tuple[Agreed, Interval | Unknown, str]:
    if isinstance(first.estimate, Unknown) or isinstance(second.estimate, Unknown):
        return _judge_exact(first, second, margin)
    one, two = first.estimate, second.estimate
    delta = (two.log_ratio if first.a == second.a else -two.log_ratio) - one.log_ratio
    return judge_difference(delta, one, two, margin)


def judge_difference(delta: float, one: Estimate, two: Estimate, margin: float) -> tuple[Agreed, Interval, str]:
    """The verdict on `delta` = d2 - d1 in logs, every test at 5 %: `confirmed` by two one-sided tests inside a margin,
    `contradicted` where the 95 % interval excludes 0 and a one-sided test puts the difference beyond the margin. An
    estimate beyond it would not do: a true shift of 1 % would be contradicted at a margin of 2 % in 7 to 12 % of pairs
    of runs at 1 % noise, and one of 2 % in half of them.
    """
    from harness.verdict.quantiles import student_t

    error = hypot(one.standard_error, two.standard_error)
    df = _welch_df(one, two)
    narrow, wide = (float(student_t(df, p)) * error for p in (0.95, 0.975))
    room = log1p(margin)
    interval = Interval(delta - wide, delta + wide, 0.95, "difference of two log ratios, Welch-Satterthwaite")
    shown = (
        f"the second ratio is {exp(delta):.4g} times the first"
        f" ({Interval(exp(interval.low), exp(interval.high), interval.level, interval.method).words})"
    )
    if abs(delta) + narrow < room:
        return Agreed.CONFIRMED, interval, f"{shown}: equivalent inside the margin of {margin:.3g}"
    if abs(delta) > wide and abs(delta) - narrow > room:
        why = f"{shown}: not 1, and beyond the margin of {margin:.3g}; on another host this may be a real interaction"
        return Agreed.CONTRADICTED, interval, why
    return Agreed.IMPRECISE, interval, f"{shown}: neither equivalent inside {margin:.3g} nor apart beyond it"


def _welch_df(one: Estimate, two: Estimate) -> float:
    u, v = one.standard_error**2, two.standard_error**2
    if u + v == 0:
        return inf
    return (u + v) ** 2 / (u**2 / one.df + v**2 / two.df)


def _judge_exact(first: PairVerdict, second: PairVerdict, margin: float) -> tuple[Agreed, Interval | Unknown, str]:
    """Exact metrics: the ratios agree inside the margin or they do not; there is no noise to be imprecise about."""
    exact = all(isinstance(v.interval, Unknown) and v.interval.why == "exact" for v in (first, second))
    ratio = _turned_ratio(first, second)
    if not exact or isinstance(first.ratio, Unknown) or isinstance(ratio, Unknown):
        return Agreed.NOT_COMPARABLE, Unknown("no interval"), "one of the runs has no interval for this pair"
    delta = log(ratio) - log(first.ratio)
    inside = abs(delta) < log1p(margin)
    where = "inside" if inside else "beyond"
    return (
        Agreed.CONFIRMED if inside else Agreed.CONTRADICTED,
        Interval(delta, delta, 1.0, "exact"),
        f"the second ratio is {exp(delta):.6g} times the first, {where} the margin of {margin:.3g}",
    )


def _claim(first: Judgement, second: Judgement, barrier: str | None) -> list[ClaimAgreement]:
    """A claim is confirmed if both runs judge it alike and decidedly, contradicted if one supports what the other
    contradicts; an undecided one is imprecise.
    """
    others = {claim.id: claim for claim in second.claims}
    found = []
    for claim in first.claims:
        other = others.get(claim.id)
        pair = (claim.verdict.value, other.verdict.value if other is not None else "not_comparable")
        if barrier is not None or "not_comparable" in pair:
            agreement, why = Agreed.NOT_COMPARABLE, barrier or "a run could not judge this claim"
        elif "undecided" in pair:
            agreement, why = Agreed.IMPRECISE, "a run left this claim undecided"
        elif pair[0] == pair[1]:
            agreement, why = Agreed.CONFIRMED, f"both runs judge it {pair[0]}"
        else:
            agreement, why = Agreed.CONTRADICTED, f"the first run judges it {pair[0]}, the second {pair[1]}"
        found.append(ClaimAgreement(id=claim.id, agreement=agreement, verdicts=pair, why=why))
    return found


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
    }
