"""When to run more whole passes: to repeat what was disturbed or failed, or to reach a stated precision.

Stopping never looks at who is ahead. Peeking at p from 3 to 10 passes raises false rankings to about 17 %; the width of
an interval says nothing of its place. The number of passes for a precision is fixed once, from the planned passes alone
(Stein's two stages), so later values cannot stop the run early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log, log1p
from typing import Any

from harness.experiment.types import Experiment
from harness.metrics import Kind
from harness.records import Reason, TrialRecord
from harness.verdict.types import Interval, Unknown


class Stop(StrEnum):
    """Why no further pass is run."""

    AS_PLANNED = "as_planned"  # no precision was asked for
    PRECISE = "precise"  # the passes that the first stage asked for are there
    CAP = "cap"  # the stated largest number of passes is reached
    BUDGET = "budget"  # the next pass would not fit the wall-time budget
    UNKNOWN = "unknown"  # the first stage gives no interval, so no number of passes can be worked out


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to run next. `more`: whole passes to add now, 0 to stop. `stop`: set when `more` is 0. `why`: for the
    record. `wanted`: passes in all that the precision needs, 0 where unknown or not asked for.
    """

    more: int
    why: str
    stop: Stop | None = None
    wanted: int = 0


def more_passes(
    experiment: Experiment, records: Sequence[TrialRecord], host: Mapping[str, Any], elapsed_s: float
) -> Decision:
    """Ask for whole passes until every interval is narrow enough, within the cap and the wall-time budget.

    `records`: of the run so far. `elapsed_s`: seconds since it began; the mean time of a pass so far tells how many
    more the budget allows.
    """
    precision = experiment.precision
    done = max((record.pass_number for record in records if record.counted), default=0)
    if precision is None:
        return Decision(more=0, stop=Stop.AS_PLANNED, why=f"{done} passes ran as planned; no precision was asked for")
    if done < experiment.passes:
        return Decision(more=0, stop=Stop.UNKNOWN, why="the planned passes are not finished")
    wanted = _wanted(experiment, records, host)
    if isinstance(wanted, Unknown):
        return Decision(more=0, stop=Stop.UNKNOWN, why=f"no precision can be worked out: {wanted.why}")
    goal = f"a half width of {precision.target:.3g} needs {wanted} passes, by the first {experiment.passes}"
    if done >= min(wanted, precision.max_passes):
        stop = Stop.PRECISE if done >= wanted else Stop.CAP
        return Decision(more=0, stop=stop, wanted=wanted, why=f"{goal}; {done} ran, of {precision.max_passes} at most")
    affordable = int((precision.budget_s - elapsed_s) // (elapsed_s / done)) if elapsed_s > 0 else wanted
    if affordable < 1:
        why = f"{goal}; {elapsed_s:.0f} s of {precision.budget_s:.0f} s are spent and no further pass fits"
        return Decision(more=0, stop=Stop.BUDGET, wanted=wanted, why=why)
    more = min(wanted, precision.max_passes) - done
    return Decision(more=min(more, affordable), wanted=wanted, why=f"{goal}; {done} ran")


def _wanted(experiment: Experiment, records: Sequence[TrialRecord], host: Mapping[str, Any]) -> int | Unknown:
    """Passes that bring the widest interval of any pair and sampled metric to the target; from the first stage alone.

    Exact metrics and windows do not narrow with passes and are left out.
    """
    from harness.verdict.judging import judge  # numpy and scipy load here

    assert experiment.precision is not None  # noqa: S101 -- the caller asked; for the type checker
    first = [record for record in records if record.pass_number <= experiment.passes]
    target = log1p(experiment.precision.target)
    needed: list[int] = []
    for verdict in judge(experiment, first, host).verdicts:
        if verdict.metric.kind in {Kind.EXACT, Kind.WINDOWED} or isinstance(verdict.ratio, Unknown):
            continue
        if not isinstance(verdict.interval, Interval):
            return verdict.interval
        width = _half_width(verdict.interval)
        needed.append(max(ceil(experiment.passes * (width / target) ** 2 - 1e-9), experiment.passes))
    return max(needed) if needed else Unknown("no pair has a value of a metric that varies")


def _half_width(interval: Interval) -> float:
    """Half width of the log ratio's interval."""
    return log(interval.high / interval.low) / 2


def passes_to_repeat(experiment: Experiment, records: Sequence[TrialRecord]) -> tuple[int, ...]:
    """Passes whose latest attempt holds a trial that failed unexpectedly or was disturbed, and that may be run again
    as a whole: each up to `repeat_passes` times. An interrupted trial is for resuming, not for this.
    """
    found = []
    for number in sorted({record.pass_number for record in records if record.counted}):
        attempts: dict[str, list[TrialRecord]] = {name: [] for name in experiment.names}
        for record in records:
            stopped = record.failure is not None and record.failure.reason is Reason.INTERRUPTED
            if record.pass_number == number and record.counted and record.arm in attempts and not stopped:
                attempts[record.arm].append(record)
        whole = min(map(len, attempts.values()))
        latest = [max(tries, key=lambda record: record.trial) for tries in attempts.values() if tries]
        bad = any(record.failure is not None and not record.expected for record in latest)
        if bad and 1 <= whole <= experiment.repeat_passes:
            found.append(number)
    return tuple(found)
