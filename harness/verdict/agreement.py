"""Do two runs of one experiment agree? Judged by their within-host ratios, never by their absolute numbers.

For each pair and metric: delta = d2 - d1, the difference of the two log ratios (`agreement_rule`). Before any number is
looked at, three things may forbid to compare: records that are not what was measured, trials that both runs share, and
items of the comparison key that differ and bear on the metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from harness.experiment.types import Claim, ClaimKind
from harness.metrics import Kind, Metric
from harness.records import TrialRecord
from harness.verdict.agreed import Agreed, Agreement, ClaimAgreement, Difference, Fact, Key, PairAgreement, RunEvidence
from harness.verdict.agreement_pairs import Barrier, Two, pair_agreement
from harness.verdict.agreement_rule import judge_difference
from harness.verdict.types import Unknown

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
    "same_trials",
]

#: Margin where the experiment states none for a metric: agreement cannot do without one. The sentence names it.
DEFAULT_MARGIN = 0.02


def agree(first: RunEvidence, second: RunEvidence, *, default_margin: float = DEFAULT_MARGIN) -> Agreement:
    """Judge two runs of one experiment against each other. `default_margin`: where the experiment states none."""
    key = compare_keys(first, second)
    problems = tuple(_problems(first, second))
    two = Two(first, second, Barrier(_whole(first, second, problems), key), default_margin)
    seen = {(v.metric.name, frozenset((v.a, v.b))): v for v in second.judgement.verdicts}
    return Agreement(
        verdicts=tuple(
            pair_agreement(v, seen.get((v.metric.name, frozenset((v.a, v.b)))), two) for v in first.judgement.verdicts
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
    if same_trials(first.records, second.records):
        return "both runs hold the same trials: there is no second piece of evidence"
    return None


def same_trials(first: Sequence[TrialRecord], second: Sequence[TrialRecord]) -> bool:
    """Any trial that stands in both runs, by its digest (or whole, where it carries none)."""
    one = {record.digest for record in first if record.digest}
    two = {record.digest for record in second if record.digest}
    if one or two:
        return bool(one & two)
    return bool(first) and list(first) == list(second)


def _claim(claim: Claim, two: Two) -> ClaimAgreement:
    """A claim is confirmed if both runs judge it alike and decidedly, contradicted if one supports what the other
    contradicts; an undecided one is imprecise.
    """
    pair = (_judged(claim, two.first), _judged(claim, two.second))
    metric = next((metric for metric in two.first.experiment.metrics if metric.name == claim.metric), None)
    forbidden = two.barrier.whole if metric is None else two.barrier.on(metric)
    forbidden = forbidden or _other_words(claim, two) or _absolute(claim, metric, two)
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


def _other_words(claim: Claim, two: Two) -> str | None:
    """Claims are no part of an experiment's identity: one id may name two statements, and both may be supported."""
    other = next((one for one in two.second.experiment.claims if one.id == claim.id), None)
    if other is None or _stated(other) == _stated(claim):
        return None
    words = f"{claim.text!r} against {other.text!r}" if claim.text != other.text else "another pair, metric or host"
    return f"the two runs state this claim differently: {words}"


def _stated(claim: Claim) -> Claim:
    """The claim without what only people read."""
    return replace(claim, text="", source="")


def _absolute(claim: Claim, metric: Metric | None, two: Two) -> str | None:
    """A difference in seconds or tokens per second is an absolute number of its host; one in bytes is not. Runs that do
    not know their machine may be of two.
    """
    if claim.kind is not ClaimKind.DIFFERENCE or metric is None or metric.kind is Kind.EXACT or metric.unit == "B":
        return None
    if two.first.host is not None and two.first.host == two.second.host:
        return None
    if two.first.host is None or two.second.host is None:
        return (
            f"the claim states a difference in {metric.unit}, and a run does not know its machine (/etc/machine-id):"
            " absolute figures are never compared across hosts"
        )
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
