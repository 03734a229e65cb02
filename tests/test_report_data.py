"""Which trials a report shows as those that count."""

from __future__ import annotations

from dataclasses import replace

import report_example

from harness.records import Failure, Reason, TrialRecord
from harness.report.data import RunData
from harness.verdict.cells import collect


def _again(run: RunData, arms: int, *, interrupted: bool = False) -> RunData:
    """The run with a second attempt at its first pass, by the first `arms` arms only."""
    first = [record for record in run.counted if record.pass_number == 1][:arms]
    number = max(record.trial for record in run.records)
    failure = Failure(reason=Reason.INTERRUPTED, evidence="stopped by SIGINT") if interrupted else None
    new = [
        replace(record, trial=number + place, attempt=2, failure=failure) for place, record in enumerate(first, start=1)
    ]
    return replace(run, records=(*run.records, *new))


def _judged(run: RunData) -> set[int]:
    cells = collect(run.experiment, run.records)
    return {record.trial for by_pass in cells.judged.values() for record in by_pass.values()}


def _attempts(records: tuple[TrialRecord, ...]) -> set[int]:
    return {record.attempt for record in records if record.pass_number == 1}


def test_a_repetition_that_is_not_complete_replaces_nothing() -> None:
    """Until every arm has run again, the report shows the attempt that the verdicts are made from: the first."""
    run = _again(report_example.data(), 1)
    assert _attempts(run.latest) == {1}
    assert {record.trial for record in run.latest} == _judged(run)


def test_a_complete_repetition_replaces_its_pass() -> None:
    """Once every arm has run again, the report shows the repetition, as the verdicts do, and keeps both on record."""
    whole = report_example.data()
    run = _again(whole, len(whole.experiment.names))
    assert _attempts(run.latest) == {2}
    assert {record.trial for record in run.latest} == _judged(run)
    assert len(run.counted) == len(whole.counted) + len(whole.experiment.names)


def test_an_interrupted_repetition_replaces_nothing() -> None:
    """A trial that was cut short says nothing of its arm: what stood before it goes on counting."""
    run = _again(report_example.data(), 2, interrupted=True)
    assert _attempts(run.latest) == {1}
    assert {record.trial for record in run.latest} == _judged(run)
