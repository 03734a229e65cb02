"""Gates that ask whether the evidence tells two arms apart: passes, spreads, interval, order, brackets.

Arms whose spreads overlap are not ranked, and disjoint spreads alone do not suffice: the spreads of two identical arms
separate by luck in 10 % of pairs at 3 passes, 0.8 % at 5, and with five arms some pair does in 48 and 6.3 %.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, log

from harness.experiment.types import Rule
from harness.metrics import Kind
from harness.records import Value
from harness.units import format_quantity
from harness.verdict.compare import MIN_DF, MIN_PASSES, Comparison, fewest_passes
from harness.verdict.sides import Pair
from harness.verdict.types import Code, Refusal, Unknown

#: Beyond so many passes a number of passes is no advice.
_MOST_PASSES = 1000


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
                f"the run is not complete: {side.arm} has no trial in {pair.cells.in_sweeps(side.unrun)}",
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
    needed = found.passes_needed(pair.margin)
    more = "windows" if pair.metric.kind is Kind.WINDOWED else "passes"
    remedy = needed.why if isinstance(needed, Unknown) else f"about {needed} {more} would resolve the difference seen"
    if isinstance(needed, int) and needed > _MOST_PASSES:
        remedy = f"the difference seen is too small for any number of {more} that could be run"
    if not found.excludes_zero:
        yield Refusal(
            Code.INTERVAL_CONTAINS_ONE,
            f"the simultaneous 95 % interval of {pair.a}/{pair.b} is {found.interval().words}: it holds 1",
            remedy,
        )
    elif not found.beyond(pair.margin):
        yield Refusal(
            Code.WITHIN_MARGIN,
            f"the simultaneous 95 % interval of {pair.a}/{pair.b} is {found.interval().words}: not wholly"
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
    return log(low) - log(high) if low > 0 and high > 0 else float("-inf")


def _lower(cell: Value) -> float:
    return cell.value if cell.lower is None else cell.lower


def _upper(cell: Value) -> float:
    return cell.value if cell.upper is None else cell.upper
