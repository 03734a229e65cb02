"""Reading the experiment file that a command names; every problem of it becomes the command's answer."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

from harness.commands.answer import CommandError
from harness.experiment import Experiment, ExperimentError, load


def read(file: str, *, passes: int | None = None) -> Experiment:
    """The resolved experiment, with the command line's number of passes if one was given."""
    try:
        experiment = load(Path(file))
    except ExperimentError as error:
        count = len(error.problems)
        raise CommandError(f"{file}: {count} problem{'s' * (count != 1)}\n{error}") from error
    return experiment if passes is None else replace(experiment, passes=passes)


def seed_of(experiment: Experiment, named: int | None) -> int:
    """The seed of the order: the command line's, else the file's, else one drawn now, to be recorded."""
    if named is not None:
        return named
    return experiment.seed if experiment.seed is not None else secrets.randbelow(2**31)
