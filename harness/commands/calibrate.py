"""`harness calibrate`: how often the verdicts are wrong, by simulation, beside the rules of other tools."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from harness.commands.answer import Answer
from harness.commands.project import find_project
from harness.run.names import draw_run_id
from harness.units import format_seconds


def run(arguments: argparse.Namespace) -> Answer:
    """Write results/calibration/RUN/calibration.json and verdict_calibration.md with its pictures."""
    from harness.verdict.calibration import EXPERIMENTS, calibrate

    project = find_project(Path.cwd())
    results = project.results_folder(arguments.results)
    folder = results / "calibration" / draw_run_id(datetime.now(UTC))
    began, said = time.monotonic(), 0.0

    def progress(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= 5 or done == total:
            said = now
            left = (now - began) / done * (total - done)
            print(f"{done} of {total} cells, about {format_seconds(left)} left", file=sys.stderr)  # noqa: T201 - progress

    with multiprocessing.Pool(arguments.workers or len(os.sched_getaffinity(0))) as pool:
        path = calibrate(
            folder,
            project.report_folder(results),
            seed=arguments.seed,
            experiments=arguments.experiments or EXPERIMENTS,
            workers=pool.imap,
            progress=progress,
        )
    took = format_seconds(time.monotonic() - began)
    return Answer(out=f"records: {folder / 'calibration.json'}\nreport: {path}\ntook {took}")
