"""Tables of what was read: one value for each trial and metric, and the readings that it collapses. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.metrics import Metric
from harness.records import TrialRecord, Value
from harness.report.tables.column import (
    KEY,
    STANDING,
    Cell,
    Column,
    Seen,
    Source,
    Table,
    Type,
    each,
    of_failure,
    trials,
)


@dataclass(frozen=True)
class Yielded:
    """What one trial has of one metric."""

    seen: Seen
    metric: Metric

    @property
    def record(self) -> TrialRecord:
        """The trial's record."""
        return self.seen.record

    @property
    def value(self) -> Value | None:
        """None where there is none; `why` says why."""
        return self.record.values.get(self.metric.name)

    def of_value(self, field: str) -> Cell:
        """One field of the value."""
        found: Cell = getattr(self.value, field) if self.value is not None else None
        return found

    @property
    def why(self) -> str | None:
        """Why there is no value; None where there is one."""
        record, name = self.record, self.metric.name
        if self.value is not None:
            return None
        if record.failure is not None:
            return f"the trial failed: {record.failure.reason.value}"
        if record.priming:
            return record.missing.get(name, "a priming trial needs no values")
        return record.missing.get(name, "no reason on record")


def _asked(source: Source, record: TrialRecord) -> tuple[Metric, ...]:
    """What such a trial yields: where text is scored in trials of its own, those yield perplexity and nothing else."""
    return source.data.experiment.metrics_of(scoring=record.scoring)


def _yielded(source: Source) -> Iterator[Yielded]:
    return (Yielded(seen, metric) for seen in trials(source) for metric in _asked(source, seen.record))


def _series(record: TrialRecord) -> Iterator[tuple[str, int, float]]:
    for name, value in record.values.items():
        for index, number in enumerate(value.series, start=1):
            yield name, index, number


METRICS = Table(
    "metrics",
    "one metric of one trial, with a value or with the reason why there is none",
    _yielded,
    (
        *KEY,
        *STANDING,
        Column("counted", Type.FLAG, "", "as in trials", lambda y: y.seen.counted),
        Column(
            "usable",
            Type.FLAG,
            "",
            "as in trials: statistics use these rows where they have a value",
            lambda y: y.seen.usable,
        ),
        Column("metric", Type.TEXT, "", "name of the metric", lambda y: y.metric.name),
        Column("unit", Type.TEXT, "", "unit of value, lower and upper", lambda y: y.of_value("unit") or y.metric.unit),
        Column("better", Type.TEXT, "", "lower or higher", lambda y: y.metric.better.value),
        Column("value", Type.NUMBER, "<unit>", "the trial's value", lambda y: y.of_value("value")),
        Column("lower", Type.NUMBER, "<unit>", "lower end of a peak's bracket", lambda y: y.of_value("lower")),
        Column("upper", Type.NUMBER, "<unit>", "upper end of a peak's bracket", lambda y: y.of_value("upper")),
        Column("upper_missing", Type.TEXT, "", "why a peak has no upper end", lambda y: y.of_value("upper_missing")),
        Column("failure", Type.TEXT, "", "reason of the trial's failure; none: it ended well", of_failure("reason")),
        Column("expected", Type.FLAG, "", "the failure is the one that the arm declared", lambda y: y.record.expected),
        Column("why", Type.TEXT, "", "why there is no value", lambda y: y.why),
    ),
)

SERIES = Table(
    "series",
    "one reading inside a trial (an iteration, a window of text) that the trial's value collapses",
    each(_series),
    (
        *KEY,
        Column("metric", Type.TEXT, "", "name of the metric", lambda o: o.thing[0]),
        Column("index", Type.WHOLE, "", "place in the trial, from 1", lambda o: o.thing[1]),
        Column("value", Type.NUMBER, "<unit>", "the reading, in the unit that metrics gives", lambda o: o.thing[2]),
    ),
)
