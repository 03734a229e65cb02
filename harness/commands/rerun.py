"""`harness rerun RUN`: the recorded experiment again, on this host, and whether the two runs agree."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from harness.commands import agree
from harness.commands.answer import Answer
from harness.commands.judged import judged, open_run
from harness.commands.project import find_project
from harness.commands.run import Prepared, prepared_for, started
from harness.run.progress import progress_for
from harness.verdict.agreement import agree as compare


def run(arguments: argparse.Namespace) -> Answer:
    """Same experiment, same seed, same order; a run of its own beside the recorded one."""
    project = find_project(Path.cwd())
    results = project.results_folder(arguments.results)
    folder = open_run(arguments.run, results)
    head = folder.head()
    progress = progress_for(sys.stderr)
    prepared: Prepared = prepared_for(
        head.experiment, head.plan, project, results, beside=project.root / "experiments", progress=progress
    )
    answer, again = started(prepared, None, project, progress)
    if again is None:
        return answer
    found = compare(agree.evidence(judged(folder, project)), agree.evidence(judged(again, project)))
    said = agree.answer(found, as_document=arguments.json)
    if arguments.json:
        return replace(said, err=answer.err)
    return Answer(min(answer.code, said.code, key=_first), out=f"{answer.out}\n\nagreement\n{said.out}", err=answer.err)


def _first(code: int) -> int:
    """Order of the contract's codes; 0 gives way to all others."""
    return (1, 2, 4, 3, 5, 0).index(code)
