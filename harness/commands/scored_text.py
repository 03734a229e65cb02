"""The text that an experiment's quality is scored on, found on this host."""

from __future__ import annotations

import os
from pathlib import Path

from harness.commands.project import Project
from harness.drivers.registry import DRIVERS, interpreter
from harness.experiment import Experiment
from harness.models import texts


def scored_text(experiment: Experiment, project: Project, beside: Path) -> texts.Text | None:
    """The text, if quality is asked for and the file names one. `beside`: where relative paths lie. Raise `ModelError`
    if it cannot be had.
    """
    named = experiment.workload.get("quality", {}).get("text")
    if named is None or not any("quality" in metric.needs for metric in experiment.metrics):
        return None
    pythons = [arm.python for arm in experiment.arms if DRIVERS[arm.engine].program is not None]
    python = interpreter({"python": pythons[0] if pythons else None}, os.environ, project.root)
    return texts.find(named, relative_to=beside, python=python)
