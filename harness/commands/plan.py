"""`harness plan FILE`: the arms as resolved, what differs, the order, the seed, the time it will take."""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from harness.commands import experiments
from harness.commands.answer import Answer
from harness.commands.project import find_project
from harness.experiment import Experiment, differences_text
from harness.plan import Plan, PlannedTrial, expected_seconds, make_plan


def run(arguments: argparse.Namespace) -> Answer:
    """Nothing is started. A seed that is drawn here is not the one a later run draws: give `--seed` to keep it."""
    experiment = experiments.read(arguments.file, passes=arguments.passes)
    plan = make_plan(experiment, experiments.seed_of(experiment, arguments.seed))
    folder = find_project(Path.cwd()).results / experiment.name
    known, scoring = walls(folder), walls(folder, scoring=True)
    if arguments.json:
        return Answer(
            out=json.dumps(document(experiment, plan, known, scoring), indent=2, ensure_ascii=False, allow_nan=False)
        )
    return Answer(out="\n".join(text(experiment, plan, known, scoring)))


def walls(folder: Path, *, scoring: bool = False) -> dict[str, float]:
    """Median wall time of a trial by arm, in seconds, from earlier runs of this experiment; empty without any. Trials
    that score text apart from the passes are timed apart, too.
    """
    found: dict[str, list[float]] = {}
    for file in folder.glob("*/trials.jsonl"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                if record.get("scoring", False) == scoring:
                    found.setdefault(record["arm"], []).append(record["ended"] - record["began"])
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return {arm: median(seconds) for arm, seconds in found.items()}


def document(
    experiment: Experiment, plan: Plan, known: dict[str, float], scoring: dict[str, float] | None = None
) -> dict[str, Any]:
    """The plan as one JSON value. `known`, `scoring`: see `walls`."""
    expected = expected_seconds(plan, experiment, known, scoring)
    return {
        "experiment": experiment.name,
        "identity": experiment.identity,
        "seed": plan.seed,
        "passes": experiment.passes,
        "arms": {arm.name: {**arm.configuration(), "control_of": arm.control_of} for arm in experiment.arms},
        "differences": list(differences_text(experiment)),
        "trials": [
            {
                "trial": t.ordinal,
                "arm": t.arm,
                "pass": t.pass_number,
                "position": t.position,
                "priming": t.priming,
                "scoring": t.scoring,
            }
            for t in plan.trials
        ],
        "notes": list(plan.notes),
        "expected_s": getattr(expected, "seconds", None),
        "expected": expected.text,
    }


def text(
    experiment: Experiment, plan: Plan, known: dict[str, float], scoring: dict[str, float] | None = None
) -> list[str]:
    """The plan for people."""
    lines = [experiment.question.strip(), "", "arms as resolved:"]
    for arm in experiment.arms:
        settings = {key: value for key, value in arm.configuration().items() if value not in (None, {}, [])}
        lines.append(f"  {arm.name}: {json.dumps(settings, ensure_ascii=False)}")
    lines += ["", "what differs:", *(f"  {line}" for line in differences_text(experiment)), "", "order:"]
    for name, trials in groupby(plan.trials, key=sweep):
        lines.append(f"  {name}: {', '.join(trial.arm for trial in trials)}")
    lines += [f"  note: {note}" for note in plan.notes]
    lines += ["", f"seed: {plan.seed}", f"time: {expected_seconds(plan, experiment, known, scoring).text}"]
    return lines


def sweep(trial: PlannedTrial) -> str:
    """The sweep that a trial belongs to, in words."""
    if trial.scoring:
        return f"scoring {trial.position} (text only, apart from speed and memory)"
    return "priming" if trial.priming else f"pass {trial.pass_number}"
