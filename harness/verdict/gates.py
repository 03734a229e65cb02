"""Why a pair is not ranked: one function a gate, each giving its reasons or none. All are asked, always.

The gates are those of docs/verdicts: arms whose spreads overlap are not ranked, and disjoint spreads alone do not
suffice: two identical arms separate by luck in 1 of 10 pairs at 3 passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, log
from statistics import median

from harness.experiment.types import Experiment, Rule
from harness.metrics import Metric
from harness.records import Reason, TrialRecord, Value
from harness.units import format_quantity
from harness.verdict.cells import Cells
from harness.verdict.compare import MIN_DF, MIN_PASSES, Comparison, fewest_passes
from harness.verdict.repeatable import Exact
from harness.verdict.types import Code, Refusal, Unknown


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Everything the gates look at: one pair of arms on one metric. `x`, `y`: values by pass. `common`: passes in which
    both have one. `margin`: 0 where none is stated. `family`: arms with a value.
    """

    experiment: Experiment
    cells: Cells
    metric: Metric
    a: str
    b: str
    x: Mapping[int, Value]
    y: Mapping[int, Value]
    comparison: Comparison | Exact | Unknown
    margin: float
    family: int
    common: tuple[int, ...] = field(default=())

    @property
    def both(self) -> tuple[tuple[str, Mapping[int, Value]], tuple[str, Mapping[int, Value]]]:
        """The two arms with their values."""
        return (self.a, self.x), (self.b, self.y)


Gate = Callable[[Pair], Iterable[Refusal]]


def metric_missing(pair: Pair) -> Iterable[Refusal]:
    """An arm without the metric, or without it in some pass that ended well."""
    planned = len(pair.cells.passes)
    for arm, values in pair.both:
        blank = [n for n, r in pair.cells.judged[arm].items() if r.failure is None and n not in values]
        if not values:
            meant = pair.experiment.arm(arm).expect.failure is not None
            yield Refusal(
                Code.METRIC_MISSING,
                f"{arm} has no value of {pair.metric.name} in any of {planned} passes"
                + (": it is meant to fail" if meant else ""),
                "nothing to compare: an arm that is meant to fail is a result of its own"
                if meant
                else "see the failures and the reasons for missing values of this arm, then run it again",
            )
        elif blank:
            yield Refusal(
                Code.METRIC_MISSING,
                f"{arm} has {pair.metric.name} in {len(values)} of {planned} passes; none in {_passes(blank)}",
                "find out from the trial's record why the value is missing, then run those passes again",
            )


def failures(pair: Pair) -> Iterable[Refusal]:
    """Trials of either arm that failed or were disturbed, with no repetition of their pass in their place."""
    for arm, values in pair.both:
        lost: dict[Code, list[TrialRecord]] = {}
        for record in pair.cells.failed(arm):
            if not record.expected and record.failure is not None:
                code = Code.DISTURBED if record.failure.reason is Reason.DISTURBED else Code.FAILED_TRIALS
                lost.setdefault(code, []).append(record)
        for code, records in lost.items():
            reasons = sorted({record.failure.reason.value for record in records if record.failure is not None})
            yield Refusal(
                code,
                f"{arm} has usable values in {len(values)} of {len(pair.cells.passes)} passes:"
                f" {len(records)} {'was disturbed' if code is Code.DISTURBED else 'failed'} ({', '.join(reasons)})"
                f" in {_passes([record.pass_number for record in records])}",
                "set `repeat_passes` so that the whole pass is run again, or remove the cause and run again",
            )


def unit_mismatch(pair: Pair) -> Iterable[Refusal]:
    """Values taken in another unit than the metric's."""
    units = {cell.unit for _, values in pair.both for cell in values.values() if cell.unit is not None}
    if units - {pair.metric.unit}:
        yield Refusal(
            Code.UNIT_MISMATCH,
            f"{pair.metric.name} is defined in {pair.metric.unit}; recorded in {', '.join(sorted(units))}",
            "run both arms with one definition of the metric",
        )


