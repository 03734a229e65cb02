"""Gates that ask whether there is sound evidence on both sides: values, units, equal work. One function a gate."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from harness.metrics import Kind
from harness.records import Reason, TrialRecord
from harness.units import format_quantity
from harness.verdict.sides import Pair
from harness.verdict.types import Code, Refusal, Unknown


def metric_missing(pair: Pair) -> Iterable[Refusal]:
    """An arm without the metric, or without it in some pass that ended well."""
    planned = len(pair.cells.passes)
    for side in (pair.x, pair.y):
        if not side.values:
            meant = pair.experiment.arm(side.arm).expect.failure is not None
            yield Refusal(
                Code.METRIC_MISSING,
                f"{side.arm} has no value of {pair.metric.name} in any of {planned} {pair.cells.sweeps}"
                + (": it is meant to fail" if meant else ""),
                "nothing to compare: an arm that is meant to fail is a result of its own"
                if meant
                else "see the failures and the reasons for missing values of this arm, then run it again",
            )
        elif side.blank:
            yield Refusal(
                Code.METRIC_MISSING,
                f"{side.arm} has {pair.metric.name} in {len(side.values)} of {planned} {pair.cells.sweeps}; none in"
                f" {pair.cells.in_sweeps(side.blank)}",
                "find out from the trial's record why the value is missing, then run those passes again",
            )


def failures(pair: Pair) -> Iterable[Refusal]:
    """Trials of either arm that failed or were disturbed, with no repetition of their pass in their place."""
    for side in (pair.x, pair.y):
        lost: dict[Code, list[tuple[int, str]]] = {}
        for record in side.failed:
            reason = record.failure.reason if record.failure is not None else None
            code = Code.DISTURBED if reason is Reason.DISTURBED else Code.FAILED_TRIALS
            lost.setdefault(code, []).append((record.pass_number, str(reason)))
        for code, trials in lost.items():
            where = pair.cells.in_sweeps(number for number, _ in trials)
            yield Refusal(
                code,
                f"{side.arm} has usable values in {len(side.values)} of {len(pair.cells.passes)} {pair.cells.sweeps}:"
                f" {len(trials)} {'disturbed' if code is Code.DISTURBED else 'failed'}"
                f" ({', '.join(sorted({reason for _, reason in trials}))}) in {where}",
                "set `repeat_passes` so that the whole pass is run again, or remove the cause and run again",
            )


def unit_mismatch(pair: Pair) -> Iterable[Refusal]:
    """Values taken in another unit than the metric's."""
    units = pair.x.units | pair.y.units
    if units - {pair.metric.unit}:
        yield Refusal(
            Code.UNIT_MISMATCH,
            f"{pair.metric.name} is defined in {pair.metric.unit}; recorded in {', '.join(sorted(units))}",
            "run both arms with one definition of the metric",
        )


def not_comparable(pair: Pair) -> Iterable[Refusal]:
    """Values that no ratio can be formed with, or an analysis that cannot be done."""
    for side in (pair.x, pair.y):
        if side.odd:
            yield Refusal(
                Code.NOT_COMPARABLE,
                f"{side.arm} reads {', '.join(f'{value:g}' for value in side.odd[:3])}: no ratio can be formed with it",
                "a metric whose true value can be zero needs another definition, such as its inverse or a total",
            )
    repeats = pair.metric.kind in {Kind.EXACT, Kind.WINDOWED} and isinstance(pair.comparison, Unknown)
    if repeats and pair.x.values and pair.y.values and not (pair.x.odd or pair.y.odd):
        why = pair.comparison.why if isinstance(pair.comparison, Unknown) else ""
        yield Refusal(Code.NOT_COMPARABLE, why, "give both arms the same fixed input and run them again")


def unequal_work(pair: Pair) -> Iterable[Refusal]:
    """A fact that both arms reported and that differs between them, or within one of them."""
    x, y = pair.cells.work[pair.a], pair.cells.work[pair.b]
    for key in sorted(x.keys() & y.keys()):
        if x[key] != y[key] or len(x[key]) > 1:
            yield Refusal(
                Code.UNEQUAL_WORK,
                f"{key} is {_said(x[key])} for {pair.a} and {_said(y[key])} for {pair.b}",
                f"make {key} equal for both arms; a difference in work is no difference in speed or memory",
            )


#: The phase whose shared and file-backed memory stands beside a metric of anonymous memory; `trial` where it is absent.
_PHASE_OF = {
    "settled_rss_anon": "settle",
    "trimmed_rss_anon": "trim",
    "peak_rss_anon": "trial",
    "load_peak_rss_anon": "load",
}


def hidden_memory(pair: Pair) -> Iterable[Refusal]:
    """Shared or file-backed memory that differs by more than the saving: anonymous memory alone tells half of it."""
    if pair.metric.name not in _PHASE_OF or not pair.x.values or not pair.y.values:
        return
    phase = _PHASE_OF[pair.metric.name]
    saving = abs(median(v.value for v in pair.x.values.values()) - median(v.value for v in pair.y.values.values()))
    saving = max(saving, pair.metric.resolution or 0.0)  # 14 KiB of libraries mapped or not are no hidden memory
    for kind, name in (("max_rss_shmem", "shared"), ("max_rss_file", "file-backed")):
        levels = [_level(pair.cells.judged[arm].values(), phase, kind) for arm in (pair.a, pair.b)]
        if all(levels) and abs(median(levels[0]) - median(levels[1])) > saving:
            yield Refusal(
                Code.NOT_COMPARABLE,
                f"{name} memory differs by {format_quantity(abs(median(levels[0]) - median(levels[1])), 'B')},"
                f" more than the {format_quantity(saving, 'B')} between the arms' anonymous memory",
                "compare a figure that counts all memory (Pss, or the cgroup's own), or load weights the same way",
            )


def _level(records: Iterable[TrialRecord], phase: str, kind: str) -> list[int]:
    found = []
    for record in records:
        if record.failure is None and record.memory is not None:
            at = record.memory.phase(phase) or record.memory.phase("trial")
            level = getattr(at, kind) if at is not None else None
            if level is not None:
                found.append(level)
    return found


def _said(values: frozenset[str]) -> str:
    return " or ".join(sorted(values))
