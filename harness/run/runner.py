"""Walk the plan: measure, store, ask whether more is wanted, go on. A failed trial is a result; only what cannot be
stored, or a request to stop, ends a run early.

How a trial is prepared, run and evaluated is handed in (`Instruments`), so a test walks a whole experiment without a
process, and this module cannot know which arm is winning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Generic

from harness.experiment.types import Experiment
from harness.plan import Plan
from harness.records import Reason, SurvivalLimit, TrialRecord
from harness.run.attempt import Surroundings, measure, store
from harness.run.clock import Clock, SystemClock
from harness.run.decision import GoOn, More, MorePasses, RepeatPass, Stop, never_more
from harness.run.extras import Extra
from harness.run.instruments import Caches, Instruments, Request, Result, Trial
from harness.run.progress import Progress, time_left
from harness.run.schedule import Left, Task, next_attempt, open_tasks, pass_just_ended, whole_plan
from harness.run.stop import StopFlag
from harness.run.survival import next_probe
from harness.run.writer import RunWriter

#: So many faults of the harness in a row, and the run stops: what breaks three trials will break the other thirty, and
#: each costs minutes.
FAULTS_IN_A_ROW: Final = 3


class End(StrEnum):
    """How a run ended."""

    FINISHED = "finished"  # every planned trial is on record
    STOPPED = "stopped"  # a rule of the experiment ended it before the plan did
    INTERRUPTED = "interrupted"  # somebody asked it to stop; it can be resumed
    FAULT = "fault"  # the harness failed in trial after trial; it can be resumed


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended, and what it holds. `ok`, `expected` (failed as declared), `unexpected`: over the latest attempt
    of each planned trial, priming left out. `left`: attempts that were still to run.
    """

    end: End
    why: str
    ok: int
    expected: int
    unexpected: int
    left: int


def run_experiment(
    experiment: Experiment,
    plan: Plan,
    writer: RunWriter,
    *,
    instruments: Instruments[Request, Result],
    caches: Caches,
    progress: Progress,
    stop: StopFlag,
    more: More = never_more,
    clock: Clock | None = None,
) -> RunEnd:
    """Run what is still open of `plan` and append every record to `writer`, which may hold records of before.

    Raise `StoreError` if a record cannot be stored; no process of the run is left then either.
    """
    walk = _Walk(experiment, plan, writer, instruments, caches, progress, stop, more, clock or SystemClock())
    try:
        end = walk.all()
    except BaseException as error:
        progress.ended(f"stopped by {type(error).__name__}; what is on record stays, and `--resume` goes on")
        raise
    finally:
        walk.sweep()
    if end.end in {End.FINISHED, End.STOPPED}:
        caches.remove()
    progress.ended(f"{end.end.value}: {end.why}")
    return end


