"""What came of one metric in one trial: a value, or why there is none. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.events import Events, Reported
from harness.metrics import Kind, Metric
from harness.records import Value


@dataclass(frozen=True)
class Bad:
    """The arm did not deliver: the trial has failed as `bad_output`."""

    why: str


@dataclass(frozen=True)
class Lost:
    """The meter did not deliver: the trial has failed as `meter_lost`."""

    why: str


@dataclass(frozen=True)
class NotReached:
    """Nothing failed, yet there is no value: memory that never settled, say."""

    why: str


Reading = Value | Bad | Lost | NotReached


def collapse(metric: Metric, series: Sequence[float]) -> Value | Bad:
    """The median of a trial's readings, which stay beside it: iterations of one process are not replicates."""
    for number in series:
        if not math.isfinite(number):
            return Bad(f"{metric.name}: {number!r} is no finite number")
        if metric.positive and number <= 0:
            return Bad(f"{metric.name}: {number!r} {metric.unit} is no reading; it must be more than 0")
        if number < 0:
            return Bad(f"{metric.name}: {number!r} {metric.unit} is negative")
    if metric.kind is Kind.EXACT and len(set(series)) > 1:
        return Bad(f"{metric.name}: exact by definition, yet reported as {min(series)!r} and {max(series)!r}")
    # the series of a windowed metric is its windows, which a bare number does not have
    kept = () if metric.kind is Kind.WINDOWED else tuple(map(float, series))
    return Value(value=float(median(series)), series=kept)


def reported(metric: Metric, events: Events) -> Value | Bad:
    """The metric from metric events of its name: their median. One that is no finite number spoils all."""
    found = [event for event in events.reported if event.name == metric.name]
    if not found:
        return Bad(f"{metric.name}: missing; no metric event of that name was reported")
    spoilt: Reported | None = next((event for event in found if event.value is None), None)
    if spoilt is not None:
        return Bad(f"{metric.name}: reported as {spoilt.text}, which is no finite number")
    return collapse(metric, [event.value for event in found if event.value is not None])
