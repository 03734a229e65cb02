"""Each verdict in words: what is better by how much, or what stands against a ranking and what would change it. Pure.

Two rules of wording. A refusal is never worded as sameness: "not ranked" says that this run cannot tell. Sameness is
said only where it was tested against a margin stated in advance, and the margin stands beside it.
"""

from __future__ import annotations

from harness.experiment.types import Rule
from harness.metrics import Better, Metric
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

PAIRED_EXISTS = (
    "More passes never mend an overlap, since spreads only grow; `rule: paired`, stated in the experiment in advance,"
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
    Code.BRACKETS_OVERLAP: "peak brackets overlap",
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
    grounds = f"({interval_words(verdict)})"
    low, high = interval if interval is not None else (ratio, ratio)
    if low is None or high is None:
        return f"{named(better)} is better than {named(worse)} on {verdict.metric.name} {grounds}."
    return f"{_difference(verdict.metric, better, worse, low, high)} {grounds}."


def oriented(verdict: PairVerdict, first: str) -> tuple[float | None, tuple[float, float] | None]:
    """Ratio and interval of `first` over the other arm; None where they are unknown or not finite."""
    ratio, interval = known_ratio(verdict), known_interval(verdict)
    if first == verdict.a:
        return ratio, interval
    inverse = 1 / ratio if ratio else None
    return inverse, (1 / interval[1], 1 / interval[0]) if interval is not None and interval[0] > 0 else None


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
    return f"{metric.name} of {better} is {less} lower than that of {worse}; lower is better"


def _higher(metric: Metric, better: str, worse: str, low: float, high: float) -> str:
    factor = low >= _FACTOR_FROM
    much = span(low, high, "x") if factor else span(100 * (low - 1), 100 * (high - 1), " %")
    if metric.unit.endswith("/s"):
        return f"{better} is {much} {'as fast as' if factor else 'faster than'} {worse} on {metric.name}"
    return f"{metric.name} of {better} is {much} {'' if factor else 'higher than '}that of {worse}; higher is better"


def interval_words(verdict: PairVerdict) -> str:
    """`95 % simultaneous interval, 8 passes`, or why there is no interval."""
    passes = count(verdict.within.passes, "pass", "passes")
    if isinstance(verdict.interval, Interval):
        return f"{significant(100 * verdict.interval.level, 2)} % interval, {verdict.interval.method}, {passes}"
    return f"no interval: {verdict.interval.why}; {passes}"


def _equivalent(verdict: PairVerdict, margin: float) -> str:
    interval = known_interval(verdict)
    held = f"the ratio's interval {span(*interval, digits=4)} lies inside" if interval else "the ratio lies inside"
    return (
        f"{named(verdict.a)} and {named(verdict.b)} are equivalent within {percent(margin)} on {verdict.metric.name}:"
        f" {held} the margin stated in advance ({interval_words(verdict)})."
    )


def within_words(verdict: PairVerdict) -> str:
    """The figures inside the passes: in how many was `a` better, the ratio and its interval."""
    ratio, interval = known_ratio(verdict), known_interval(verdict)
    first, second = named(verdict.a), named(verdict.b)
    wins = f"{first} was better in {verdict.within.a_better} of {count(verdict.within.passes, 'pass', 'passes')}"
    if ratio is None:
        why = verdict.ratio.why if isinstance(verdict.ratio, Unknown) else "it is no finite number"
        return f"Within passes: {wins}; no ratio {first}/{second}: {why}."
    ends = f"{span(*interval, digits=4)}; " if interval is not None else ""
    return f"Within passes: {wins}; ratio {first}/{second} {significant(ratio)} ({ends}{interval_words(verdict)})."


def remedies(verdict: PairVerdict, rule: Rule) -> tuple[str, ...]:
    """What would change a refusal, each once; empty for a verdict that is none."""
    if not isinstance(verdict.outcome, Refused):
        return ()
    told = [_sentence(reason.remedy) for reason in verdict.outcome.reasons if reason.remedy.strip()]
    overlap = any(reason.code is Code.SPREADS_OVERLAP for reason in verdict.outcome.reasons)
    if overlap and rule is Rule.STRICT:
        told.append(PAIRED_EXISTS + ".")
    return tuple(dict.fromkeys(told))


def power_words(verdict: PairVerdict) -> str:
    """The smallest effect this run could have shown, and the passes that the difference seen would need."""
    smallest = finite(verdict.smallest_effect)
    if smallest is not None:
        effect = f"The smallest difference this run could have shown is {percent(smallest)}"
    else:
        why = verdict.smallest_effect.why if isinstance(verdict.smallest_effect, Unknown) else "it is no finite number"
        effect = f"The smallest difference this run could have shown is unknown ({why})"
    needed = verdict.passes_needed
    if isinstance(needed, Unknown):
        return f"{effect}; how many passes the difference seen would need is unknown ({needed.why})."
    return f"{effect}; to resolve the difference seen takes about {count(needed, 'pass', 'passes')}."


def refusal_text(verdict: PairVerdict, rule: Rule) -> str:
    """A whole refusal: what was found, the within-pass figures, what it would take, what would change it."""
    changes = " ".join(remedies(verdict, rule))
    nothing = known_ratio(verdict) is None and verdict.within.passes == 0  # no pass holds both arms: no figure to give
    parts = [verdict_sentence(verdict), *([] if nothing else [within_words(verdict), power_words(verdict)])]
    return " ".join([*parts, f"What would change it: {changes}"] if changes else parts)


def headline(verdict: PairVerdict) -> str:
    """A verdict in a few words, for a table."""
    outcome = verdict.outcome
    if isinstance(outcome, Ranked):
        return f"{named(outcome.better)} is better"
    if isinstance(outcome, Equivalent):
        return f"equivalent within {percent(outcome.margin)}"
    return "not ranked: " + ", ".join(dict.fromkeys(CODE_WORDS[reason.code] for reason in outcome.reasons))


def ratio_cell(verdict: PairVerdict) -> str:
    """`1.872 (1.841 to 1.919)`, or why there is no ratio."""
    ratio, interval = known_ratio(verdict), known_interval(verdict)
    if ratio is None:
        return f"unknown: {verdict.ratio.why}" if isinstance(verdict.ratio, Unknown) else "not finite"
    return f"{significant(ratio)} ({span(*interval, digits=4)})" if interval else f"{significant(ratio)} (no interval)"


def value_cell(summary: Summary | None, metric: Metric, passes: int) -> str:
    """`1.214 GiB (1.202 to 1.231), 8 of 8`: median, lowest, highest, and how many values of how many passes."""
    if summary is None:
        return f"no usable value, 0 of {passes}"
    (middle, low, high), unit = alike([summary.median, summary.low, summary.high], metric.unit)
    spread = f"({low} to {high})" if summary.low != summary.high else f"(all {low})"
    return f"{middle} {unit} {spread}, {summary.n} of {passes}"


def claim_sentence(claim: JudgedClaim) -> str:
    """`duplicate-gone is supported: ...`."""
    return f"{named(claim.id)} is {claim.verdict.value.replace('_', ' ')}: {_sentence(claim.why)}"


def failure_sentence(failure: FailureRow) -> str:
    """One failed trial: expected or not, why, and whether a repeated pass stands in its place."""
    how = "failed as expected" if failure.expected else "failed"
    place = "before the first pass" if failure.pass_number == 0 else f"in pass {failure.pass_number}"
    instead = " The pass was repeated; this trial is not in the figures." if failure.replaced else ""
    return f"{named(failure.arm)} {how} {place} ({failure.reason}): {_sentence(failure.evidence)}{instead}"


def _lower_first(text: str) -> str:
    """A sentence to be joined to another: only a plain word's capital is taken, never a name's."""
    first = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if first.isalpha() and first.istitle() else text


def _sentence(text: str) -> str:
    stripped = text.strip()
    return stripped if stripped.endswith((".", "!", "?")) else stripped + "."
