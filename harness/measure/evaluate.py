"""One trial's raw data becomes its record: values, what is missing, and whether it ended as well as it looked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from harness.events import Events
from harness.experiment.types import Arm, Expectation, Experiment
from harness.measure.engagement import mismatches
from harness.measure.extract import extract
from harness.measure.memory import memory_record
from harness.measure.readings import Bad, Lost, Reading
from harness.measure.speed import drift
from harness.meterlog import MeterLog
from harness.records import Disturbance, Failure, MemoryRecord, Reason, TrialRecord, Value

#: Ends of a probe that tell nothing of its memory limit.
_NOT_THE_LIMIT: Final = frozenset({Reason.INTERRUPTED, Reason.HARNESS_ERROR})


def evaluate(experiment: Experiment, record: TrialRecord, events: Events, meter: MeterLog | None) -> TrialRecord:
    """The record with values, memory and the last word on its failure. `meter`: the meter's log, None without one.

    A trial that failed keeps no values, whatever it printed before. One that ended well fails all the same as
    `not_engaged`, `bad_output`, `meter_lost` or `disturbed`, in this order, and as `bad_output` if its arm was declared
    to fail. A disturbed trial keeps its values for the reader; `usable` is what statistics ask. A priming trial needs
    no values; what disturbs a host changes no word that a scoring trial reads.
    """
    arm = experiment.arm(record.arm)
    seen = replace(
        record,
        phases=events.phases,
        iterations=events.iterations,
        engagements=events.engagements,
        work=_work(events) or record.work,
        memory=_memory(meter, events) if meter is not None else record.memory,
        disturbance=_disturbance(experiment, record.disturbance),
    )
    if seen.failure is not None:
        return _closed(seen, arm, seen.failure)
    asked = experiment.metrics_of(scoring=seen.scoring)
    readings = {metric.name: extract(metric, experiment, seen, events) for metric in asked}
    values = {name: reading for name, reading in readings.items() if isinstance(reading, Value)}
    missing = {name: reading.why for name, reading in readings.items() if not isinstance(reading, Value)}
    failure = _failure(experiment, arm, seen, events, list(readings.values()))
    whole = replace(seen, values=values, missing=missing, notes=(*seen.notes, *_notes(values, events)))
    return _closed(whole, arm, failure)


def _closed(record: TrialRecord, arm: Arm, failure: Failure | None) -> TrialRecord:
    """The record with its last word: which failure, whether the arm had declared it, and which values are kept."""
    if failure is None and arm.expect.failure is not None:
        evidence = f"was declared to fail as {arm.expect.signal or arm.expect.failure}, but ended well"
        unmet = Failure(reason=Reason.BAD_OUTPUT, evidence=evidence, wall_s=record.ended - record.began)
        return replace(record, failure=unmet, expected=False, values={})
    # a probe under a memory limit is there to find where the arm dies: that it does is no failure of the run
    probe = record.probe_limit_bytes is not None and (failure is None or failure.reason not in _NOT_THE_LIMIT)
    expected = failure is not None and (probe or meets(arm.expect, failure))
    values = record.values if failure is None or failure.reason is Reason.DISTURBED else {}
    return replace(record, failure=failure, expected=expected, values=values)


def meets(expect: Expectation, failure: Failure) -> bool:
    """The failure is one that was declared, certain or possible: same reason, and same signal where one was named."""
    return failure.reason.value in {expect.failure, expect.may_fail} and expect.signal in {None, failure.signal}


def _failure(
    experiment: Experiment, arm: Arm, record: TrialRecord, events: Events, readings: Sequence[Reading]
) -> Failure | None:
    """Why a trial that ended well has no usable values, by the first reason that holds."""
    bad = [] if record.priming else [reading.why for reading in readings if isinstance(reading, Bad)]
    lost = [] if record.priming else [reading.why for reading in readings if isinstance(reading, Lost)]
    probe = record.probe_limit_bytes is not None  # it stops after one short request, before it could say what ran
    limits = experiment.disturbance
    over = [f"{name} {record.disturbance.counters[name]:g} > {limits[name]:g}" for name in record.disturbance.exceeded]
    if not events.done:
        bad.insert(0, "no `done` event: the stream of events is incomplete")
    for reason, found in (
        (Reason.NOT_ENGAGED, [] if probe else list(mismatches(arm.expect, events.engagements))),
        (Reason.BAD_OUTPUT, bad),
        (Reason.METER_LOST, lost),
        (Reason.DISTURBED, over if record.counted else []),
    ):
        if found:
            return Failure(reason=reason, evidence="; ".join(found), wall_s=record.ended - record.began)
    return None


def _memory(meter: MeterLog, events: Events) -> MemoryRecord:
    return memory_record(meter, events)


def _work(events: Events) -> dict[str, Any]:
    """Facts that must be equal between arms, as the driver reported them in `work` events."""
    facts = [fact for fact in events.facts if fact.get("event") == "work"]
    return {key: value for fact in facts for key, value in fact.items() if key not in {"event", "t"}}


def _disturbance(experiment: Experiment, found: Disturbance) -> Disturbance:
    """With the counters over the experiment's thresholds; a hidden counter exceeds nothing."""
    over = tuple(
        name for name, limit in experiment.disturbance.items() if (value := found.counters.get(name)) and value > limit
    )
    return replace(found, exceeded=over)


def _notes(values: Mapping[str, Value], events: Events) -> tuple[str, ...]:
    """What the reader should know of a trial's values."""
    notes = []
    for name, value in values.items():
        found = drift(value.series) if name != "perplexity" else None
        if found is not None:
            change = f"{found.first:.4g} to {found.last:.4g}, {found.change:+.1%}"
            notes.append(f"{name} drifts within the trial: first to last third {change}; its warm-up may be too short")
    if events.malformed:
        notes.append(f"{events.malformed} lines of the event stream were no usable events")
    if events.late:
        notes.append(f"{events.late} results after `done` were not used")
    return tuple(notes)
