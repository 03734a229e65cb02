"""Which trials are still to run, worked out anew from what is recorded: a run that goes on after a crash and one that
was never disturbed take the same path through this.

A *round* is one sweep through a pass: the planned one, and one more for each time the pass is repeated. Within a round
a planned trial is answered by its first record that is not `interrupted`; interrupted attempts count the attempt on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from harness.plan import Plan, PlannedTrial
from harness.records import Reason, TrialRecord
from harness.run.extras import Extra


@dataclass(frozen=True, kw_only=True)
class Task:
    """The next attempt at a planned trial. `attempt`: from 1. `note`: why it is not the first, for the record. `probe`:
    number of the probe under `limit` bytes that runs before it instead, from 1; 0 for the trial itself.
    """

    planned: PlannedTrial
    attempt: int = 1
    note: str | None = None
    probe: int = 0
    limit: int | None = None

    @property
    def priming(self) -> bool:
        """No statistics count it."""
        return self.planned.priming or self.limit is not None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One sweep through a pass: attempts from `first` up to, not including, `until` (None: no later round)."""

    trials: tuple[PlannedTrial, ...]
    first: int = 1
    until: int | None = None

    def holds(self, attempt: int) -> bool:
        """Whether that attempt belongs to this round."""
        return attempt >= self.first and (self.until is None or attempt < self.until)


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a crash left that no record tells of. `attempts`: per planned trial the largest attempt with files.
    `reprime`: arms whose private caches are gone, so that priming recorded up to that trial number counts no more.
    """

    attempts: Mapping[int, int] = field(default_factory=dict)
    reprime: Mapping[str, int] = field(default_factory=dict)


def whole_plan(plan: Plan, extras: Sequence[Extra]) -> Plan:
    """The plan with the passes that were added while it ran."""
    return replace(plan, trials=plan.trials + tuple(trial for extra in extras for trial in extra.trials))


def rounds(plan: Plan, extras: Sequence[Extra]) -> tuple[Round, ...]:
    """All rounds in order: passes as planned (priming and scoring first), each with its repeats behind it."""
    trials = whole_plan(plan, extras).trials
    found: list[Round] = []
    for number in dict.fromkeys(trial.pass_number for trial in trials):
        of_pass = tuple(trial for trial in trials if trial.pass_number == number)
        starts = [1, *sorted(extra.attempt or 1 for extra in extras if extra.repeat == number)]
        found += [Round(trials=of_pass, first=a, until=b) for a, b in pairwise([*starts, None]) if a is not None]
    return tuple(found)


def open_tasks(
    plan: Plan, extras: Sequence[Extra], records: Sequence[TrialRecord], left: Left | None = None
) -> tuple[Task, ...]:
    """Every attempt that still has to run, in order."""
    left = left or Left()
    records = [record for record in records if record.probe_limit_bytes is None]  # a probe answers no planned trial
    answers: dict[int, list[TrialRecord]] = {}
    for record in records:
        if not (record.priming and record.trial <= left.reprime.get(record.arm, 0)):
            answers.setdefault(record.planned, []).append(record)
    seen: dict[int, int] = {}
    for record in records:
        seen[record.planned] = max(seen.get(record.planned, 0), record.attempt)
    found = []
    for one in rounds(plan, extras):
        for trial in one.trials:
            mine = [record for record in answers.get(trial.ordinal, ()) if one.holds(record.attempt)]
            if not any(_answered(record) for record in mine):
                found.append(_task(trial, one, seen.get(trial.ordinal, 0), left.attempts.get(trial.ordinal, 0)))
    return tuple(found)


def _answered(record: TrialRecord) -> bool:
    return record.failure is None or record.failure.reason != Reason.INTERRUPTED


def _task(trial: PlannedTrial, one: Round, recorded: int, on_disk: int) -> Task:
    attempt = max(one.first, 1 + max(recorded, on_disk))
    return Task(planned=trial, attempt=attempt, note=_note(attempt, one.first, recorded, on_disk))


def _note(attempt: int, first: int, recorded: int, on_disk: int) -> str | None:
    if attempt == 1:
        return None
    if attempt == first:
        return f"its whole pass is repeated, attempt {attempt}"
    if on_disk > recorded:
        return f"attempt {on_disk} left files and no record: harness was killed, or could not store it"
    return f"attempt {recorded} was interrupted, or primed caches that are gone"


def pass_just_ended(records: Sequence[TrialRecord], tasks: Sequence[Task], extras: Sequence[Extra]) -> int | None:
    """Number of the pass that is complete now and about which nothing has been decided yet; else None."""
    counted = [record for record in records if record.counted]
    if not counted or any(extra.after >= len(counted) for extra in extras):
        return None
    last = counted[-1].pass_number
    return None if any(task.planned.pass_number == last for task in tasks) else last


def next_attempt(records: Sequence[TrialRecord], pass_number: int) -> int:
    """What the attempts of a repeated pass count from: above every attempt that pass has had."""
    return 1 + max((record.attempt for record in records if record.pass_number == pass_number), default=0)
