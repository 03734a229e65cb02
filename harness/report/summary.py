"""The answer for programs: what `harness report RUN --json` prints. Shape: docs/report.schema.json. Pure.

The keys of the contract never change; what stands beside them (`sentence`, `notes`, ...) may grow.
"""

from __future__ import annotations

from typing import Any

from harness.experiment.types import Experiment, Rule
from harness.metrics import REGISTRY
from harness.report.sentences import known_ratio, remedies, verdict_sentence
from harness.report.text import finite
from harness.verdict.types import (
    ArmSummary,
    Equivalent,
    FailureRow,
    Interval,
    JudgedClaim,
    Judgement,
    PairVerdict,
    Ranked,
    Refused,
    Summary,
    Unknown,
)


def summary(experiment: str, run: str, judgement: Judgement, *, asked: Experiment | None = None) -> dict[str, Any]:
    """A judgement as one strict JSON value: no NaN, no infinity; what is unknown is null.

    `asked`: the experiment itself, for its rule (it decides what would change a refusal for overlapping spreads) and
    the units of metrics that no pair was judged on; without it `strict` and the registry of metrics.
    """
    rule = asked.rule if asked is not None else Rule.STRICT
    units = {name: metric.unit for name, metric in REGISTRY.items()}
    units |= {metric.name: metric.unit for metric in (asked.metrics if asked is not None else ())}
    units |= {verdict.metric.name: verdict.metric.unit for verdict in judgement.verdicts}
    return {
        "experiment": experiment,
        "run": run,
        "complete": judgement.complete,
        "rule": rule.value,
        "arms": {name: _arm(arm, units) for name, arm in judgement.arms.items()},
        "verdicts": [_verdict(verdict, rule) for verdict in judgement.verdicts],
        "claims": [_claim(claim) for claim in judgement.claims],
        "failures": [_failure(failure) for failure in judgement.failures],
        "tie_groups": {name: [list(group) for group in groups] for name, groups in judgement.tie_groups.items()},
        "notes": list(judgement.notes),
    }


def _arm(arm: ArmSummary, units: dict[str, str]) -> dict[str, Any]:
    figures = {name: _figures(figure, units.get(name, "")) for name, figure in arm.metrics.items()}
    return {
        "trials": {"ok": arm.ok, "failed": arm.failed},
        "metrics": {name: figure for name, figure in figures.items() if None not in figure.values()},
        "flags": list(arm.flags),
    }


def _figures(figure: Summary, unit: str) -> dict[str, Any]:
    return {
        "median": finite(figure.median),
        "low": finite(figure.low),
        "high": finite(figure.high),
        "unit": unit,
        "n": figure.n,
    }


def _verdict(verdict: PairVerdict, rule: Rule) -> dict[str, Any]:
    reasons = verdict.outcome.reasons if isinstance(verdict.outcome, Refused) else ()
    return {
        "metric": verdict.metric.name,
        "a": verdict.a,
        "b": verdict.b,
        "verdict": _word(verdict),
        "better": verdict.outcome.better if isinstance(verdict.outcome, Ranked) else None,
        "ratio": known_ratio(verdict),
        "interval": _ends(verdict.interval),
        "reasons": list(dict.fromkeys(reason.code.value for reason in reasons)),
        "within_passes": {"a_better": verdict.within.a_better, "passes": verdict.within.passes},
        "interval_level": verdict.interval.level if isinstance(verdict.interval, Interval) else None,
        "interval_method": verdict.interval.method if isinstance(verdict.interval, Interval) else None,
        "difference": _ends(verdict.difference),
        "equivalence_interval": _ends(verdict.equivalence),
        "margin": verdict.outcome.margin if isinstance(verdict.outcome, Equivalent) else None,
        "smallest_effect": finite(verdict.smallest_effect),
        "passes_needed": verdict.passes_needed if isinstance(verdict.passes_needed, int) else None,
        "sentence": verdict_sentence(verdict),
        "remedies": list(remedies(verdict, rule)),
        "notes": list(verdict.notes),
    }


def _ends(interval: Interval | Unknown) -> list[float] | None:
    if isinstance(interval, Unknown):
        return None
    low, high = finite(interval.low), finite(interval.high)
    return None if low is None or high is None else [low, high]


def _word(verdict: PairVerdict) -> str:
    if isinstance(verdict.outcome, Ranked):
        return "ranked"
    return "equivalent" if isinstance(verdict.outcome, Equivalent) else "refused"


def _claim(claim: JudgedClaim) -> dict[str, Any]:
    return {"id": claim.id, "verdict": claim.verdict.value, "why": claim.why}


def _failure(failure: FailureRow) -> dict[str, Any]:
    return {
        "arm": failure.arm,
        "pass": failure.pass_number,
        "reason": failure.reason,
        "evidence": failure.evidence,
        "expected": failure.expected,
        "replaced": failure.replaced,
    }
