"""Which trial counts for which arm and pass, and what became of the others.

Priming never counts. A repeated pass is judged by its latest complete attempt: one in which every arm has a trial that
was not interrupted. Until a repetition is complete, the attempt before it stands. Nothing is dropped from sight: what
was replaced stays in the list of failures, marked so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.experiment.types import Experiment
from harness.records import Reason, TrialRecord, Value, as_passes
from harness.verdict.types import FailureRow


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The trials that count, by arm and pass. `passes`: planned and recorded, in order. `work`: per arm, each fact its
    usable trials reported, as the set of what they said. `complete`: every arm has a trial in every pass. `sweep`: what
    a reader calls a pass of these: trials of their own for quality are `scoring` 1, 2, ...
    """

    passes: tuple[int, ...]
    judged: Mapping[str, Mapping[int, TrialRecord]]
    failures: tuple[FailureRow, ...]
    work: Mapping[str, Mapping[str, frozenset[str]]]
    complete: bool
    sweep: str = "pass"

    def in_sweeps(self, numbers: Iterable[int]) -> str:
        """As a sentence says it: `pass 3`, `passes 1, 4`, `scorings 1, 2`."""
        listed = sorted(set(numbers))
        return f"{self.sweep if len(listed) == 1 else self.sweeps} {', '.join(map(str, listed))}"

    @property
    def sweeps(self) -> str:
        """Plural of `sweep`."""
        return "passes" if self.sweep == "pass" else f"{self.sweep}s"

    def values(self, arm: str, metric: str) -> dict[int, Value]:
        """The metric's values of that arm by pass, over usable trials that have one."""
        return {
            number: record.values[metric]
            for number, record in self.judged[arm].items()
            if record.failure is None and metric in record.values
        }

    def failed(self, arm: str) -> list[TrialRecord]:
        """Counted trials of that arm that failed, expected or not, in pass order."""
        return [record for record in self.judged[arm].values() if record.failure is not None]


def collect(experiment: Experiment, records: Sequence[TrialRecord]) -> Cells:
    """Choose the counted trials of a run. Records of arms that the experiment does not have are ignored."""
    names = experiment.names
    chosen = counted_trials(experiment, records)
    judged = {arm: {number: cells[arm] for number, cells in chosen.items() if arm in cells} for arm in names}
    counted = {record.trial for cells in chosen.values() for record in cells.values()}
    counted |= {record.trial for record in latest_scorings(records)}
    return Cells(
        passes=tuple(chosen),
        judged=judged,
        failures=tuple(
            _row(record, counted)
            for record in records
            if record.failure is not None and record.probe_limit_bytes is None
        ),
        work={arm: _work(judged[arm].values()) for arm in names},
        complete=all(arm in cells and not is_interrupted(cells[arm]) for cells in chosen.values() for arm in names),
    )


def collect_scorings(experiment: Experiment, records: Sequence[TrialRecord]) -> Cells:
    """Choose the counted trials of their own for quality; the how manieth of its arm stands for the pass. An arm that
    is meant to fail has none.
    """
    sound = tuple(arm for arm in experiment.arms if arm.expect.failure is None)
    asked = replace(experiment, passes=experiment.scorings, arms=sound)
    found = collect(asked, as_passes(records))
    absent = {arm: found.judged.get(arm, {}) for arm in experiment.names}
    return replace(
        found,
        sweep="scoring",
        judged=absent,
        work={arm: found.work.get(arm, {}) for arm in experiment.names},
        failures=(),
    )


def counted_trials(experiment: Experiment, records: Iterable[TrialRecord]) -> dict[int, dict[str, TrialRecord]]:
    """The one trial that counts, by pass (planned and recorded, in order) and arm. Verdicts and figures ask here."""
    names = experiment.names
    by_pass: dict[int, list[TrialRecord]] = {number: [] for number in range(1, experiment.passes + 1)}
    for record in records:
        if record.counted and record.arm in names:
            by_pass.setdefault(record.pass_number, []).append(record)
    return {number: choose(by_pass[number], len(names)) for number in sorted(by_pass)}


def choose(records: Iterable[TrialRecord], arms: int) -> dict[str, TrialRecord]:
    """The counted trial of each arm in one pass, from all attempts at it, in the order they ran.

    A trial of an arm whose cell is already filled begins a new attempt once the pass is complete, and replaces the cell
    while it is not. An interrupted trial fills a cell only for want of anything else.
    """
    complete: dict[str, TrialRecord] = {}
    current: dict[str, TrialRecord] = {}
    for record in sorted(records, key=lambda record: record.trial):
        if len(current) == arms and not any(map(is_interrupted, current.values())):
            complete, current = current, {}
        if not is_interrupted(record) or record.arm not in current:
            current[record.arm] = record
    whole = len(current) == arms and not any(map(is_interrupted, current.values()))
    return current if whole or not complete else complete


def latest_scorings(records: Iterable[TrialRecord]) -> Iterable[TrialRecord]:
    """The last attempt at each trial of its own for quality."""
    return {record.planned: record for record in records if record.scoring}.values()


def is_interrupted(record: TrialRecord) -> bool:
    """The trial was cut short from outside: it says nothing of its arm and is always run again."""
    return record.failure is not None and record.failure.reason is Reason.INTERRUPTED


def _row(record: TrialRecord, counted: set[int]) -> FailureRow:
    assert record.failure is not None  # noqa: S101 -- only failed records get here; for the type checker
    return FailureRow(
        arm=record.arm,
        pass_number=record.pass_number,
        reason=record.failure.reason.value,
        evidence=record.failure.evidence,
        expected=record.expected,
        replaced=not record.priming and record.trial not in counted,
        scoring=record.scoring,
    )


def _work(records: Iterable[TrialRecord]) -> dict[str, frozenset[str]]:
    facts: dict[str, set[str]] = {}
    for record in records:
        if record.failure is None:
            for key, value in record.work.items():
                facts.setdefault(key, set()).add(json.dumps(value, sort_keys=True, default=str))
    return {key: frozenset(said) for key, said in facts.items()}
