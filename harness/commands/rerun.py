"""`harness rerun BUNDLE|RUN`: the recorded experiment again, on this host, and whether the two runs agree."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.commands import agree
from harness.commands.answer import Answer, CommandError, Exit, first_code
from harness.commands.host_check import HostCheck, host_check, stops
from harness.commands.judged import judged, open_bundle, open_run
from harness.commands.project import Project, find_project
from harness.commands.run import Prepared, prepared_for, started
from harness.drivers.registry import DRIVERS, interpreter
from harness.experiment import Experiment
from harness.models.recipes import RECIPES
from harness.report.text import printable
from harness.run.files import StoreError
from harness.run.host import fingerprint
from harness.run.integrity import problems
from harness.run.progress import progress_for
from harness.run.store import RunFolder
from harness.verdict.agreement import agree as compare


def run(arguments: argparse.Namespace) -> Answer:
    """Same experiment, same seed, same order; a run of its own beside the recorded one.

    Of a bundle, what would run is shown first, and runs only with `--yes`: until then no program that it names was
    started, not even to ask for its version.
    """
    project = find_project(Path.cwd())
    results = project.results_folder(arguments.results)
    folder, said = opened(arguments.run, results)
    believed(folder)
    head = folder.head()
    if said:
        said += ["what it will run here:", *commands(head.experiment, project)]
        if not arguments.yes:
            shown, stop = "\n".join(said), "nothing was run; read the above, then give --yes"
            return Answer(Exit.USAGE, err=f"{shown}\n{stop}") if arguments.json else Answer(Exit.USAGE, shown, stop)
    if wrong := list(stops(head.experiment, fingerprint())):
        raise CommandError("this run cannot be repeated here:\n  " + "\n  ".join(map(printable, wrong)))
    progress = progress_for(sys.stderr)
    for line in said:
        progress.note(line)
    prepared = prepared_for(
        head.experiment, head.plan, project, results, beside=project.root / "experiments", progress=progress
    )
    prepared = replace(prepared, versions={**prepared.versions, "repeats": repeated(folder)})
    check = checked(folder, prepared)
    for line in check.lines:
        progress.note(line)
    answer, again = started(prepared, None, project, progress)
    if again is None:
        return answer
    return agreed(answer, folder, again, project, check, as_document=arguments.json)


def opened(named: str, results: Path) -> tuple[RunFolder, list[str]]:
    """The run, and of a bundle what it says of itself."""
    if not Path(named).is_file():
        return open_run(named, results), []
    bundle = open_bundle(named)
    return bundle.folder, [printable(line) for line in bundle.said]


def believed(folder: RunFolder) -> None:
    """Raise `CommandError` for a run that is no evidence: hours of measuring would be set against nothing."""
    try:
        wrong = problems(folder)
    except StoreError as error:
        raise CommandError(printable(str(error)), Exit.HARNESS_FAILED) from error
    if wrong:
        raise CommandError(
            f"{folder.path} is no evidence, and is not repeated:\n  " + "\n  ".join(map(printable, wrong))
        )


def repeated(folder: RunFolder) -> dict[str, str]:
    """What a rerun says of the run that it repeats."""
    records = folder.records().records
    return {"run": folder.run, "last_digest": records[-1].digest if records else ""}


def checked(folder: RunFolder, prepared: Prepared) -> HostCheck:
    """This host against the one of the recorded run."""
    return host_check(
        prepared.experiment,
        folder.records().records,
        recorded=(folder.host(), folder.head().versions),
        now=(prepared.host, prepared.versions),
    )


def commands(experiment: Experiment, project: Project) -> Iterator[str]:
    """Each program that a rerun starts, with the variables that the experiment sets for it, one arm a line."""
    for model in sorted({arm.model for arm in experiment.arms if arm.model}):
        made = "made by the recipe of that name" if model in RECIPES else "a folder that must be here"
        yield printable(f"  model {model}: {made}")
    for arm in experiment.arms:
        python = interpreter({"python": arm.python}, os.environ, project.root)
        argv = shlex.join(DRIVERS[arm.engine].argv(python, arm.command))
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(arm.env.items()))
        arguments = f" with {dict(arm.args)}" if arm.args else ""
        yield printable(f"  {arm.name}: {variables + ' ' if variables else ''}{argv}{arguments}")


def agreed(
    answer: Answer, folder: RunFolder, again: RunFolder, project: Project, check: HostCheck, *, as_document: bool
) -> Answer:
    """The new run's verdicts, what was different here, and the agreement."""
    found = compare(agree.evidence(judged(folder, project)), agree.evidence(judged(again, project)))
    said = agree.answer(found, as_document=as_document)
    code = first_code(answer.code, said.code)
    if as_document:
        return Answer(code, out=said.out, err="\n".join(filter(None, (answer.err, said.err))))
    host = "\n".join(check.lines)
    return Answer(code, out=f"{answer.out}\n\n{host}\n\nagreement\n{said.out}", err=answer.err)
