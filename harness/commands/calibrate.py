"""`harness calibrate`: how often the verdicts are wrong, by simulation, beside the rules of other tools; with
`--agreement` how often the agreement of two runs is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.commands.answer import Answer, CommandError
from harness.commands.project import find_project
from harness.run.names import draw_run_id
from harness.units import format_seconds


def run(arguments: argparse.Namespace) -> Answer:
    """Write results/calibration/RUN/calibration.json and verdict_calibration.md with its pictures; of agreement
    results/agreement/RUN/agreement.json and agreement_calibration.md.
    """
    name, calibrate, redraw = study(agreement=arguments.agreement, many=arguments.experiments)
    project = find_project(Path.cwd())
    results = project.results_folder(arguments.results)
    if arguments.redraw:
        try:
            return Answer(out=f"report: {redraw(Path(arguments.redraw), project.report_folder(results))}")
        except (OSError, ValueError) as error:
            raise CommandError(f"{error}; name a {name}.json that this command wrote") from error
    folder = results / name / draw_run_id(datetime.now(UTC))
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
            folder, project.report_folder(results), seed=arguments.seed, workers=pool.imap, progress=progress
        )
    took = format_seconds(time.monotonic() - began)
    return Answer(out=f"records: {folder / f'{name}.json'}\nreport: {path}\ntook {took}")


def study(*, agreement: bool, many: int | None) -> tuple[str, Callable[..., Path], Callable[[Path, Path], Path]]:
    """The study's name, what runs it and what writes its report again. `many`: experiments (pairs of runs) a cell."""
    if agreement:
        from harness.verdict import agreement_study

        calibrate = partial(agreement_study.calibrate, pairs=many or agreement_study.PAIRS)
        return "agreement", calibrate, agreement_study.redraw
    from harness.verdict import calibration

    return (
        "calibration",
        partial(calibration.calibrate, experiments=many or calibration.EXPERIMENTS),
        calibration.redraw,
    )
