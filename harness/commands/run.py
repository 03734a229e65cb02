"""`harness run FILE`: measure, record, judge, report."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.commands import dry_run, experiments
from harness.commands.answer import Answer, CommandError, Exit
from harness.commands.host_check import stops
from harness.commands.instruments import Bench
from harness.commands.judged import judged, open_run
from harness.commands.more import more_rule
from harness.commands.project import Project, find_project
from harness.commands.report import written
from harness.commands.scored_text import scored_text
from harness.drivers.registry import DRIVERS, interpreter
from harness.experiment import Experiment, differences_text
from harness.models import store as models
from harness.models import texts
from harness.plan import Plan, make_plan
from harness.run import cgroup, owners
from harness.run.caches import PrivateCaches
from harness.run.clock import SystemClock
from harness.run.counters import read_counters
from harness.run.differences import differences
from harness.run.disturbance import difference, unguarded
from harness.run.environment import cache_dir
from harness.run.files import BusyError, StoreError
from harness.run.host import conditions, fingerprint
from harness.run.lock import host_lock
from harness.run.progress import Progress, progress_for
from harness.run.provenance import provenance
from harness.run.resume import ResumeError, require_same
from harness.run.runner import End, RunEnd, run_experiment
from harness.run.stop import StopFlag, stopped_by_signals
from harness.run.store import RunFolder
from harness.run.writer import RunWriter


@dataclass(frozen=True)
class Prepared:
    """All that is known before the first trial."""

    experiment: Experiment
    plan: Plan
    engines: dict[str, models.Model]
    models: dict[str, models.Model]
    text: texts.Text | None
    host: dict[str, Any]
    versions: dict[str, Any]
    results: Path


def run(arguments: argparse.Namespace) -> Answer:
    """Run the experiment, or go on with an interrupted run of it; the answer is the verdict table."""
    project = find_project(Path.cwd())
    progress = progress_for(sys.stderr)
    results = project.results_folder(arguments.results)
    experiment = experiments.read(arguments.file, passes=arguments.passes)
    if arguments.dry_run:
        return dry_run.answer(experiment, project, beside=Path(arguments.file).resolve().parent)
    file = Path(arguments.file)
    if arguments.resume:
        folder = open_run(arguments.resume, results)
        experiment = as_started(experiment, arguments, folder)
        if file.resolve() == folder.path / "experiment.yaml":  # its relative models do not lie in the run's folder
            file = project.root / "experiments" / file.name
    seed = experiments.seed_of(experiment, arguments.seed)
    return measure(experiment, file, seed, project, results, progress=progress, resume=arguments.resume)[0]


def measure(
    experiment: Experiment, file: Path, seed: int, project: Project, results: Path, *, progress: Progress,
    resume: str | None = None,
) -> tuple[Answer, RunFolder | None]:  # fmt: skip
    """Prepare and run an experiment that was read from `file`. No folder if the run never began."""
    plan = make_plan(experiment, seed)
    prepared = prepared_for(experiment, plan, project, results, beside=file.resolve().parent, progress=progress)
    return started(prepared, resume, project, progress)


def as_started(experiment: Experiment, arguments: argparse.Namespace, folder: RunFolder) -> Experiment:
    """The experiment under what the command line said when the run started, where it says nothing now.

    The file kept in the run's own folder has lost its name; `--passes` was never in the file.
    """
    recorded = folder.head().experiment
    if Path(arguments.file).resolve() == (folder.path / "experiment.yaml").resolve():
        experiment = replace(experiment, name=recorded.name)
    if arguments.passes is None and experiment.text == recorded.text:
        experiment = replace(experiment, passes=recorded.passes)
    return experiment


def prepared_for(
    experiment: Experiment, plan: Plan, project: Project, results: Path, *, beside: Path, progress: Progress
) -> Prepared:
    """Make the models, find the text, take down host and versions; nothing is measured. `beside`: where relative models
    and texts lie.
    """
    for line in differences_text(experiment):
        progress.note(line)
    counters = read_counters()
    sample = difference(counters, replace(counters, at=counters.at + 1), own_cpu_s=0.0)
    for line in unguarded(experiment.disturbance, sample):
        progress.note(line)
    host = fingerprint()
    for line in stops(experiment, host):
        progress.note(line)
    pythons = interpreters(experiment, project)
    engines = ready_engines(experiment, project, progress)
    found = ready_models(experiment, project, beside, progress)
    text = ready_text(experiment, project, beside)
    return Prepared(
        experiment=experiment,
        plan=plan,
        models=found,
        engines=engines,
        text=text,
        host=host,
        versions=provenance(
            pythons=pythons,
            models={name: model.folder for name, model in found.items()},
            engines={name: engine.folder for name, engine in engines.items()},
            model_cache=cache_dir() / "digests.json",
            texts={text.name: text.path} if text is not None else {},
        ),
        results=results,
    )


def started(
    prepared: Prepared, resume: str | None, project: Project, progress: Progress
) -> tuple[Answer, RunFolder | None]:
    """Measure under the host's lock, then judge what is on record. No folder if the run never began."""
    try:
        with stopped_by_signals() as stop:
            return measured(prepared, resume, project, progress, stop)
    except (StoreError, BusyError, cgroup.CgroupError) as error:
        raise CommandError(str(error), Exit.HARNESS_FAILED) from error


