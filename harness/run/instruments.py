"""What the runner is given to measure a trial with, and what it tells them of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from harness.experiment.types import Arm
from harness.records import Disturbance, SurvivalLimit, TrialRecord
from harness.run.progress import Moment
from harness.run.schedule import Task
from harness.run.stop import StopFlag
from harness.run.store import TrialPaths
from harness.run.survival import Limited, Unlimited

Request = TypeVar("Request")
Result = TypeVar("Result")


NO_LIMITS: Final = Unlimited("this run sets no memory limits")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attempt about to run. `number`: of the record it will become. `run`: the run's id. `survival`: what the
    probes before it found, None where none were asked for.
    """

    run: str
    number: int
    task: Task
    arm: Arm
    paths: TrialPaths
    survival: SurvivalLimit | None = None


@dataclass(frozen=True, kw_only=True)
class Instruments(Generic[Request, Result]):
    """What a trial needs, in the order of use. Any of it may raise: the trial is then recorded as `harness_error`.

    `prepare`: make the cgroup, write the workload file, build the request. `counters`: read the host's counters now;
    what it returns reads them again after the trial and gives the difference. `run`: from spawn to reaped; calls its
    third argument some times a second. `evaluate`: raw data to the record of the trial. `release`: undo `prepare`;
    called whatever happened. `sweep`: end every process of the run that is still there and say in a sentence which;
    called when something went wrong, and at the end. `room`: whether a trial can run under a memory limit here.
    """

    prepare: Callable[[Trial], Request]
    counters: Callable[[], Callable[[Result], Disturbance]]
    run: Callable[[Request, StopFlag, Callable[[Moment], None]], Result]
    evaluate: Callable[[Trial, Result, Disturbance], TrialRecord]
    release: Callable[[Request], None] = lambda _request: None
    sweep: Callable[[], Sequence[str]] = lambda: ()
    room: Limited | Unlimited = NO_LIMITS


class Caches(Protocol):
    """The arms' private caches of one run."""

    def kept(self, arm: str) -> bool:
        """Whether the arm's private folder is still there, with what priming left in it."""

    def remove(self) -> None:
        """Remove the private folders of this run: it is finished."""
