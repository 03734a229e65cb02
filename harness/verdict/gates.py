"""Why a pair is not ranked: one function a gate, each giving its reasons or none. All are asked, always.

Arms whose spreads overlap are not ranked, and disjoint spreads alone do not suffice: the spreads of two identical arms
separate by luck in 10 % of pairs at 3 passes, 0.8 % at 5, and with five arms some pair does in 48 and 6.3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, log
from statistics import median

from harness.experiment.types import Experiment, Rule
from harness.metrics import Kind, Metric
from harness.records import Reason, TrialRecord, Value
from harness.units import format_quantity
from harness.verdict import flags
from harness.verdict.cells import Cells
from harness.verdict.compare import MIN_DF, MIN_PASSES, Comparison, fewest_passes
from harness.verdict.repeatable import Exact
from harness.verdict.types import Code, Refusal, Unknown

#: Beyond so many passes a number of passes is no advice.
_MOST_PASSES = 1000


@dataclass(frozen=True, kw_only=True)
class Side:
    """One arm on one metric, worked out once for all its pairs. `values`: by pass. `low`, `high`: the spread, 0 without
    a value. `blank`: passes that ended well without a value. `unrun`: passes without a trial. `failed`: counted trials
    that failed unexpectedly. `odd`: values that no ratio can be formed with. `modes`: two clusters, if any.
    """

    arm: str
    values: Mapping[int, Value]
    low: float
    high: float
    blank: tuple[int, ...]
    unrun: tuple[int, ...]
    failed: tuple[TrialRecord, ...]
    units: frozenset[str]
    odd: tuple[float, ...]
    modes: flags.Modes | None


def side(arm: str, values: Mapping[int, Value], cells: Cells) -> Side:
    """What all pairs of this arm will be asked."""
    judged = cells.judged[arm]
    found = [cell.value for cell in values.values()]
    return Side(
        arm=arm,
        values=values,
        low=min(found, default=0.0),
        high=max(found, default=0.0),
        blank=tuple(n for n, record in judged.items() if record.failure is None and n not in values),
        unrun=tuple(number for number in cells.passes if number not in judged),
        failed=tuple(r for r in judged.values() if r.failure is not None and not r.expected),
        units=frozenset(cell.unit for cell in values.values() if cell.unit is not None),
        odd=tuple(sorted({value for value in found if not isfinite(value) or value <= 0})),
        modes=flags.modes(found),
    )


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Everything the gates look at: two arms on one metric. `common`: passes in which both have a value. `margin`: 0
    where none is stated. `family`: arms with a value.
    """

    experiment: Experiment
    cells: Cells
    metric: Metric
    x: Side
    y: Side
    comparison: Comparison | Exact | Unknown
    margin: float
    family: int
    common: tuple[int, ...]

    @property
    def a(self) -> str:
        """Name of the first arm."""
        return self.x.arm

    @property
    def b(self) -> str:
        """Name of the second arm."""
        return self.y.arm


Gate = Callable[[Pair], Iterable[Refusal]]


def metric_missing(pair: Pair) -> Iterable[Refusal]:
    """An arm without the metric, or without it in some pass that ended well."""
    planned = len(pair.cells.passes)
    for side in (pair.x, pair.y):
        if not side.values:
            meant = pair.experiment.arm(side.arm).expect.failure is not None
            yield Refusal(
                Code.METRIC_MISSING,
                f"{side.arm} has no value of {pair.metric.name} in any of {planned} passes"
                + (": it is meant to fail" if meant else ""),
                "nothing to compare: an arm that is meant to fail is a result of its own"
                if meant
                else "see the failures and the reasons for missing values of this arm, then run it again",
            )
        elif side.blank:
            yield Refusal(
                Code.METRIC_MISSING,
                f"{side.arm} has {pair.metric.name} in {len(side.values)} of {planned} passes; none in"
                f" {_passes(side.blank)}",
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
            yield Refusal(
                code,
                f"{side.arm} has usable values in {len(side.values)} of {len(pair.cells.passes)} passes:"
                f" {len(trials)} {'disturbed' if code is Code.DISTURBED else 'failed'}"
                f" ({', '.join(sorted({reason for _, reason in trials}))}) in {_passes(n for n, _ in trials)}",
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


def too_few_passes(pair: Pair) -> Iterable[Refusal]:
    """Fewer than 3 complete passes, or fewer than 4 degrees of freedom, or a planned pass that never ran."""
    planned, n = len(pair.cells.passes), len(pair.common)
    df = pair.comparison.df if isinstance(pair.comparison, Comparison) else MIN_DF
    if n < MIN_PASSES or df < MIN_DF:
        spread = "; one value is not a spread of zero" if n == 1 else ""
        arms = pair.comparison.arms if isinstance(pair.comparison, Comparison) else max(pair.family, 2)
        freedom = f" ({df} degrees of freedom)" if isinstance(pair.comparison, Comparison) else ""
        yield Refusal(
            Code.TOO_FEW_PASSES,
            f"{n} of {planned} passes are complete for this pair{freedom}{spread}",
            f"run at least {fewest_passes(arms)} passes where {arms} arms have a value in every pass",
        )
    for side in (pair.x, pair.y):
        if side.unrun:
            yield Refusal(
                Code.TOO_FEW_PASSES,
                f"the run is not complete: {side.arm} has no trial in {_passes(side.unrun)}",
                "resume the run: it goes on where it stopped",
            )


def spreads_overlap(pair: Pair) -> Iterable[Refusal]:
    """The user's rule: arms whose spreads overlap are not ranked. Touching is overlap."""
    x, y = pair.x, pair.y
    if pair.experiment.rule is Rule.PAIRED or len(x.values) < 2 or len(y.values) < 2:
        return
    if x.high >= y.low and y.high >= x.low:
        unit = pair.metric.unit
        yield Refusal(
            Code.SPREADS_OVERLAP,
            f"{x.arm} spreads from {format_quantity(x.low, unit)} to {format_quantity(x.high, unit)},"
            f" {y.arm} from {format_quantity(y.low, unit)} to {format_quantity(y.high, unit)}",
            "more passes never mend an overlap; `rule: paired` judges by the differences within passes instead",
        )


def interval(pair: Pair) -> Iterable[Refusal]:
    """The simultaneous interval must exclude 1 and, where a margin is stated, lie wholly beyond it."""
    found = pair.comparison
    if not isinstance(found, Comparison):
        return
    needed = found.passes_needed(pair.margin, pair.family)
    more = "windows" if pair.metric.kind is Kind.WINDOWED else "passes"
    remedy = needed.why if isinstance(needed, Unknown) else f"about {needed} {more} would resolve the difference seen"
    if isinstance(needed, int) and needed > _MOST_PASSES:
        remedy = f"the difference seen is too small for any number of {more} that could be run"
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
    for arm, values in ((pair.a, pair.x.values), (pair.b, pair.y.values)):
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
    small, large = pair.x.values, pair.y.values
    if pair.comparison.log_ratio >= 0:
        small, large = large, small
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
                for arm, values in ((pair.a, pair.x.values), (pair.b, pair.y.values))
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
