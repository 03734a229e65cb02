"""Three runs and more: each against the first, and host by arm, what all of them together say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.verdict.agreed import Agreed, Agreement, RunEvidence
from harness.verdict.agreement import agree, as_json, same_trials
from harness.verdict.heterogeneity import Heterogeneity, heterogeneity
from harness.verdict.types import Estimate, PairVerdict, Unknown


@dataclass(frozen=True, kw_only=True)
class Across:
    """One pair and metric over all runs. `ratios`: a/b by run, in the runs' order. `found`: whether the runs that can
    be compared with the first differ; `judged`: their names.
    """

    metric: str
    a: str
    b: str
    ratios: tuple[float | Unknown, ...]
    found: Heterogeneity | Unknown
    judged: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ManyRuns:
    """`names`: of the runs; `pairwise`: the first against each other run; `across`: each pair and metric over all."""

    names: tuple[str, ...]
    pairwise: tuple[Agreement, ...]
    across: tuple[Across, ...]


def compare_many(runs: Sequence[RunEvidence]) -> ManyRuns:
    """Judge three runs or more of one experiment; the first is the one the others are set against."""
    pairwise = tuple(agree(runs[0], other) for other in runs[1:])
    once = [not any(same_trials(run.records, other.records) for other in runs[:n]) for n, run in enumerate(runs)]
    across = tuple(
        _across(index, verdict, runs, pairwise, once) for index, verdict in enumerate(runs[0].judgement.verdicts)
    )
    return ManyRuns(names=tuple(run.name for run in runs), pairwise=pairwise, across=across)


def _across(
    index: int, verdict: PairVerdict, runs: Sequence[RunEvidence], pairwise: Sequence[Agreement], once: Sequence[bool]
) -> Across:
    """Runs that cannot be compared with the first on this pair show their ratio and take no part in the test; nor does
    a run that was named before (`once`: it was not).
    """
    same = [_same_pair(run, verdict) for run in runs]
    comparable = [True, *(one.verdicts[index].agreement is not Agreed.NOT_COMPARABLE for one in pairwise)]
    estimates = [
        (run.name, _turned(verdict, other))
        for run, other, usable, new in zip(runs, same, comparable, once, strict=True)
        if usable and new and other is not None and isinstance(other.estimate, Estimate)
    ]
    return Across(
        metric=verdict.metric.name,
        a=verdict.a,
        b=verdict.b,
        ratios=tuple(_ratio(verdict, other) for other in same),
        found=heterogeneity([estimate for _, estimate in estimates]),
        judged=tuple(name for name, _ in estimates),
    )


def _same_pair(run: RunEvidence, verdict: PairVerdict) -> PairVerdict | None:
    wanted = (verdict.metric.name, {verdict.a, verdict.b})
    return next((v for v in run.judgement.verdicts if (v.metric.name, {v.a, v.b}) == wanted), None)


def _turned(verdict: PairVerdict, other: PairVerdict) -> Estimate:
    found = other.estimate
    assert isinstance(found, Estimate)  # noqa: S101 - the caller has looked; mypy cannot see it
    return found if other.a == verdict.a else replace(found, log_ratio=-found.log_ratio)


def _ratio(verdict: PairVerdict, other: PairVerdict | None) -> float | Unknown:
    if other is None:
        return Unknown("no verdict")
    if isinstance(other.ratio, Unknown) or other.a == verdict.a:
        return other.ratio
    return 1 / other.ratio


def many_as_json(found: ManyRuns) -> dict[str, Any]:
    """The shape for two runs, with every verdict and claim naming its `runs`, and `across` beside it."""
    documents = [as_json(one) for one in found.pairwise]
    return {
        "verdicts": [_of(one, pair) for one, doc in zip(found.pairwise, documents, strict=True)
                     for pair in doc["verdicts"]],
        "claims": [_of(one, claim) for one, doc in zip(found.pairwise, documents, strict=True)
                   for claim in doc["claims"]],
        "key": {
            "equal": all(one.key.equal for one in found.pairwise),
            "differs": [f"{one.names[1]}: {d}" for one in found.pairwise for d in one.key.differs],
        },
        "problems": list(dict.fromkeys(problem for one in found.pairwise for problem in one.problems)),
        "runs": list(found.names),
        "across": [_across_json(across) for across in found.across],
    }  # fmt: skip


def _of(agreement: Agreement, value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "runs": list(agreement.names)}


def _across_json(across: Across) -> dict[str, Any]:
    said = across.found
    return {
        "metric": across.metric,
        "a": across.a,
        "b": across.b,
        "ratios": [None if isinstance(ratio, Unknown) else ratio for ratio in across.ratios],
        "judged": list(across.judged),
        "p": None if isinstance(said, Unknown) else said.p,
        "between_hosts": None if isinstance(said, Unknown) else said.between,
        "why": said.why if isinstance(said, Unknown) else said.words,
    }