def interpreters(experiment: Experiment, project: Project) -> dict[str, Path]:
    """The arms' interpreters by engine name. Raise `CommandError` for one that is not there."""
    found = {}
    for arm in experiment.arms:
        if DRIVERS[arm.engine].program is None:
            continue
        python = interpreter({"python": arm.python}, os.environ, project.root)
        if not python.exists():
            raise CommandError(
                f"arm {arm.name}: its interpreter {python} does not exist; `make setup` makes it,"
                " or name another with `python:` in the engine section or HARNESS_ARMS_PYTHON"
            )
        found[arm.engine if arm.python is None else arm.python] = python
    return found


def ready_models(experiment: Experiment, project: Project, beside: Path, progress: Progress) -> dict[str, models.Model]:
    """Every model the arms name, made where a recipe makes it. Raise `CommandError` for one that cannot be had."""
    root, found = models.root(project.root), {}
    for arm in experiment.arms:
        if arm.model is None or arm.model in found:
            continue
        try:
            python = interpreter({"python": arm.python}, os.environ, project.root)
            found[arm.model] = models.resolve(arm.model, models=root, relative_to=beside) or models.make(
                arm.model, models=root, python=python, say=progress.note
            )
        except models.ModelError as error:
            raise CommandError(f"arm {arm.name}: {error}") from error
    return found


def ready_engines(experiment: Experiment, project: Project, progress: Progress) -> dict[str, models.Model]:
    """The programs of every engine that a recipe makes, by engine. Raise `CommandError` if they cannot be had."""
    found = {}
    for arm in experiment.arms:
        recipe = DRIVERS[arm.engine].recipe
        if recipe is None or arm.engine in found:
            continue
        try:
            python = interpreter({"python": arm.python}, os.environ, project.root)
            found[arm.engine] = models.make(recipe, models=models.root(project.root), python=python, say=progress.note)
        except models.ModelError as error:
            raise CommandError(f"engine {arm.engine}: {error}") from error
    return found


def ready_text(experiment: Experiment, project: Project, beside: Path) -> texts.Text | None:
    """The text to score, if there is one. Raise `CommandError` if it cannot be had."""
    try:
        return scored_text(experiment, project, beside)
    except models.ModelError as error:
        raise CommandError(f"workload.quality: {error}") from error


def measured(
    prepared: Prepared, resume: str | None, project: Project, progress: Progress, stop: StopFlag
) -> tuple[Answer, RunFolder | None]:
    """Measure, then judge."""
    with ExitStack() as stack:
        name = prepared.experiment.name
        held = stack.enter_context(host_lock(name, stop=stop, clock=SystemClock(), say=progress.note))
        if not held:
            said = f"{stop.name} while waiting for another run; nothing was measured"
            return Answer(Exit.INTERRUPTED, err=said), None
        for leftover in owners.end_leftovers(owners.state_dir()):
            progress.note(leftover.sentence)
        folder = resumed(prepared, resume) if resume else created(prepared)
        end = walked(prepared, folder, project, progress, stop)
    return answer(end, folder, project), folder


def created(prepared: Prepared) -> RunFolder:
    """The folder of a new run."""
    return RunFolder.create(
        prepared.results,
        prepared.experiment,
        prepared.plan,
        host=prepared.host,
        versions=prepared.versions,
        moment=datetime.now(UTC),
    )


def resumed(prepared: Prepared, named: str) -> RunFolder:
    """The folder of the run to go on with. Raise `CommandError` with everything that forbids it."""
    folder = open_run(named, prepared.results)
    recorded = folder.records()
    head = folder.head()
    try:
        require_same(
            head,
            prepared.experiment,
            recorded={"host": folder.host(), "provenance": head.versions},
            now={"host": prepared.host, "provenance": prepared.versions},
            differences=differences,
            damage=recorded.notes if recorded.damaged else (),
        )
    except ResumeError as error:
        raise CommandError(str(error)) from error
    return folder


def walked(prepared: Prepared, folder: RunFolder, project: Project, progress: Progress, stop: StopFlag) -> RunEnd:
    """Run every trial that is still open."""
    bench = Bench(
        experiment=prepared.experiment,
        run_folder=folder.path,
        checkout=project.root,
        cwd=Path.cwd(),
        models=prepared.models,
        text=prepared.text,
        engine_dirs={name: engine.folder for name, engine in prepared.engines.items()},
        backend=cgroup.probe(),
    )
    with RunWriter(folder) as writer:
        return run_experiment(
            prepared.experiment,
            folder.head().plan,
            writer,
            instruments=bench.instruments(),
            caches=PrivateCaches(folder.run, prepared.experiment.names),
            progress=progress,
            stop=stop,
            more=more_rule(prepared.experiment, conditions(prepared.host)),
        )


def answer(end: RunEnd, folder: RunFolder, project: Project) -> Answer:
    """The verdict table, the report's path, and the exit code by the contract's order."""
    one = judged(folder, project)
    text = written(one, project)
    said = f"{text}\nrun: {one.data.where}"
    if end.end is End.FAULT:
        return Answer(Exit.HARNESS_FAILED, out=said, err=f"the harness failed: {end.why}")
    code = one.exit_code
    if end.end is End.INTERRUPTED:
        code = code if code in {Exit.CLAIM_CONTRADICTED, Exit.TRIALS_FAILED} else Exit.INTERRUPTED
        again = shlex.join(["harness", "run", str(folder.path / "experiment.yaml"), "--resume", str(folder.path)])
        return Answer(code, out=said, err=f"interrupted: {end.why}\nto go on: {again}")
    return Answer(code, out=said)
