"""From records to a judgement: choose trials, compare, ask every gate, and only then say anything of an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import exp, log1p
from statistics import median
from typing import Any

from harness.experiment.types import ClaimKind, Experiment, Rule
from harness.metrics import Better, Kind, Metric
from harness.records import TrialRecord, Value
from harness.verdict import flags, gates
from harness.verdict.cells import Cells, collect
from harness.verdict.claims import HARMLESS, judge_claim
from harness.verdict.compare import Comparison, Field, sampled
from harness.verdict.ranking import tie_groups
from harness.verdict.repeatable import Exact, exact, windowed
from harness.verdict.types import (
    ArmSummary,
    Code,
    Equivalent,
    Interval,
    Judgement,
    Outcome,
    PairVerdict,
    PositionEffect,
    Ranked,
    Refusal,
    Refused,
    Summary,
    Unknown,
    Within,
)


def judge(experiment: Experiment, records: Sequence[TrialRecord], host: Mapping[str, Any]) -> Judgement:
    """Judge one run: see `harness.verdict.judge`."""
    cells = collect(experiment, records)
    verdicts: list[PairVerdict] = []
    groups: dict[str, tuple[tuple[str, ...], ...]] = {}
    positions: dict[str, PositionEffect | Unknown] = {}
    values = {
        metric.name: {arm: cells.values(arm, metric.name) for arm in experiment.names} for metric in experiment.metrics
    }
    for metric in experiment.metrics:
        found, positions[metric.name] = _judge_metric(experiment, cells, metric, values[metric.name])
        verdicts += found
        groups[metric.name] = tie_groups([arm for arm in experiment.names if values[metric.name][arm]], found)
    return Judgement(
        arms={arm: _arm(experiment, cells, arm, values) for arm in experiment.names},
        verdicts=tuple(verdicts),
        claims=tuple(judge_claim(claim, verdicts, host) for claim in experiment.claims),
        failures=cells.failures,
        tie_groups=groups,
        complete=cells.complete,
        notes=_notes(experiment, cells, verdicts),
        positions=positions,
    )


def _judge_metric(
    experiment: Experiment, cells: Cells, metric: Metric, values: Mapping[str, Mapping[int, Value]]
) -> tuple[list[PairVerdict], PositionEffect | Unknown]:
    """Every pair of one metric, the control pair's say included."""
    field, exacts = _compare(metric, values, cells)
    margin = experiment.margins.get(metric.name)
    family = field.family if field else sum(map(bool, values.values()))
    sides = {arm: gates.side(arm, found, cells) for arm, found in values.items()}
    pairs = [
        gates.Pair(
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
        _verdict(
            pair, (*separated, *reasons[pair.a, pair.b]), margin, differences.get((pair.a, pair.b), _NO_DIFFERENCE)
        )
        for pair in pairs
    ]
    return verdicts, field.position if field else Unknown("an exact metric has no place in a pass")


def _compare(
    metric: Metric, values: Mapping[str, Mapping[int, Value]], cells: Cells
) -> tuple[Field | None, Mapping[tuple[str, str], Exact | Unknown]]:
    if metric.kind is Kind.EXACT:
        return None, exact(metric, values)
    if metric.kind is Kind.WINDOWED:
        return windowed(metric, values), {}
    return sampled(metric, values, cells.judged), {}


def _control_separated(
    experiment: Experiment, pairs: Sequence[gates.Pair], reasons: Mapping[tuple[str, str], tuple[Refusal, ...]]
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
    field = sampled(metric, values, cells.judged, logs=False)
    return {
        pair: found
        if isinstance(found, Unknown)
        else Interval(
            found.log_ratio - found.half_width,
            found.log_ratio + found.half_width,
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


def _verdict(
    pair: gates.Pair, reasons: tuple[Refusal, ...], margin: float | None, difference: Interval | Unknown
) -> PairVerdict:
    found = pair.comparison
    within = _within(pair)
    shared: dict[str, Any] = {
        "metric": pair.metric,
        "a": pair.a,
        "b": pair.b,
        "outcome": _outcome(pair, reasons, margin),
        "within": within,
        "difference": difference,
        "margin": margin,
    }
    if isinstance(found, Unknown):
        return PairVerdict(
            **shared,
            ratio=_plain_ratio(pair),
            interval=found,
            smallest_effect=found,
            passes_needed=Unknown("the spread of this run is not known"),
            notes=_pair_notes(pair, 0.0),
            estimate=found,
            equivalence=found,
        )
    if isinstance(found, Exact):
        why = Unknown("exact")
        return PairVerdict(
            **shared,
            ratio=found.ratio,
            interval=why,
            smallest_effect=why,
            passes_needed=why,
            notes=_pair_notes(pair, found.log_ratio),
            estimate=why,
            equivalence=why,
        )
    return PairVerdict(
        **shared,
        ratio=exp(min(max(found.log_ratio, -700.0), 700.0)),
        interval=found.interval(),
        smallest_effect=found.smallest_effect(pair.margin),
        passes_needed=found.passes_needed(pair.margin, pair.family),
        notes=_pair_notes(pair, found.log_ratio),
        estimate=found.estimate(),
        equivalence=found.equivalence(),
        place=found.place,
    )


def _outcome(pair: gates.Pair, reasons: tuple[Refusal, ...], margin: float | None) -> Outcome:
    """Ranked if no gate objects; equivalent if the tests say so and nothing but closeness objects; else refused.

    A ranked pair's interval lies beyond the margin, so it is never equivalent too.
    """
    found = pair.comparison
    if isinstance(found, Exact):
        if not reasons:
            return Equivalent(0.0) if found.equal else Ranked(_better(pair, found.log_ratio))
        return Refused(reasons)
    if not reasons and isinstance(found, Comparison):
        return Ranked(_better(pair, found.log_ratio))
    close = {reason.code for reason in reasons} <= HARMLESS | {Code.ORDER_CONFOUNDED, Code.BRACKETS_OVERLAP}
    if (
        margin is not None
        and isinstance(found, Comparison)
        and close
        and found.inside(margin)
        and _bracketed(pair, margin)
    ):
        return Equivalent(margin)
    return Refused(reasons)


def _bracketed(pair: gates.Pair, margin: float) -> bool:
    """A peak is equivalent only if no place of it within its bracket lies outside the margin."""
    if pair.metric.kind is not Kind.PEAK:
        return True
    cells = [*pair.x.values.values(), *pair.y.values.values()]
    if any(cell.upper is None for cell in cells):
        return False
    low = min(cell.value if cell.lower is None else cell.lower for cell in cells)
    return low > 0 and max(cell.value if cell.upper is None else cell.upper for cell in cells) < low * (1 + margin)


def _better(pair: gates.Pair, log_ratio: float) -> str:
    return pair.a if (log_ratio < 0) == (pair.metric.better is Better.LOWER) else pair.b


def _plain_ratio(pair: gates.Pair) -> float | Unknown:
    """The ratio of medians where no analysis could be done; a figure without an interval."""
    if not pair.x.values or not pair.y.values:
        return Unknown("an arm has no value")
    a, b = median(v.value for v in pair.x.values.values()), median(v.value for v in pair.y.values.values())
    return a / b if a > 0 and b > 0 and a / b < float("inf") else Unknown("no ratio can be formed")


def _within(pair: gates.Pair) -> Within:
    x, y = pair.x.values, pair.y.values
    if pair.metric.better is Better.LOWER:
        return Within(a_better=sum(x[n].value < y[n].value for n in pair.common), passes=len(pair.common))
    return Within(a_better=sum(x[n].value > y[n].value for n in pair.common), passes=len(pair.common))


def _pair_notes(pair: gates.Pair, log_ratio: float) -> tuple[str, ...]:
    notes = []
    planned = len(pair.cells.passes)
    if len(pair.common) < planned:
        notes.append(f"{len(pair.common)} of {planned} passes are complete for this pair")
    if isinstance(pair.comparison, Comparison) and pair.metric.kind is not Kind.WINDOWED:
        least = min(pair.x.low, pair.y.low)
        blur = log1p((pair.metric.resolution or 0.0) / least) if least > 0 else 0.0  # modes closer than this are none
        apart = max(abs(log_ratio), blur)
        notes.extend(note for s in (pair.x, pair.y) if (note := flags.bimodal(s.arm, s.modes, apart)))
    return tuple(notes)


def _arm(
    experiment: Experiment, cells: Cells, arm: str, values: Mapping[str, Mapping[str, Mapping[int, Value]]]
) -> ArmSummary:
    judged = cells.judged[arm].values()
    metrics = {name: _summary(by_arm[arm]) for name, by_arm in values.items() if by_arm[arm]}
    trends = (
        flags.trend(arm, metric, values[metric.name][arm]) for metric in experiment.metrics if values[metric.name][arm]
    )
    return ArmSummary(
        name=arm,
        ok=sum(record.failure is None or record.expected for record in judged),
        failed=sum(record.failure is not None and not record.expected for record in judged),
        metrics=metrics,
        flags=tuple(flag for flag in trends if flag),
    )


def _summary(cells: Mapping[int, Value]) -> Summary:
    found = [cell.value for cell in cells.values()]
    return Summary(
        median=median(found),
        low=min(found),
        high=max(found),
        n=len(found),
        values={number: cell.value for number, cell in cells.items()},
    )


def _notes(experiment: Experiment, cells: Cells, verdicts: Sequence[PairVerdict]) -> tuple[str, ...]:
    notes = []
    if not cells.complete:
        notes.append("The run is not complete: some planned trials have no record. Resume it before you rely on it.")
    if experiment.control is None:
        notes.append("No control pair guards this run: nothing shows what the host and the harness add by themselves.")
    else:
        blind = [v.metric.name for v in verdicts if {v.a, v.b} == set(experiment.control) and _unjudged(v)]
        if blind:
            notes.append(f"The control pair could not be judged for {', '.join(blind)}: nothing guards these metrics.")
    if experiment.rule is Rule.PAIRED:
        notes.append("Rule `paired`: arms may be ranked although their spreads overlap, by differences within passes.")
    replaced = sum(row.replaced for row in cells.failures)
    if replaced:
        notes.append(
            f"{replaced} failed or disturbed trials were replaced by a repetition of their pass; they stay listed."
        )
    return tuple(notes)


def _unjudged(verdict: PairVerdict) -> bool:
    """Refused for want of sound evidence: neither told apart nor shown to be close.

    `not_comparable` with an interval is hidden memory that differs by more than the arms do: two arms of one
    configuration differ by next to nothing, so a few libraries mapped or not would blind every control.
    """
    judged = {Code.CONTROL_SEPARATED, Code.ORDER_CONFOUNDED, Code.BRACKETS_OVERLAP}
    if isinstance(verdict.interval, Interval):
        judged.add(Code.NOT_COMPARABLE)
    return bool(set(verdict.codes) - HARMLESS - judged)
