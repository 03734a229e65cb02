"""From records to a judgement: choose trials, compare, ask every gate, and only then say anything of an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import exp
from typing import Any

from harness.experiment.types import ClaimKind, Experiment
from harness.metrics import Kind, Metric
from harness.records import TrialRecord, Value
from harness.verdict import gates
from harness.verdict.cells import Cells, collect, collect_scorings
from harness.verdict.claims import as_used, judge_claim
from harness.verdict.compare import Field, sampled
from harness.verdict.outcomes import pair_verdict
from harness.verdict.overview import arm_summary, run_notes
from harness.verdict.ranking import tie_groups
from harness.verdict.repeatable import Exact, exact, windowed
from harness.verdict.sides import Pair, side
from harness.verdict.types import Code, Interval, Judgement, PairVerdict, PositionEffect, Refusal, Unknown


def judge(experiment: Experiment, records: Sequence[TrialRecord], host: Mapping[str, Any]) -> Judgement:
    """Judge one run: see `harness.verdict.judge`."""
    cells = collect(experiment, records)
    apart = collect_scorings(experiment, records) if experiment.scored_apart else cells
    cells = replace(cells, complete=cells.complete and apart.complete)
    of = {metric.name: apart if metric.kind is Kind.WINDOWED else cells for metric in experiment.metrics}
    verdicts: list[PairVerdict] = []
    groups: dict[str, tuple[tuple[str, ...], ...]] = {}
    positions: dict[str, PositionEffect | Unknown] = {}
    values = {
        metric.name: {arm: of[metric.name].values(arm, metric.name) for arm in experiment.names}
        for metric in experiment.metrics
    }
    for metric in experiment.metrics:
        found, positions[metric.name] = _judge_metric(experiment, of[metric.name], metric, values[metric.name])
        verdicts += found
        groups[metric.name] = tie_groups([arm for arm in experiment.names if values[metric.name][arm]], found)
    return Judgement(
        arms={arm: arm_summary(experiment, cells, arm, values) for arm in experiment.names},
        verdicts=tuple(verdicts),
        claims=tuple(
            judge_claim(claim, verdicts, as_used(host, (claim.arm, claim.versus), records))
            for claim in experiment.claims
        ),
        failures=cells.failures,
        tie_groups=groups,
        complete=cells.complete,
        notes=run_notes(experiment, cells, verdicts),
        positions=positions,
    )


def _judge_metric(
    experiment: Experiment, cells: Cells, metric: Metric, values: Mapping[str, Mapping[int, Value]]
) -> tuple[list[PairVerdict], PositionEffect | Unknown]:
    """Every pair of one metric, the control pair's say included."""
    field, exacts = _compare(experiment, metric, values, cells)
    margin = experiment.margins.get(metric.name)
    family = field.family if field else sum(map(bool, values.values()))
    sides = {arm: side(arm, found, cells) for arm, found in values.items()}
    pairs = [
        Pair(
            experiment=experiment,
            cells=cells,
            metric=metric,
            x=sides[a],
            y=sides[b],
            comparison=field.comparisons[a, b] if field else exacts[a, b],
            margin=margin or 0.0,
            family=family,
            common=tuple(sorted(values[a].keys() & values[b].keys())),
        )
        for a, b in combinations(experiment.names, 2)
    ]
    reasons = {(pair.a, pair.b): gates.reasons(pair) for pair in pairs}
    separated = _control_separated(experiment, pairs, reasons)
    differences = _differences(experiment, metric, values, cells)
    verdicts = [
        pair_verdict(
            pair, (*separated, *reasons[pair.a, pair.b]), margin, differences.get((pair.a, pair.b), _NO_DIFFERENCE)
        )
        for pair in pairs
    ]
    return verdicts, field.position if field else Unknown("an exact metric has no place in a pass")


def _compare(
    experiment: Experiment, metric: Metric, values: Mapping[str, Mapping[int, Value]], cells: Cells
) -> tuple[Field | None, Mapping[tuple[str, str], Exact | Unknown]]:
    if metric.kind is Kind.EXACT:
        return None, exact(metric, values)
    if metric.kind is Kind.WINDOWED:
        return windowed(metric, values), {}
    return sampled(metric, values, cells.judged, first=_first_stage(experiment)), {}


def _first_stage(experiment: Experiment) -> int | None:
    """Passes that fixed how many more to run; None where no precision was asked for."""
    return experiment.passes if experiment.precision is not None else None


def _control_separated(
    experiment: Experiment, pairs: Sequence[Pair], reasons: Mapping[tuple[str, str], tuple[Refusal, ...]]
) -> tuple[Refusal, ...]:
    """The control pair is judged by the same gates, without a margin: any separation of it voids the metric."""
    if experiment.control is None:
        return ()
    pair = next(pair for pair in pairs if {pair.a, pair.b} == set(experiment.control))
    left = [reason for reason in reasons[pair.a, pair.b] if reason.code is not Code.WITHIN_MARGIN]
    if left or isinstance(pair.comparison, Unknown) or (isinstance(pair.comparison, Exact) and pair.comparison.equal):
        return ()
    sentence = (
        f"{pair.a} and {pair.b} are one configuration under two names, and {pair.metric.name} tells them apart"
        f" ({pair.a}/{pair.b} = {exp(pair.comparison.log_ratio):.4g}): the host or the harness made a difference"
    )
    remedy = "find out what differed between the two (disturbance, caches, order), then run again"
    return (Refusal(Code.CONTROL_SEPARATED, sentence, remedy),)


_NO_DIFFERENCE = Unknown("worked out for bytes, and where a claim asks for a difference")


def _differences(
    experiment: Experiment, metric: Metric, values: Mapping[str, Mapping[int, Value]], cells: Cells
) -> Mapping[tuple[str, str], Interval | Unknown]:
    """Simultaneous intervals of a - b in the metric's unit: the block analysis of the values themselves."""
    asked = any(c.kind is ClaimKind.DIFFERENCE and c.metric == metric.name for c in experiment.claims)
    if not asked and metric.unit != "B":
        return {}
    if metric.kind is Kind.EXACT:
        return {(a, b): _exact_difference(values[a], values[b]) for a, b in combinations(experiment.names, 2)}
    if metric.kind is Kind.WINDOWED:
        return {}
    field = sampled(metric, values, cells.judged, logs=False, first=_first_stage(experiment))
    return {
        pair: found
        if isinstance(found, Unknown)
        else Interval(
            (found.log_ratio - found.half_width) * field.scale,
            (found.log_ratio + found.half_width) * field.scale,
            0.95,
            found.method.replace("of logs", "of values"),
        )
        for pair, found in field.comparisons.items()
    }


def _exact_difference(x: Mapping[int, Value], y: Mapping[int, Value]) -> Interval | Unknown:
    found = {a.value - b.value for a in x.values() for b in y.values()}
    if len(found) != 1:
        return Unknown("no single value on either side")
    only = found.pop()
    return Interval(only, only, 1.0, "exact")
