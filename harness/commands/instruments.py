"""The real instruments of a run: processes, cgroups, meter, counters, joined for the runner."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from harness.drivers.registry import DRIVERS, interpreter, workload_file
from harness.experiment import Experiment
from harness.experiment.types import Arm
from harness.measure.evaluate import evaluate
from harness.meterlog import MeterLog
from harness.metrics import Kind
from harness.models.store import Model
from harness.models.texts import Text
from harness.records import Disturbance, TrialRecord
from harness.run import cgroup, environment, owners, process_tree
from harness.run.counters import read_counters
from harness.run.disturbance import difference
from harness.run.engine_facts import engine_facts
from harness.run.instruments import Instruments, Trial
from harness.run.memory_meter import MeterHandle, start_meter
from harness.run.names import quote_arm
from harness.run.page_cache import resident_fraction, resident_nodes, weight_files
from harness.run.stop import StopFlag
from harness.run.survival import Limited, Unlimited
from harness.run.trial import run_trial
from harness.run.trial_types import Now, TrialRequest, TrialResult

#: Idle pause before the settled level is taken, and after the arenas were asked back, seconds. Allocators of an
#: engine's three processes come to rest 2 to 4 s after the last request, and the rule wants a quiet window of 3 s.
SETTLE_S: Final = 8.0
TRIM_S: Final = 5.0


_NOT_LOOKED = "the trial reached no phase `settle`: only an idle engine is looked at"


def page_cache_facts(model: Model | None) -> dict[str, Any]:
    """How much of the model lies in the page cache before the start, and on which NUMA nodes: fields of a record."""
    files = weight_files(model.folder) if model is not None else ()
    if not files:
        return {"page_cache_missing": "the arm names no model with weight files"}
    fraction, nodes = resident_fraction(files), resident_nodes(files)
    hidden = "this kernel does not tell (mincore for the fraction, /proc/self/numa_maps for the nodes)"
    return {
        "page_cache": fraction,
        "page_cache_nodes": nodes,
        "page_cache_missing": hidden if fraction is None or nodes is None else None,
    }


@dataclass
class Bench:
    """Everything that the trials of one run share. `models`: by the name in the experiment. `text`: what quality is
    scored on. `checkout`: where the arms' interpreter is looked for. `cwd`: where arms start.
    """

    experiment: Experiment
    run_folder: Path
    checkout: Path
    cwd: Path
    models: Mapping[str, Model]
    backend: cgroup.Backend
    text: Text | None = None
    started: list[str] = field(default_factory=list)
    groups: dict[str, cgroup.TrialCgroup] = field(default_factory=dict)
    engines: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    page_caches: dict[str, dict[str, Any]] = field(default_factory=dict)

    def instruments(self) -> Instruments[TrialRequest, TrialResult]:
        """What the runner is handed."""
        return Instruments(
            prepare=self.prepare,
            counters=self.counters,
            run=self.run,
            evaluate=self.evaluate,
            release=self.release,
            sweep=self.sweep,
            room=self.room(),
        )

    def room(self) -> Limited | Unlimited:
        """Whether a trial can run under a memory limit here; tried only where a metric needs it."""
        if not any("survival" in metric.needs for metric in self.experiment.metrics):
            return Unlimited("no metric needs a memory limit")
        problem = cgroup.cannot_limit(self.backend)
        return Limited(cgroup.ceiling()) if problem is None else Unlimited(problem)

    def prepare(self, trial: Trial) -> TrialRequest:
        """Make the trial's cgroup and build its request; no process starts."""
        token, arm, planned, paths = owners.new_token(), trial.arm, trial.task.planned, trial.paths
        group = cgroup.create(self.backend, token[:12], trial.task.limit) if self.backend.parent is not None else None
        if group is not None:
            self.groups[token] = group
        self.started.append(token)
        driver = DRIVERS[arm.engine]
        python = interpreter({"python": arm.python}, os.environ, self.checkout)
        return TrialRequest(
            run=trial.run,
            trial=trial.number,
            planned=planned,
            arm=arm,
            argv=driver.argv(python, arm.command),
            environment=environment.neutral(
                folder=environment.private_dir(trial.run, quote_arm(arm.name)),
                trial=environment.protocol(token=token, events=paths.events, workload=paths.workload),
                arm=arm.env,
            ),
            cwd=self.cwd,
            log=paths.log,
            events=paths.events,
            workload_file=paths.workload,
            samples=paths.samples.with_name(paths.samples.name + ".txt.gz"),
            log_name=str(paths.log.relative_to(self.run_folder)),
            token=token,
            workload=self.workload(trial),
            limits=self.experiment.limits,
            attempt=trial.task.attempt,
            cgroup=group,
            start_meter=self.meter(arm),
        )

    def run(self, request: TrialRequest, stop: StopFlag, watch: Callable[[Now], None]) -> TrialResult:
        """Run the trial; when it has come to rest, read once what its processes are made of."""
        self.page_caches[request.token] = page_cache_facts(self.models.get(request.arm.model or ""))

        def look(moment: Now) -> None:
            watch(moment)
            # `settle` is idle by definition: numa_maps, which walks page tables, disturbs nothing that is timed
            if moment.phase == "settle" and request.token not in self.engines:
                tree = process_tree.Tree(request.token)
                alive = [identity.pid for identity, stat in tree.look().items() if not stat.ended]
                self.engines[request.token] = tuple({"pid": pid, **engine_facts(pid)} for pid in alive)

        return run_trial(request, stop=stop, watch=look)

    def meter(self, arm: Arm) -> Callable[..., MeterHandle] | None:
        """How the arm's memory is sampled; None where its file says that it is not."""
        if arm.sampler_hz is None:
            return partial(start_meter, backend_why=self.backend.why)
        if arm.sampler_hz == 0:
            return None
        period = 1 / arm.sampler_hz
        return partial(start_meter, backend_why=self.backend.why, period=period, serving_period=period)

    def workload(self, trial: Trial) -> dict[str, Any]:
        """What the driver reads: the arm, the work, and only the pauses that a metric asked for."""
        metrics = self.experiment.metrics_of(scoring=trial.task.planned.scoring)
        needs = frozenset[str]().union(*(metric.needs for metric in metrics))
        model = self.models.get(trial.arm.model or "")
        return workload_file(
            arm={"name": trial.arm.name, **trial.arm.work()},
            workload=self.work(scoring=trial.task.planned.scoring),
            needs=needs,
            model_dir=model.folder if model is not None else None,
            priming=trial.task.priming,
            settle_s=SETTLE_S if "settle" in needs else 0.0,
            trim_s=TRIM_S if "trim" in needs else 0.0,
            probe=trial.task.limit is not None,
        )

    def work(self, *, scoring: bool) -> dict[str, Any]:
        """The workload, its text found: an arm reads the file that was digested, wherever it starts.

        A trial that scores does nothing else.
        """
        found = dict(self.experiment.workload)
        if self.text is not None and "quality" in found:
            found["quality"] = {**found["quality"], "path": str(self.text.path), "sha256": self.text.digest}
        alone = all(metric.kind is Kind.WINDOWED for metric in self.experiment.metrics_of(scoring=scoring))
        if alone or self.experiment.scored_apart:
            found = {part: work for part, work in found.items() if (part == "quality") == alone}
        return found

    def counters(self) -> Callable[[TrialResult], Disturbance]:
        """Read the host's counters now; the function reads them again and gives the difference."""
        before = read_counters()

        def after(result: TrialResult) -> Disturbance:
            sampler = result.meter.cost.cpu_s if isinstance(result.meter, MeterLog) else 0.0
            own = result.cpu_s + sampler if result.cpu_s is not None else None
            return difference(before, read_counters(), own_cpu_s=own, thresholds=self.experiment.disturbance)

        return after

    def evaluate(self, trial: Trial, result: TrialResult, disturbance: Disturbance) -> TrialRecord:
        """The record with its values and the last word on its failure."""
        meter = result.meter if isinstance(result.meter, MeterLog) else None
        if meter is not None and meter.samples_path is not None:
            meter = replace(meter, samples_path=str(Path(meter.samples_path).relative_to(self.run_folder)))
        record = replace(
            result.record,
            priming=trial.task.priming,
            probe_limit_bytes=trial.task.limit,
            survival=trial.survival,
            disturbance=disturbance,
            **self.page_caches.pop(result.token, {}),
            engine=self.engines.get(result.token, ()),
            engine_missing=None if self.engines.pop(result.token, ()) else _NOT_LOOKED,
        )
        return evaluate(self.experiment, record, result.events, meter)

    def release(self, request: TrialRequest) -> None:
        """Remove the trial's cgroup; what cannot be removed is told."""
        self.started = [token for token in self.started if token != request.token]
        group = self.groups.pop(request.token, None)
        problem = group.remove() if group is not None else None
        if problem:
            raise cgroup.CgroupError(problem)

    def sweep(self) -> Sequence[str]:
        """End every process of a trial that did not end by itself."""
        said = []
        for token in self.started:
            tree = process_tree.Tree(token)
            names = {identity: stat.name for identity, stat in tree.look().items() if not stat.ended}
            if names:
                process_tree.end(tree, reap=lambda: None)
                said += [f"ended process {identity.pid} ({name}), left by a trial" for identity, name in names.items()]
        self.started.clear()
        return said
