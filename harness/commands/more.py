"""The rule that asks for more passes, handed to the runner: running itself never knows who is winning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.experiment import Experiment
from harness.plan import Plan, extend
from harness.records import TrialRecord
from harness.run.decision import Decision, GoOn, More, MorePasses, RepeatPass, Stop
from harness.verdict.passes import more_passes, passes_to_repeat


def more_rule(experiment: Experiment, host: Mapping[str, Any]) -> More:
    """Repeat passes that were disturbed or failed; then add whole passes for a stated precision.

    Depends on the records alone, so that a run that is resumed decides as it would have before. `host`: see `judge`.
    """

    def more(records: Sequence[TrialRecord], plan: Plan) -> Decision:
        repeats = passes_to_repeat(experiment, records)
        if repeats:
            return RepeatPass(repeats[0], f"pass {repeats[0]} is run again as a whole: {_spoiled(records, repeats[0])}")
        if experiment.precision is None or _finished(records) < plan.passes:
            return GoOn()
        decision = more_passes(experiment, records, host, _elapsed(records))
        if decision.stop is not None:
            return Stop(decision.why)
        wider = extend(plan, experiment, decision.more)
        return MorePasses(wider.trials[len(plan.trials) :], decision.why)

    return more


def _finished(records: Sequence[TrialRecord]) -> int:
    return max((record.pass_number for record in records if record.counted), default=0)


def _elapsed(records: Sequence[TrialRecord]) -> float:
    """Seconds of counted trials: the wall-time budget of a precision, the same after a resumption."""
    return sum(record.ended - record.began for record in records if record.counted)


def _spoiled(records: Sequence[TrialRecord], number: int) -> str:
    failed = [
        f"{record.arm} {record.failure.reason.value}"
        for record in records
        if record.pass_number == number and record.failure is not None and not record.expected
    ]
    return ", ".join(failed[-3:])
