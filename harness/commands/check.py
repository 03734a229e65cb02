"""`harness check FILE`: every problem at once, or what the file says once resolved."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.commands.answer import Answer, Exit
from harness.experiment import ExperimentError, differences_text, load
from harness.plan import make_plan


def run(arguments: argparse.Namespace) -> Answer:
    """Exit code 0 if the file can be run, 2 if not; nothing is started."""
    try:
        experiment = load(Path(arguments.file))
    except ExperimentError as error:
        if arguments.json:
            problems = [
                {"file": p.filename, "line": p.line, "column": p.column, "path": p.path, "message": p.message}
                for p in error.problems
            ]
            return Answer(Exit.USAGE, out=json.dumps({"ok": False, "problems": problems}, indent=2))
        return Answer(Exit.USAGE, err=str(error))
    if arguments.json:
        return Answer(out=json.dumps({"ok": True, "problems": [], "identity": experiment.identity}, indent=2))
    plan = make_plan(experiment, seed=0)
    trials = experiment.passes * len(experiment.arms)
    apart = sum(trial.scoring for trial in plan.trials)
    scoring = f", and {apart} that score text" if apart else ""
    lines = [
        f"{arguments.file}: ok: {len(experiment.arms)} arms x {experiment.passes} passes = {trials} trials{scoring}",
        *differences_text(experiment),
    ]
    return Answer(out="\n".join(lines))
