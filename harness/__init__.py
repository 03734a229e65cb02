"""Measurements of LLM inference on CPUs that a reviewer can trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from harness.report.frames import Frames

__all__ = ["__version__", "load"]

__version__ = "0.1.0"


def load(run: str | os.PathLike[str], *, results: str | os.PathLike[str] | None = None) -> Frames:
    """A recorded run as tidy pandas frames.

    `run`: its folder, `results/EXPERIMENT/RUN`, or its id under `results` (default: the project's results folder, seen
    from the current folder). Of the frames, `metrics` holds one row for each trial and metric, with its unit and either
    a value or the reason why there is none; `samples` the memory over time; `verdicts`, `claims` and `failures` what
    is said of the run. `help(harness.load(run))` and docs/exports.md describe every column with its unit.

        frames = harness.load("results/demo/20261201T133801Z-03bd02")
        used = frames.metrics[frames.metrics["usable"]]
        used.pivot_table(index="arm", columns="metric", values="value", aggfunc="median")

    Raise `harness.run.store.UnknownRunError` if there is no such run, `harness.commands.answer.CommandError` if its
    records cannot be read.
    """
    from harness.commands.export import load as load_frames  # pandas, scipy and cattrs load when a run is read

    return load_frames(run, results)
