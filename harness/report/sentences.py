"""Each verdict in words: what is better by how much, or what stands against a ranking and what would change it. Pure.

Two rules of wording. A refusal is never worded as sameness: "not ranked" says that this run cannot tell. Sameness is
said only where it was tested against a margin stated in advance, and the margin stands beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.experiment.types import Rule
from harness.metrics import Better, Kind, Metric
from harness.records import first_line
from harness.report.compared import places
from harness.report.text import alike, count, finite, named, percent, significant, span
from harness.verdict.types import (
    Code,
    Equivalent,
    FailureRow,
    Interval,
    JudgedClaim,
    PairVerdict,
    Ranked,
    Refused,
    Summary,
    Unknown,
)

#: Beyond this factor a percentage reads worse than a factor ("84 % faster" against "1.84x as fast").
_FACTOR_FROM = 1.5

#: Beyond so many passes a number of passes is no advice.
_MOST_PASSES = 1000

PAIRED_EXISTS = (
    "more passes never mend an overlap, since spreads only grow; `rule: paired`, stated in the experiment in advance,"
    " drops this one condition and judges within passes"
)

#: What a pair's verdict is called for short, in tables and figures.
CODE_WORDS = {
    Code.SPREADS_OVERLAP: "spreads overlap",
    Code.INTERVAL_CONTAINS_ONE: "interval contains 1",
    Code.WITHIN_MARGIN: "not beyond the margin",
    Code.TOO_FEW_PASSES: "too few passes",
    Code.CONTROL_SEPARATED: "A/A control separated",
    Code.ORDER_CONFOUNDED: "order confounded",
    Code.UNEQUAL_WORK: "unequal work",
    Code.FAILED_TRIALS: "failed trials",
    Code.DISTURBED: "disturbed",
    Code.BRACKETS_OVERLAP: "peak brackets not disjoint",
    Code.UNIT_MISMATCH: "units differ",
    Code.NOT_COMPARABLE: "not comparable",
    Code.METRIC_MISSING: "metric missing",
}


def verdict_sentence(verdict: PairVerdict) -> str:
    """One sentence with the interval it rests on; of a refusal, with everything that was found."""
    outcome = verdict.outcome
    if isinstance(outcome, Ranked):
        return _ranked(verdict, outcome.better)
    if isinstance(outcome, Equivalent):
        return _equivalent(verdict, outcome.margin)
    found = "; ".join(_lower_first(reason.sentence.rstrip(". ")) for reason in outcome.reasons)
    return f"{named(verdict.a)} and {named(verdict.b)} are not ranked on {verdict.metric.name}: {found}."


def _ranked(verdict: PairVerdict, better: str) -> str:
    worse = verdict.b if better == verdict.a else verdict.a
    ratio, interval = oriented(verdict, better)
    obvious = verdict.metric.unit == "s" or verdict.metric.unit.endswith("/s")  # "faster" says which way is better
    grounds = f"({interval_words(verdict)}{'' if obvious else f'; {verdict.metric.better.value} is better'})"
    low, high = interval if interval is not None else (ratio, ratio)
    if low is None or high is None:
        return f"{named(better)} is better than {named(worse)} on {verdict.metric.name} {grounds}."
    return f"{_difference(verdict.metric, better, worse, low, high)}{_by_how_much(verdict)} {grounds}."


def _by_how_much(verdict: PairVerdict) -> str:
    """`, by 583.2 to 594.0 MiB`: the difference in the metric's own unit, where it was worked out; else nothing."""
    if isinstance(verdict.difference, Unknown):
        return ""
    ends = finite(verdict.difference.low), finite(verdict.difference.high)
    if ends[0] is None or ends[1] is None or ends[0] * ends[1] <= 0:
        return ""
    (low, high), unit = alike(sorted((abs(ends[0]), abs(ends[1]))), verdict.metric.unit)
    return f", by {low} {unit}" if low == high else f", by {low} to {high} {unit}"


def oriented(verdict: PairVerdict, first: str) -> tuple[float | None, tuple[float, float] | None]:
    """Ratio and interval of `first` over the other arm; None where they are unknown or not finite."""
    ratio, interval = known_ratio(verdict), known_interval(verdict)
    if first == verdict.a:
        return ratio, interval
    inverse = 1 / ratio if ratio else None
    return inverse, (1 / interval[1], 1 / interval[0]) if interval is not None and interval[0] > 0 else None


def blocks(verdict: PairVerdict) -> str:
    """What the pair was compared over: `8 passes`, or `80 windows` of text."""
    if verdict.metric.kind is Kind.WINDOWED:
        return count(verdict.within.passes, "window")
    return count(verdict.within.passes, "pass", "passes")


def known_ratio(verdict: PairVerdict) -> float | None:
    """a/b as a finite number, else None."""
    return finite(verdict.ratio)


