"""`harness plan FILE`: the arms as resolved, what differs, the order, the seed, the time it will take."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from harness.commands import experiments
from harness.commands.answer import Answer
from harness.commands.project import find_project
from harness.experiment import Experiment, differences_text
from harness.plan import Plan, expected_seconds, make_plan


def run(arguments: argparse.Namespace) -> Answer:
    """Nothing is started. A seed that is drawn here is not the one a later run draws: give `--seed` to keep it."""
    experiment = experiments.read(arguments.file, passes=arguments.passes)
    plan = make_plan(experiment, experiments.seed_of(experiment, arguments.seed))
    known = walls(find_project(Path.cwd()).results / experiment.name)
    if arguments.json:
        return Answer(out=json.dumps(document(experiment, plan, known), indent=2, ensure_ascii=False, allow_nan=False))
    return Answer(out="\n".join(text(experiment, plan, known)))


def walls(folder: Path) -> dict[str, float]:
    """Median wall time of a trial by arm, in seconds, from earlier runs of this experiment; empty without any."""
    found: dict[str, list[float]] = {}
    for file in folder.glob("*/trials.jsonl"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                found.setdefault(record["arm"], []).append(record["ended"] - record["began"])
            except (ValueError, KeyError, TypeError):
                continue
    return {arm: median(seconds) for arm, seconds in found.items()}


def document(experiment: Experiment, plan: Plan, known: dict[str, float]) -> dict[str, Any]:
    """The plan as one JSON value."""
    expected = expected_seconds(plan, experiment, known)
    return {
        "experiment": experiment.name,
        "identity": experiment.identity,
        "seed": plan.seed,
        "passes": experiment.passes,
        "arms": {arm.name: {**arm.configuration(), "control_of": arm.control_of} for arm in experiment.arms},
        "differences": list(differences_text(experiment)),
        "trials": [
            {"trial": t.ordinal, "arm": t.arm, "pass": t.pass_number, "position": t.position, "priming": t.priming}
            for t in plan.trials
        ],
        "notes": list(plan.notes),
        "expected_s": getattr(expected, "seconds", None),
        "expected": expected.text,
    }


def text(experiment: Experiment, plan: Plan, known: dict[str, float]) -> list[str]:
    """The plan for people."""
    lines = [experiment.question.strip(), "", "arms as resolved:"]
    for arm in experiment.arms:
        settings = {key: value for key, value in arm.configuration().items() if value not in (None, {}, [])}
        lines.append(f"  {arm.name}: {json.dumps(settings, ensure_ascii=False)}")
    lines += ["", "what differs:", *(f"  {line}" for line in differences_text(experiment)), "", "order:"]
    for number in dict.fromkeys(trial.pass_number for trial in plan.trials):
        order = ", ".join(trial.arm for trial in plan.trials if trial.pass_number == number)
        lines.append(f"  {'priming' if number == 0 else f'pass {number}'}: {order}")
    lines += [f"  note: {note}" for note in plan.notes]
    lines += ["", f"seed: {plan.seed}", f"time: {expected_seconds(plan, experiment, known).text}"]
    return lines
