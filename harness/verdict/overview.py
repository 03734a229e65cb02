"""What a judgement says beside its verdicts: a summary of every arm, and notes on the run as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from harness.experiment.types import Experiment, Rule
from harness.records import Value
from harness.verdict import flags
from harness.verdict.cells import Cells
from harness.verdict.claims import HARMLESS
from harness.verdict.types import ArmSummary, Code, Interval, PairVerdict, Summary


def arm_summary(
    experiment: Experiment, cells: Cells, arm: str, values: Mapping[str, Mapping[str, Mapping[int, Value]]]
) -> ArmSummary:
    """Medians, spreads and warnings of one arm. `values`: of every metric, by arm and pass."""
    judged = cells.judged[arm].values()
    metrics = {name: _summary(by_arm[arm]) for name, by_arm in values.items() if by_arm[arm]}
    warnings = (
        flag(arm, metric, values[metric.name][arm])
        for metric in experiment.metrics
        for flag in (flags.trend, flags.repeats)
        if values[metric.name][arm]
    )
    return ArmSummary(
        name=arm,
        ok=sum(record.failure is None or record.expected for record in judged),
        failed=sum(record.failure is not None and not record.expected for record in judged),
        metrics=metrics,
        flags=tuple(flag for flag in warnings if flag),
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


def run_notes(experiment: Experiment, cells: Cells, verdicts: Sequence[PairVerdict]) -> tuple[str, ...]:
    """What a reader must know of the run before its verdicts, as sentences."""
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
            "1 failed or disturbed trial was replaced by a repetition of its pass; it stays listed."
            if replaced == 1
            else f"{replaced} failed or disturbed trials were replaced by repetitions of their pass; they stay listed."
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