def known_interval(verdict: PairVerdict) -> tuple[float, float] | None:
    """Both ends of the interval of a/b as finite numbers, else None."""
    if isinstance(verdict.interval, Unknown):
        return None
    low, high = finite(verdict.interval.low), finite(verdict.interval.high)
    return None if low is None or high is None else (low, high)


def _difference(metric: Metric, better: str, worse: str, low: float, high: float) -> str:
    """`low`, `high`: bounds of better/worse in the metric's own values."""
    if metric.better is Better.LOWER:
        return _lower(metric, named(better), named(worse), low, high)
    return _higher(metric, named(better), named(worse), low, high)


def _lower(metric: Metric, better: str, worse: str, low: float, high: float) -> str:
    if metric.unit == "s" and low > 0 and 1 / high >= _FACTOR_FROM:
        return f"{better} is {span(1 / high, 1 / low, 'x')} as fast as {worse} on {metric.name}"
    less = span(100 * (1 - high), 100 * (1 - low), " %")
    if metric.unit == "s":
        return f"{better} takes {less} less time than {worse} on {metric.name}"
    return f"{metric.name} of {better} is {less} lower than that of {worse}"


def _higher(metric: Metric, better: str, worse: str, low: float, high: float) -> str:
    factor = low >= _FACTOR_FROM
    much = span(low, high, "x") if factor else span(100 * (low - 1), 100 * (high - 1), " %")
    if metric.unit.endswith("/s"):
        return f"{better} is {much} {'as fast as' if factor else 'faster than'} {worse} on {metric.name}"
    return f"{metric.name} of {better} is {much} {'' if factor else 'higher than '}that of {worse}"


def interval_words(verdict: PairVerdict) -> str:
    """`95 % simultaneous interval, 8 passes`, or why there is no interval."""
    passes = blocks(verdict)
    if isinstance(verdict.interval, Interval):
        return f"{percent(verdict.interval.level)} simultaneous interval, {passes}"
    if verdict.metric.kind is Kind.EXACT:
        return f"compared exactly, {passes}"
    return f"no interval: {verdict.interval.why}; {passes}"


def _equivalent(verdict: PairVerdict, margin: float) -> str:
    both, name = f"{named(verdict.a)} and {named(verdict.b)}", verdict.metric.name
    if margin == 0:
        return f"{both} have exactly the same {name} ({interval_words(verdict)})."
    tested = verdict.equivalence if isinstance(verdict.equivalence, Interval) else verdict.interval
    ends = (finite(tested.low), finite(tested.high)) if isinstance(tested, Interval) else (None, None)
    if ends[0] is None or ends[1] is None or not isinstance(tested, Interval):
        return f"{both} are equivalent within {percent(margin)} on {name}, a margin stated in advance."
    passes = blocks(verdict)
    return (
        f"{both} are equivalent within {percent(margin)} on {name}: the {percent(tested.level)} interval of their"
        f" ratio, {span(ends[0], ends[1], digits=4)}, lies inside the margin stated in advance ({passes})."
    )


def methods(verdicts: Sequence[PairVerdict]) -> str:
    """How the intervals of a metric were made, each way with its number of pairs; empty if there is none."""
    found = Counter(verdict.interval.method for verdict in verdicts if isinstance(verdict.interval, Interval))
    ways = [f"{method} ({count(pairs, 'pair')})" for method, pairs in sorted(found.items())]
    return f"How the intervals were made: {'; '.join(ways)}." if ways else ""


def within_words(verdict: PairVerdict) -> str:
    """The figures inside the passes (or windows): in how many was `a` better, the ratio and its interval."""
    ratio, interval = known_ratio(verdict), known_interval(verdict)
    first, second = named(verdict.a), named(verdict.b)
    inside = "windows of text" if verdict.metric.kind is Kind.WINDOWED else "passes"
    wins = f"{first} was better in {verdict.within.a_better} of {blocks(verdict)}"
    if ratio is not None and isinstance(verdict.interval, Unknown) and isinstance(verdict.smallest_effect, Unknown):
        return f"Within {inside}: {wins}; ratio {first}/{second} {significant(ratio)}."  # power_words says the rest
    if ratio is None:
        why = verdict.ratio.why if isinstance(verdict.ratio, Unknown) else "it is no finite number"
        return f"Within {inside}: {wins}; no ratio {first}/{second}: {why}."
    ends = f"{span(*interval, digits=4)}; " if interval is not None else ""
    return f"Within {inside}: {wins}; ratio {first}/{second} {significant(ratio)} ({ends}{interval_words(verdict)})."


def remedies(verdict: PairVerdict, rule: Rule) -> tuple[str, ...]:
    """What would change a refusal, each once; empty for a verdict that is none."""
    if not isinstance(verdict.outcome, Refused):
        return ()
    told = [reason.remedy.strip().rstrip(".") for reason in verdict.outcome.reasons if reason.remedy.strip()]
    overlap = any(reason.code is Code.SPREADS_OVERLAP for reason in verdict.outcome.reasons)
    if overlap and rule is Rule.STRICT and not any("rule: paired" in remedy for remedy in told):
        told.append(PAIRED_EXISTS)
    return tuple(dict.fromkeys(told))


