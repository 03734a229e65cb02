"""From the metrics of many trials to verdicts. Pure: no clock, no files, no randomness that is not handed in.

`judge` is the one door: reports, claims, exit codes and the calibration study all go through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.experiment.types import Experiment
from harness.records import TrialRecord
from harness.verdict.types import Judgement

__all__ = ["judge"]


def judge(experiment: Experiment, records: Sequence[TrialRecord], host: Mapping[str, Any]) -> Judgement:
    """Judge one run. `records`: every line of trials.jsonl, in order. `host`: facts that claims may name (`cpu_flags`,
    a list; `cores`, a number). numpy and scipy load here, not with the package.
    """
    from harness.verdict import judging

    return judging.judge(experiment, records, host)