@dataclass
class _Walk(Generic[Request, Result]):
    """One walk over a plan; `records` and `extras` grow with it."""

    experiment: Experiment
    plan: Plan
    writer: RunWriter
    instruments: Instruments[Request, Result]
    caches: Caches
    progress: Progress
    stop: StopFlag
    more: More
    clock: Clock

    def __post_init__(self) -> None:
        self.records = list(self.writer.recorded.records)
        self.extras = list(self.writer.folder.extras())
        self.left = Left(attempts=self.writer.folder.attempts_on_disk(), reprime=self._lost_caches())
        self.around = Surroundings(self.writer, self.progress, self.stop, self.clock)
        self.done = self.faults = 0
        self.decided = -1  # counted records when `more` was last asked

    def all(self) -> RunEnd:
        """Trial after trial until nothing is open, a rule or a person stops it, or the harness is broken."""
        tasks = self.tasks()
        self.progress.began(self.writer.folder.run, len(tasks))
        for note in self.writer.notes:
            self.progress.note(note)
        while True:
            stopped = self.ask(tasks)
            tasks = self.tasks()
            if stopped is not None:
                return self.ended(End.STOPPED, stopped, tasks)
            if not tasks:
                return self.ended(End.FINISHED, "every planned trial is on record", tasks)
            if self.stop.requested:
                return self.ended(End.INTERRUPTED, f"{self.stop.name}; `--resume` goes on", tasks)
            record = self.attempt(tasks)
            tasks = self.tasks()
            if record.failure is not None and record.failure.reason == Reason.INTERRUPTED:
                return self.ended(End.INTERRUPTED, f"{record.failure.evidence}; `--resume` goes on", tasks)
            if self.faults >= FAULTS_IN_A_ROW and record.failure is not None:
                return self.ended(End.FAULT, f"{self.faults} trials in a row: {record.failure.evidence}", tasks)

    def tasks(self) -> tuple[Task, ...]:
        """What is still to run."""
        return open_tasks(self.plan, self.extras, self.records, self.left)

    def ask(self, tasks: Sequence[Task]) -> str | None:
        """Put a pass that just ended before the rule, and record its decision. Returns why to stop, None to go on."""
        counted = sum(record.counted for record in self.records)
        if counted == self.decided or pass_just_ended(self.records, tasks, self.extras) is None:
            return None
        self.decided = counted
        decision = self.more(tuple(self.records), whole_plan(self.plan, self.extras))
        match decision:
            case Stop(why):
                self.extend(Extra(why=why, after=counted))  # why a run has no more passes is part of its record
                return why
            case RepeatPass(number, why):
                first = next_attempt(self.records, number)
                self.extend(Extra(why=why, after=counted, repeat=number, attempt=first))
            case MorePasses(trials, why):
                self.extend(Extra(why=why, after=counted, trials=trials))
            case GoOn():
                pass
        return None

    def extend(self, extra: Extra) -> None:
        """Take a decision down before anything of it runs."""
        self.writer.extend(extra)
        self.extras.append(extra)
        self.progress.note(extra.why)

    def attempt(self, tasks: Sequence[Task]) -> TrialRecord:
        """Measure the first of `tasks` and store its record before anything else happens."""
        task, survival = self.probing(tasks[0])
        trial = Trial(
            run=self.writer.folder.run,
            number=len(self.records) + 1,
            task=task,
            arm=self.experiment.arm(task.planned.arm),
            paths=self.writer.folder.paths(task.planned.ordinal, task.planned.arm, task.attempt, task.probe),
            survival=survival,
        )
        self.progress.trial_began(task, self.done + 1, self.done + len(tasks), time_left(self.records, tasks))
        record = store(trial, measure(trial, self.instruments, self.around), self.around)
        self.records.append(record)
        self.done += task.limit is None
        fault = record.failure is not None and record.failure.reason == Reason.HARNESS_ERROR
        self.faults = self.faults + 1 if fault else 0
        self.progress.trial_ended(record)
        return record

    def probing(self, task: Task) -> tuple[Task, SurvivalLimit | None]:
        """The task itself with what its probes found, or the probe that must run before it."""
        asked = any("survival" in metric.needs for metric in self.experiment.metrics)
        if (
            not asked
            or task.priming
            or task.planned.scoring
            or self.experiment.arm(task.planned.arm).expect.failure is not None
        ):
            return task, None
        step = next_probe(task.planned, self.records, self.instruments.room)
        if isinstance(step, SurvivalLimit):
            return task, step
        return replace(task, probe=step.number, limit=step.limit), None

    def sweep(self) -> None:
        """End whatever of the run still lives, and say so."""
        for sentence in self.instruments.sweep():
            self.progress.note(sentence)

    def ended(self, end: End, why: str, tasks: Sequence[Task]) -> RunEnd:
        """The run's end with its counts."""
        latest = {record.planned: record for record in self.records if not record.priming}.values()
        failed = [r for r in latest if r.failure is not None and r.failure.reason != Reason.INTERRUPTED]
        expected = sum(record.expected for record in failed)
        return RunEnd(
            end=end,
            why=why,
            ok=sum(record.usable for record in latest),
            expected=expected,
            unexpected=len(failed) - expected,
            left=len(tasks),
        )

    def _lost_caches(self) -> dict[str, int]:
        """Arms that were primed in caches that are gone: they are primed again, or warm and cold trials would mix."""
        primed = {record.arm for record in self.records if record.priming and record.probe_limit_bytes is None}
        return {arm: len(self.records) for arm in primed if not self.caches.kept(arm)}
