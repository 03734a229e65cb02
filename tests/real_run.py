"""A run with real processes and the real store, without meter and report: `main(FILE, RESULTS, [RUN])`.

It is wired as `harness run` is, as far as the runner's own promises need it. Prints the run's folder first.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from harness.experiment import load
from harness.experiment.types import Experiment
from harness.measure.evaluate import evaluate
from harness.plan import make_plan
from harness.records import Disturbance
from harness.run import owners
from harness.run.caches import PrivateCaches
from harness.run.clock import SystemClock
from harness.run.environment import neutral, protocol
from harness.run.files import StoreError
from harness.run.instruments import Instruments, Trial
from harness.run.lock import host_lock
from harness.run.progress import Moment, progress_for
from harness.run.reaper import become_subreaper
from harness.run.runner import End, RunEnd, run_experiment
from harness.run.stop import StopFlag, stopped_by_signals
from harness.run.store import RunFolder
from harness.run.trial import TrialRequest, TrialResult, run_trial
from harness.run.writer import RunWriter

CODES = {End.FINISHED: 0, End.STOPPED: 0, End.INTERRUPTED: 5, End.FAULT: 1}


def main(file: str, results: str, run: str | None = None) -> int:
    """Run or resume; the exit code is that of `harness run`, claims left out."""
    become_subreaper()
    for leftover in owners.end_leftovers(owners.state_dir()):
        say(sys.stderr, leftover.sentence)
    experiment, clock = load(Path(file)), SystemClock()
    progress = progress_for(sys.stderr)
    with stopped_by_signals() as stop, host_lock(experiment.name, stop=stop, clock=clock, say=progress.note) as held:
        if not held:
            return 5
        try:
            folder = RunFolder.open(run, Path(results)) if run else new(experiment, Path(results), clock)
            say(sys.stdout, str(folder.path))
            end = measured(folder, stop)
        except StoreError as error:
            say(sys.stderr, str(error))
            return 1
    return CODES[end.end] or (3 if end.unexpected else 0)


def new(experiment: Experiment, results: Path, clock: SystemClock) -> RunFolder:
    """A new run's folder."""
    plan = make_plan(experiment, seed=experiment.seed or 1)
    return RunFolder.create(results, experiment, plan, host={}, versions={}, moment=clock.utc())


def measured(folder: RunFolder, stop: StopFlag) -> RunEnd:
    """Walk what is open of the run."""
    head = folder.head()
    caches = PrivateCaches(folder.run, head.experiment.names)
    with RunWriter(folder) as writer:
        return run_experiment(
            head.experiment, head.plan, writer, instruments=instruments(head.experiment, folder, caches),
            caches=caches, progress=progress_for(sys.stderr), stop=stop,
        )  # fmt: skip


def instruments(
    experiment: Experiment, folder: RunFolder, caches: PrivateCaches
) -> Instruments[TrialRequest, TrialResult]:
    """Real processes; no meter, no cgroup, no counters."""

    def prepare(trial: Trial) -> TrialRequest:
        token, paths, arm = owners.new_token(), trial.paths, trial.arm
        variables = protocol(token=token, events=paths.events, workload=paths.workload)
        return TrialRequest(
            run=trial.run, trial=trial.number, planned=trial.task.planned, arm=arm, argv=arm.command,
            environment=neutral(folder=caches.folder(arm.name), trial=variables, arm=arm.env),
            cwd=Path(tempfile.gettempdir()), log=paths.log, events=paths.events, workload_file=paths.workload,
            samples=paths.samples, log_name=folder.relative(paths.log), token=token, limits=experiment.limits,
            attempt=trial.task.attempt,
        )  # fmt: skip

    def run(request: TrialRequest, stop: StopFlag, watch: Callable[[Moment], None]) -> TrialResult:
        return run_trial(request, stop=stop, watch=watch)

    return Instruments(
        prepare=prepare,
        counters=lambda: lambda _result: Disturbance(),
        run=run,
        evaluate=lambda _trial, result, _disturbance: evaluate(experiment, result.record, result.events, None),
    )


def say(stream: TextIO, text: str) -> None:
    """One line, at once."""
    stream.write(f"{text}\n")
    stream.flush()