def power_words(verdict: PairVerdict) -> str:
    """The smallest effect this run could have shown, and the passes that the difference seen would need."""
    if isinstance(verdict.interval, Unknown) and isinstance(verdict.smallest_effect, Unknown):
        return f"No interval, no smallest difference that could have been shown: {verdict.interval.why}."
    smallest = finite(verdict.smallest_effect)
    if smallest is not None:
        effect = f"The smallest difference this run could have shown is {percent(smallest)}"
    else:
        why = verdict.smallest_effect.why if isinstance(verdict.smallest_effect, Unknown) else "it is no finite number"
        effect = f"The smallest difference this run could have shown is unknown ({why})"
    needed, one = verdict.passes_needed, "window" if verdict.metric.kind is Kind.WINDOWED else "pass"
    many = "windows" if one == "window" else "passes"
    if isinstance(needed, Unknown):
        return f"{effect}; how many {many} the difference seen would need is unknown ({needed.why})."
    if needed > _MOST_PASSES:
        return f"{effect}; the difference seen is too small for any number of {many} that could be run."
    return f"{effect}; to resolve the difference seen takes about {count(needed, one, many)}."


def refusal_text(verdict: PairVerdict, rule: Rule) -> str:
    """A whole refusal: what was found, the within-pass figures, what it would take, what would change it."""
    changes = "; ".join(_lower_first(remedy) for remedy in remedies(verdict, rule))
    nothing = known_ratio(verdict) is None and verdict.within.passes == 0  # no pass holds both arms: no figure to give
    parts = [verdict_sentence(verdict), *([] if nothing else [within_words(verdict), power_words(verdict)])]
    return " ".join([*parts, f"What would change it: {changes}."] if changes else parts)


def headline(verdict: PairVerdict) -> str:
    """A verdict in a few words, for a table."""
    outcome = verdict.outcome
    if isinstance(outcome, Ranked):
        return f"{named(outcome.better)} is better"
    if isinstance(outcome, Equivalent):
        return f"equivalent within {percent(outcome.margin)}" if outcome.margin else "exactly the same"
    return "not ranked: " + ", ".join(dict.fromkeys(CODE_WORDS[reason.code] for reason in outcome.reasons))


def ratio_cell(verdict: PairVerdict) -> str:
    """`1.872 (1.841 to 1.919)`, or why there is no ratio."""
    ratio, interval = known_ratio(verdict), known_interval(verdict)
    if ratio is None:
        return f"unknown: {verdict.ratio.why}" if isinstance(verdict.ratio, Unknown) else "not finite"
    return (
        f"{significant(ratio)} ({span(*interval, digits=4)})"
        if interval
        else f"{significant(ratio)} ({_no_interval(verdict)})"
    )


def _no_interval(verdict: PairVerdict) -> str:
    return "exact" if verdict.metric.kind is Kind.EXACT else "no interval"


def value_cell(summary: Summary | None, metric: Metric, passes: int) -> str:
    """`1.214 GiB (1.202 to 1.231), 8 of 8`: median, lowest, highest, and how many values of how many passes."""
    if summary is None:
        return f"no usable value, 0 of {passes}"
    (middle, low, high), unit = alike([summary.median, summary.low, summary.high], metric.unit)
    spread = f"({low} to {high})" if summary.low != summary.high else f"(all {low})"
    return f"{middle} {unit} {spread}, {summary.n} of {passes}"


def claim_sentence(claim: JudgedClaim) -> str:
    """`duplicate-gone is supported: ...`."""
    return f"{named(claim.id)} is {claim.verdict.value.replace('_', ' ')}: {sentence(claim.why)}"


def failure_sentence(rows: Sequence[FailureRow]) -> str:
    """Failed trials that differ in their pass alone: expected or not, why, and whether repeated passes replace them."""
    failure = rows[0]
    how = "failed as expected" if failure.expected else "failed"
    instead = " The pass was repeated; this trial is not in the figures." if failure.replaced else ""
    why = sentence(first_line(failure.evidence))
    return f"{named(failure.arm)} {how} in {places(rows)} ({failure.reason}): {why}{instead}"


def as_expected(expected: int, total: int) -> str:
    """`all of them as expected`, `7 of them as expected`; of a single one, `as expected` or `not as expected`."""
    if total == 1:
        return "as expected" if expected else "not as expected"
    words = {0: "none", total: "all"}
    return f"{words.get(expected, str(expected))} of them as expected"


def _lower_first(text: str) -> str:
    """A sentence to be joined to another: only a plain word's capital is taken, never a name's."""
    first = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if first.isalpha() and first.istitle() else text


def sentence(text: str) -> str:
    """Text with a full stop, unless it ends in one already."""
    stripped = text.strip()
    return stripped if stripped.endswith((".", "!", "?")) else stripped + "."
