"""What a report is made of: one recorded run and nothing else. Frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.experiment.types import Experiment
from harness.metrics import Metric
from harness.plan import Plan
from harness.records import TrialRecord, as_passes
from harness.verdict.cells import counted_trials

#: One memory curve: (CLOCK_MONOTONIC seconds, sum of RssAnon over the arm's processes in bytes), in order of time.
Curve = Sequence[tuple[float, int]]


def no_samples(_record: TrialRecord) -> Curve:
    """The loader of a run whose samples are not at hand: the memory figure says so instead of showing a curve."""
    return ()


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One run as its folder holds it.

    `run`: its id. `records`: every trial that ended, priming and repeated attempts included, in the order of the file.
    `host`: host.json as read. `plan`: plan.json; None if it is lost. `samples`: the memory curve of one trial, empty if
    there is none. `folder`: how a reader names the run on a command line, never an absolute path. `notes`: what the
    run itself has to say (why it stopped, records that were edited).
    """

    experiment: Experiment
    run: str
    records: tuple[TrialRecord, ...]
    host: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    samples: Callable[[TrialRecord], Curve] = no_samples
    folder: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The run as a command line names it."""
        return self.folder or f"results/{self.experiment.name}/{self.run}"

    @property
    def counted(self) -> tuple[TrialRecord, ...]:
        """Every trial of a pass: those that are judged and those that a repetition replaced."""
        return tuple(record for record in self.records if record.counted)

    def of(self, metric: Metric) -> RunData:
        """The run as one metric sees it: where text is scored apart, sweeps of scoring trials stand for the passes."""
        if self.experiment.sweeps_of(metric, 0)[1] == "pass":
            return self
        asked = replace(self.experiment, passes=self.experiment.scorings)
        return replace(self, experiment=asked, records=as_passes(self.records), plan=None)

    @property
    def latest(self) -> tuple[TrialRecord, ...]:
        """Of every arm and pass the attempt that is judged, in the order of the file."""
        chosen = counted_trials(self.experiment, self.records)
        judged = {id(record) for cells in chosen.values() for record in cells.values()}
        return tuple(record for record in self.counted if id(record) in judged)

    @property
    def passes(self) -> int:
        """How many passes there should be: as planned, and more if more were run; the k of every `n of k`."""
        planned = self.plan.trials if self.plan is not None else ()
        seen = [trial.pass_number for trial in planned] + [record.pass_number for record in self.counted]
        return max(seen, default=self.experiment.passes)
