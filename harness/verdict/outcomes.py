"""What is said of one pair of arms on one metric, once the comparison is made and the gates have spoken."""

from __future__ import annotations

from math import exp, log1p
from statistics import median
from typing import Any

from harness.metrics import Better, Kind
from harness.verdict import flags
from harness.verdict.claims import HARMLESS
from harness.verdict.compare import Comparison
from harness.verdict.repeatable import Exact, window_means
from harness.verdict.sides import Pair
from harness.verdict.types import (
    Code,
    Equivalent,
    Interval,
    Outcome,
    PairVerdict,
    Ranked,
    Refusal,
    Refused,
    Unknown,
    Within,
)


def pair_verdict(
    pair: Pair, reasons: tuple[Refusal, ...], margin: float | None, difference: Interval | Unknown
) -> PairVerdict:
    """The verdict with its figures. `reasons`: why the pair is not ranked, empty if no gate objects. `margin`: the
    relative difference too small to matter, None where none is stated. `difference`: of a - b in the metric's unit.
    """
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
        passes_needed=found.passes_needed(pair.margin),
        notes=_pair_notes(pair, found.log_ratio),
        estimate=found.estimate(),
        equivalence=found.equivalence(),
        place=found.place,
    )


def _outcome(pair: Pair, reasons: tuple[Refusal, ...], margin: float | None) -> Outcome:
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


def _bracketed(pair: Pair, margin: float) -> bool:
    """A peak is equivalent only if no place of it within its bracket lies outside the margin."""
    if pair.metric.kind is not Kind.PEAK:
        return True
    cells = [*pair.x.values.values(), *pair.y.values.values()]
    if any(cell.upper is None for cell in cells):
        return False
    low = min(cell.value if cell.lower is None else cell.lower for cell in cells)
    return low > 0 and max(cell.value if cell.upper is None else cell.upper for cell in cells) < low * (1 + margin)


def _better(pair: Pair, log_ratio: float) -> str:
    return pair.a if (log_ratio < 0) == (pair.metric.better is Better.LOWER) else pair.b


def _plain_ratio(pair: Pair) -> float | Unknown:
    """The ratio of medians where no analysis could be done; a figure without an interval."""
    if not pair.x.values or not pair.y.values:
        return Unknown("an arm has no value")
    a, b = median(v.value for v in pair.x.values.values()), median(v.value for v in pair.y.values.values())
    return a / b if a > 0 and b > 0 and a / b < float("inf") else Unknown("no ratio can be formed")


def _within(pair: Pair) -> Within:
    x, y = pair.x.values, pair.y.values
    if pair.metric.kind is Kind.WINDOWED:
        a, b = window_means(pair.a, x), window_means(pair.b, y)
        if isinstance(a, Unknown) or isinstance(b, Unknown) or len(a) != len(b):
            return Within(a_better=0, passes=0)
        return Within(a_better=sum(mine < other for mine, other in zip(a, b, strict=True)), passes=len(a))
    if pair.metric.better is Better.LOWER:
        return Within(a_better=sum(x[n].value < y[n].value for n in pair.common), passes=len(pair.common))
    return Within(a_better=sum(x[n].value > y[n].value for n in pair.common), passes=len(pair.common))


def _pair_notes(pair: Pair, log_ratio: float) -> tuple[str, ...]:
    notes = []
    planned = len(pair.cells.passes)
    if len(pair.common) < planned:
        notes.append(f"{len(pair.common)} of {planned} {pair.cells.sweeps} are complete for this pair")
    if isinstance(pair.comparison, Comparison) and pair.metric.kind is not Kind.WINDOWED:
        least = min(pair.x.low, pair.y.low)
        blur = log1p((pair.metric.resolution or 0.0) / least) if least > 0 else 0.0  # modes closer than this are none
        apart = max(abs(log_ratio), blur)
        notes.extend(note for s in (pair.x, pair.y) if (note := flags.bimodal(s.arm, s.modes, apart)))
    return tuple(notes)
