"""Speed of one trial, from iteration events and phases, as metrics.py defines it. Pure.

Only iterations of the phase that a metric names count; those of the phase `warm-up` are on record and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from harness.events import Events, Iteration
from harness.measure.readings import Bad, collapse, reported
from harness.metrics import Metric
from harness.records import Value

#: First and last thirds of a trial that differ by more than this, with no overlap, are called a drift. Iterations of
#: real prefill and decode on two cores stay within 2 to 3 % of each other; a cold engine reads some 30 % low.
DRIFT: Final = 0.05
#: With one iteration a third there is no overlap to look at, so the step must be larger.
DRIFT_SHORT: Final = 0.10

_MOST_TOKENS: Final = 10**9


def prefill(metric: Metric, events: Events, part: Mapping[str, Any] | None) -> Value | Bad:
    """Prompt tokens per second: `tokens_in / seconds` of each iteration. `part`: `workload.prefill`, if any."""
    wanted = {"tokens_in": part["prompt_tokens"], "tokens_out": 1} if part else {}
    found = _iterations(metric, "prefill", events, wanted, part)
    if not isinstance(found, list):
        return found
    return collapse(metric, [item.tokens_in / item.seconds for item in found])


def decode(metric: Metric, events: Events, part: Mapping[str, Any] | None) -> Value | Bad:
    """Output tokens per second after the first: `(tokens_out - 1) / seconds` of each iteration."""
    wanted = {"tokens_in": part["prompt_tokens"], "tokens_out": part["new_tokens"]} if part else {}
    found = _iterations(metric, "decode", events, wanted, part)
    if not isinstance(found, list):
        return found
    return collapse(metric, [(item.tokens_out - 1) / item.seconds for item in found])


def phase_seconds(metric: Metric, name: str, events: Events) -> Value | Bad:
    """Duration of a phase; of all of them, if the trial had it more than once."""
    phases = [phase for phase in events.phases if phase.name == name]
    if not phases:
        return reported(metric, events) if _has(metric, events) else Bad(f"{metric.name}: missing; no phase `{name}`")
    if any(phase.end is None for phase in phases):
        return Bad(f"{metric.name}: missing; the phase `{name}` began and did not end")
    spent = sum(phase.end - phase.begin for phase in phases if phase.end is not None)
    return collapse(metric, [spent])


def _has(metric: Metric, events: Events) -> bool:
    return any(event.name == metric.name for event in events.reported)


def _iterations(
    metric: Metric, phase: str, events: Events, wanted: Mapping[str, int], part: Mapping[str, Any] | None
) -> list[Iteration] | Value | Bad:
    """The phase's iterations if all did the work that was asked for; a reported value where there are none at all."""
    spoilt = [event for event in events.unusable if event.get("event") == "iteration" and event.get("phase") == phase]
    if spoilt:
        return Bad(f"{metric.name}: an iteration cannot be used: {str(spoilt[0])[:200]}")
    found = [iteration for iteration in events.iterations if iteration.phase == phase]
    if not found:
        if _has(metric, events):
            return reported(metric, events)
        return Bad(f"{metric.name}: missing; neither an iteration of phase `{phase}` nor a metric event was reported")
    wrong = _wrong_work(found, wanted)
    if wrong:
        return Bad(f"{metric.name}: {wrong}")
    if part and len(found) < part.get("repeats", 1):
        return Bad(f"{metric.name}: {len(found)} of {part['repeats']} iterations of phase `{phase}` were reported")
    return found


def _wrong_work(found: Sequence[Iteration], wanted: Mapping[str, int]) -> str:
    for number, item in enumerate(found, start=1):
        counts = {"tokens_in": item.tokens_in, "tokens_out": item.tokens_out}
        for name, count in wanted.items():
            if counts[name] != count:
                return f"wrong token count in iteration {number}: {name} is {counts[name]}, {count} was asked for"
        if item.seconds <= 0 or max(counts.values()) > _MOST_TOKENS:
            return f"iteration {number} is no reading: {counts} in {item.seconds!r} s"
    return ""


@dataclass(frozen=True)
class Drift:
    """A trial whose last third differs from its first. `change`: of the medians, as a fraction of the first."""

    first: float
    last: float
    change: float


def drift(series: Sequence[float]) -> Drift | None:
    """How the readings of one trial drift; None where they do not. Warm-up defined by a count leaves a cold engine
    reading low at first: no value is changed for that, but the reader is told.
    """
    third = len(series) // 3
    if third == 0 or min(series) <= 0:
        return None
    first, last = series[:third], series[-third:]
    change = median(last) / median(first) - 1
    disjoint = max(first) < min(last) or max(last) < min(first)
    limit = DRIFT if third > 1 else DRIFT_SHORT
    return Drift(median(first), median(last), change) if disjoint and abs(change) > limit else None