def not_comparable(pair: Pair) -> Iterable[Refusal]:
    """Values that no ratio can be formed with, or an analysis that cannot be done."""
    odd = False
    for arm, values in pair.both:
        bad = sorted({cell.value for cell in values.values() if not isfinite(cell.value) or cell.value <= 0})
        if bad:
            odd = True
            yield Refusal(
                Code.NOT_COMPARABLE,
                f"{arm} reads {', '.join(f'{value:g}' for value in bad[:3])}: no ratio can be formed with it",
                "a metric whose true value can be zero needs another definition, such as its inverse or a total",
            )
    repeatable = pair.metric.kind in {"exact", "windowed"}
    if repeatable and not odd and pair.x and pair.y and isinstance(pair.comparison, Unknown):
        yield Refusal(
            Code.NOT_COMPARABLE, pair.comparison.why, "give both arms the same fixed input and run them again"
        )


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
    if pair.metric.name not in _PHASE_OF or not pair.x or not pair.y:
        return
    phase = _PHASE_OF[pair.metric.name]
    saving = abs(median(v.value for v in pair.x.values()) - median(v.value for v in pair.y.values()))
    for kind, name in (("max_rss_shmem", "shared"), ("max_rss_file", "file-backed")):
        levels = [_level(pair.cells.judged[arm].values(), phase, kind) for arm, _ in pair.both]
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


def too_few_passes(pair: Pair) -> Iterable[Refusal]:
    """Fewer than 3 complete passes, or fewer than 4 degrees of freedom, or a planned pass that never ran."""
    planned, n = len(pair.cells.passes), len(pair.common)
    least = fewest_passes(pair.family)
    df = pair.comparison.df if isinstance(pair.comparison, Comparison) else 0
    if n < MIN_PASSES or (isinstance(pair.comparison, Comparison) and df < MIN_DF):
        spread = "; one value is not a spread of zero" if n == 1 else ""
        yield Refusal(
            Code.TOO_FEW_PASSES,
            f"{n} of {planned} passes are complete for this pair ({df} degrees of freedom){spread}",
            f"run at least {least} passes with {max(pair.family, 2)} arms",
        )
    for arm, _ in pair.both:
        unrun = [number for number in pair.cells.passes if number not in pair.cells.judged[arm]]
        if unrun:
            yield Refusal(
                Code.TOO_FEW_PASSES,
                f"the run is not complete: {arm} has no trial in {_passes(unrun)}",
                "resume the run: it goes on where it stopped",
            )


def spreads_overlap(pair: Pair) -> Iterable[Refusal]:
    """The user's rule: arms whose spreads overlap are not ranked. Touching is overlap."""
    if pair.experiment.rule is Rule.PAIRED or len(pair.x) < 2 or len(pair.y) < 2:
        return
    (low_x, high_x), (low_y, high_y) = _spread(pair.x), _spread(pair.y)
    if high_x >= low_y and high_y >= low_x:
        unit = pair.metric.unit
        yield Refusal(
            Code.SPREADS_OVERLAP,
            f"{pair.a} spreads from {format_quantity(low_x, unit)} to {format_quantity(high_x, unit)},"
            f" {pair.b} from {format_quantity(low_y, unit)} to {format_quantity(high_y, unit)}",
            "more passes never mend an overlap; `rule: paired` judges by the differences within passes instead",
        )


def interval(pair: Pair) -> Iterable[Refusal]:
    """The simultaneous interval must exclude 1 and, where a margin is stated, lie wholly beyond it."""
    found = pair.comparison
    if not isinstance(found, Comparison):
        return
    needed = found.passes_needed(pair.margin, pair.family)
    more = "windows" if pair.metric.kind == "windowed" else "passes"
    remedy = needed.why if isinstance(needed, Unknown) else f"about {needed} {more} would resolve the difference seen"
    if not found.excludes_zero:
        ends = found.interval()
        yield Refusal(
            Code.INTERVAL_CONTAINS_ONE,
            f"the simultaneous 95 % interval of {pair.a}/{pair.b} is {ends.low:.4g} to {ends.high:.4g}: it holds 1",
            remedy,
        )
    elif not found.beyond(pair.margin):
        ends = found.interval()
        yield Refusal(
            Code.WITHIN_MARGIN,
            f"the simultaneous 95 % interval of {pair.a}/{pair.b} is {ends.low:.4g} to {ends.high:.4g}: not wholly"
            f" beyond the stated margin of {pair.margin:.3g}",
            remedy,
        )


