"""What is asked: an experiment file, checked and resolved. Pure."""

from harness.experiment.problems import ExperimentError, Problem
from harness.experiment.resolve import differences, differences_text, load, loads
from harness.experiment.types import Experiment

__all__ = ["Experiment", "ExperimentError", "Problem", "differences", "differences_text", "load", "loads"]
