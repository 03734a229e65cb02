"""The proof that agreement keeps its promise: pairs of synthetic runs of known truth, judged by the very `agree` that
the command uses. `calibrate` is the door; its modules are pure but for `report`, which writes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.verdict.agreement_study.study import Map

#: Pairs of runs in each cell: a cell that errs in 5 % shows 3 to 7.2 % (two standard errors).
PAIRS = 400


def calibrate(
    out_dir: Path,
    analysis: Path,
    *,
    seed: int,
    pairs: int = PAIRS,
    workers: Map = map,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Path:
    """Run the study, write `out_dir/agreement.json` and `analysis/agreement_calibration.md`; return the report's path.

    `workers`: `map`, or the `imap` of a process pool; the numbers depend on `seed` and `pairs` alone.
    """
    from harness.verdict.agreement_study import report, study

    rows = study.run(study.tasks(seed, pairs), workers, progress)
    cases = study.cases(seed, pairs)
    report.write_records(out_dir / "agreement.json", rows, cases, seed=seed)
    return report.write_report(analysis, rows, cases, seed=seed)


def redraw(records: Path, analysis: Path) -> Path:
    """Write the report again from an agreement.json alone. Raise `ValueError` if it is none."""
    from harness.verdict.agreement_study import report

    rows, cases, seed = report.read_records(records)
    return report.write_report(analysis, rows, cases, seed=seed)
