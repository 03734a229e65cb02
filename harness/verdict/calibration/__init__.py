"""The proof that the verdicts keep their promise: synthetic runs of known truth, judged by the very `judge` of reports.

`calibrate` is the door. Its modules are pure but for `shares`, which keeps the records, and `report`, which writes
the report and its pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.verdict.calibration.study import Map

#: Experiments in each cell without effect; a quarter as many in each cell with one. A few minutes on 2 quiet cores, and
#: a cell that errs in 8.6 % is seen (5 % plus four standard errors).
EXPERIMENTS = 600


def calibrate(
    out_dir: Path,
    analysis: Path,
    *,
    seed: int,
    experiments: int = EXPERIMENTS,
    workers: Map = map,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Path:
    """Run the study, write `out_dir/calibration.json` and `analysis/verdict_calibration.md` with its pictures beside
    it, and return the path of the report.

    `workers`: `map`, or the `imap` of a process pool; the numbers depend on `seed` and `experiments` alone.
    `progress(done, all)` counts cells. numpy, scipy and matplotlib load here.
    """
    from harness.verdict.calibration import report, shares, study

    rows = study.run(study.tasks(seed, experiments), workers, progress)
    shares.write_records(out_dir / "calibration.json", rows, seed=seed)
    return report.write_report(analysis, rows, seed=seed)


def redraw(records: Path, analysis: Path) -> Path:
    """Write the report and its pictures again from a calibration.json alone; nothing is simulated. Raise `ValueError`
    if it is none.
    """
    from harness.verdict.calibration import report, shares

    rows, seed = shares.read_records(records)
    return report.write_report(analysis, rows, seed=seed)
