"""Stand-ins with which a whole experiment runs in milliseconds and without a process: to test a rule, a report, a
driver's metrics, or the runner itself. Everything is a function of arm, pass and position: no hidden state, no chance.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from harness.experiment.types import Arm, Experiment
from harness.metrics import Better, Metric
from harness.plan import Plan, PlannedTrial
from harness.records import Disturbance, Failure, Reason, TrialRecord, Value
from harness.run.clock import stamp
from harness.run.instruments import Instruments, Trial
from harness.run.progress import Moment, PlainProgress
from harness.run.stop import StopFlag
from harness.run.trial_types import Now

#: A metric that an experiment file could define itself.
SCORE = Metric(name="score", unit="s", better=Better.LOWER, definition="made up", source="harness.testing")

#: What a fake trial does: its values by metric, or its failure.
Outcome = Mapping[str, float] | Failure
#: Decides what the trial does that is about to run.
Behaviour = Callable[[Trial], Outcome]


class FakeClock:
    """Both clocks of a run, moved by hand; `utc` can be set back without `monotonic` noticing, as clocks do."""

    def __init__(self, start: datetime = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), monotonic: float = 1000.0) -> None:
        self._utc = start
        self._monotonic = monotonic

    def monotonic(self) -> float:
        """Seconds."""
        return self._monotonic

    def utc(self) -> datetime:
        """Time of day."""
        return self._utc

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._monotonic += seconds
        self._utc += timedelta(seconds=seconds)

    def step_utc(self, seconds: float) -> None:
        """Set the time of day, forwards or back, as a time server does."""
        self._utc += timedelta(seconds=seconds)


class CapturedProgress(PlainProgress):
    """Shows nothing and remembers every line and moment."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.moments: list[Moment] = []
        super().__init__(self.stream)

    @property
    def lines(self) -> list[str]:
        """Every line so far."""
        return self.stream.getvalue().splitlines()

    def now(self, moment: Moment) -> None:
        """Remember it."""
        self.moments.append(moment)


@dataclass
class FakeCaches:
    """Private caches that are there until they are removed, or said to be `lost`."""

    lost: bool = False
    removed: bool = False

    def kept(self, arm: str) -> bool:
        """Whether the arm's caches are still there."""
        return bool(arm) and not self.lost

    def remove(self) -> None:
        """Remember that the run is finished."""
        self.removed = True


def by_place(trial: Trial) -> Outcome:
    """A score that tells arm, pass and position apart and nothing else: the same trial always gets the same score."""
    planned = trial.task.planned
    return {"score": 1.0 + sum(map(ord, planned.arm)) / 100 + planned.pass_number / 1000 + planned.position / 10_000}


@dataclass
class FakeTrials:
    """Runs trials as `behave` says, each taking `seconds` on `clock`. `ran` remembers them in order.

    `during`: called in the middle of each trial with the stop flag: to interrupt a run, or to kill it.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    behave: Behaviour = by_place
    seconds: float = 10.0
    during: Callable[[Trial, StopFlag], None] = lambda _trial, _stop: None
    ran: list[Trial] = field(default_factory=list)
    released: int = 0
    swept: int = 0

    def instruments(self) -> Instruments[Trial, TrialRecord]:
        """What `run_experiment` is given."""
        return Instruments(
            prepare=self._prepare,
            counters=lambda: lambda _result: Disturbance(counters={"steal_s": 0.0}),
            run=self._run,
            evaluate=lambda _trial, record, _disturbance: record,
            release=self._release,
            sweep=self._sweep,
        )

    def _prepare(self, trial: Trial) -> Trial:
        trial.paths.workload.write_text("{}\n", encoding="utf-8")
        return trial

    def _run(self, trial: Trial, stop: StopFlag, watch: Callable[[Moment], None]) -> TrialRecord:
        self.ran.append(trial)
        began, started_at = self.clock.monotonic(), stamp(self.clock.utc())
        trial.paths.log.write_text(f"fake trial of {trial.arm.name}\n", encoding="utf-8")
        watch(Now(phase="load", memory_bytes=1 << 20, elapsed_s=0.0, log_bytes=0))
        self.during(trial, stop)
        self.clock.advance(self.seconds)
        outcome = self.behave(trial)
        if stop.requested:
            outcome = Failure(reason=Reason.INTERRUPTED, evidence=f"{stop.name} stopped the run", killed_by="harness")
        failure = outcome if isinstance(outcome, Failure) else None
        values = {} if isinstance(outcome, Failure) else {name: Value(value=v) for name, v in outcome.items()}
        planned = trial.task.planned
        return TrialRecord(
            trial=trial.number,
            planned=planned.ordinal,
            arm=planned.arm,
            pass_number=planned.pass_number,
            position=planned.position,
            started_at=started_at,
            began=began,
            ended=self.clock.monotonic(),
            failure=failure,
            values=values,
        )

    def _release(self, _request: Trial) -> None:
        self.released += 1

    def _sweep(self) -> Sequence[str]:
        self.swept += 1
        return ()


def fake_experiment(*names: str, passes: int = 3, priming: int = 0, name: str = "tiny") -> Experiment:
    """Arms of the `command` engine that measure `score`; by default `a` and `b`."""
    arms = tuple(Arm(name=arm, engine="command", command=("true", arm), priming=priming) for arm in names or ("a", "b"))
    return Experiment(
        name=name, question="Is it?", passes=passes, arms=arms, metrics=(SCORE,), text=f"question: Is it? # {name}\n"
    )


def fake_plan(experiment: Experiment, seed: int = 1, first_pass: int = 1, first_ordinal: int = 1) -> Plan:
    """Priming, then passes with the arms rotated by one each time: enough to walk; no balance is claimed."""
    names = list(experiment.names)
    order = [(0, arm.name) for arm in experiment.arms for _ in range(arm.priming)] if first_pass == 1 else []
    for number in range(first_pass, first_pass + experiment.passes):
        turn = (number - 1) % len(names)
        order += [(number, arm) for arm in names[turn:] + names[:turn]]
    trials, position, before = [], 0, None
    for ordinal, (number, arm) in enumerate(order, start=first_ordinal):
        position, before = (position + 1 if number == before else 1), number
        trials.append(
            PlannedTrial(ordinal=ordinal, arm=arm, pass_number=number, position=position, priming=number == 0)
        )
    return Plan(seed=seed, trials=tuple(trials))