def order_confounded(pair: Pair) -> Iterable[Refusal]:
    """What the place within a pass can contribute must be smaller than the difference."""
    found = pair.comparison
    if not isinstance(found, Comparison) or found.place == 0 or found.place < abs(found.log_ratio):
        return
    if isfinite(found.place):
        sentence = (
            f"the arms' mean places differ, and places can account for {found.place:.3g} of a log ratio of"
            f" {abs(found.log_ratio):.3g}"
        )
    else:
        sentence = "the arms ran at different places in every pass, so places cannot be told from arms"
    yield Refusal(
        Code.ORDER_CONFOUNDED, sentence, "run as many passes as there are arms, or a multiple, in the planned order"
    )


def brackets_overlap(pair: Pair) -> Iterable[Refusal]:
    """A peak is known as a bracket: the larger arm's least lower bound must clear the smaller one's greatest upper.

    Under `paired`, brackets are set against each other within passes: the interval must exclude 0 even with each peak
    at the unfavourable end of its bracket.
    """
    for arm, values in pair.both:
        unbounded = [cell for cell in values.values() if cell.upper is None]
        if unbounded:
            why = next((cell.upper_missing for cell in unbounded if cell.upper_missing), "no reason recorded")
            yield Refusal(
                Code.BRACKETS_OVERLAP,
                f"the peak of {arm} has no upper bound in {len(unbounded)} of {len(values)} trials: {why}",
                "measure where a valid bound exists (a cgroup, or per-process high-water marks)",
            )
            return
    if not pair.common or isinstance(pair.comparison, Unknown):
        return
    small, large = (pair.x, pair.y) if pair.comparison.log_ratio < 0 else (pair.y, pair.x)
    if pair.experiment.rule is Rule.PAIRED and isinstance(pair.comparison, Comparison):
        worst = [_worst_ratio(small[number], large[number]) for number in pair.common]
        disjoint = sum(worst) / len(worst) > pair.comparison.half_width
    else:
        disjoint = max(map(_upper, small.values())) < min(map(_lower, large.values()))
    if not disjoint:
        unit = pair.metric.unit
        yield Refusal(
            Code.BRACKETS_OVERLAP,
            "the peaks' brackets overlap: "
            + "; ".join(
                f"{arm} lies between {format_quantity(min(map(_lower, values.values())), unit)} and"
                f" {format_quantity(max(map(_upper, values.values())), unit)}"
                for arm, values in pair.both
            ),
            "narrow the brackets: sample faster, or measure in a cgroup of its own",
        )


def _worst_ratio(small: Value, large: Value) -> float:
    low, high = _lower(large), _upper(small)
    return log(low / high) if low > 0 and high > 0 else float("-inf")


def _lower(cell: Value) -> float:
    return cell.value if cell.lower is None else cell.lower


def _upper(cell: Value) -> float:
    return cell.value if cell.upper is None else cell.upper


def _spread(values: Mapping[int, Value]) -> tuple[float, float]:
    found = [cell.value for cell in values.values()]
    return min(found), max(found)


def _passes(numbers: Iterable[int]) -> str:
    listed = sorted(set(numbers))
    return f"{'pass' if len(listed) == 1 else 'passes'} {', '.join(map(str, listed))}"


def _said(values: frozenset[str]) -> str:
    return " or ".join(sorted(values))


_EVIDENCE: tuple[Gate, ...] = (metric_missing, failures, unit_mismatch, not_comparable, unequal_work)
#: The gates of each kind of metric, in the order their reasons are given.
GATES: Mapping[str, tuple[Gate, ...]] = {
    "sampled": (*_EVIDENCE, hidden_memory, too_few_passes, spreads_overlap, interval, order_confounded),
    "peak": (*_EVIDENCE, hidden_memory, too_few_passes, spreads_overlap, interval, order_confounded, brackets_overlap),
    "exact": _EVIDENCE,
    "windowed": (*_EVIDENCE, spreads_overlap, interval),
}


def reasons(pair: Pair) -> tuple[Refusal, ...]:
    """Every reason not to rank this pair; empty if there is none."""
    return tuple(reason for gate in GATES[pair.metric.kind.value] for reason in gate(pair))
