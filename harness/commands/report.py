"""`harness report RUN...`: the report of each run again, from its records alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.commands.answer import Answer, Exit
from harness.commands.judged import Judged, judged, open_run
from harness.commands.project import Project, find_project
from harness.report import summary, write_report

#: Which of several runs' codes a command answers with: the first of these that any run has.
_ORDER = (Exit.HARNESS_FAILED, Exit.USAGE, Exit.CLAIM_CONTRADICTED, Exit.TRIALS_FAILED, Exit.INTERRUPTED, Exit.OK)


def run(arguments: argparse.Namespace) -> Answer:
    """Write the reports, or with `--json` print one document (a list for several runs) and write nothing."""
    project = find_project(Path.cwd())
    results = project.results_folder(arguments.results)
    runs = [judged(open_run(named, results), project) for named in arguments.run]
    code = next(code for code in _ORDER if any(one.exit_code is code for one in runs) or code is Exit.OK)
    if arguments.json:
        documents = [
            summary(one.data.experiment.name, one.data.run, one.judgement, asked=one.data.experiment) for one in runs
        ]
        value = documents if len(documents) > 1 else documents[0]
        return Answer(code, out=json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
    return Answer(code, out="\n".join(written(one, project) for one in runs))


def written(one: Judged, project: Project) -> str:
    """Write one run's report; its verdict table and where the report lies."""
    path = write_report(one.data, one.judgement, project.report_folder(one.results))
    return f"{one.table()}\n\nreport: {path}"
