"""What the rule that looks at finished passes may answer. The rule itself is handed in: running never judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.plan import Plan, PlannedTrial
from harness.records import TrialRecord


@dataclass(frozen=True)
class GoOn:
    """Run what is planned; with nothing left, the run is finished."""


@dataclass(frozen=True)
class RepeatPass:
    """Run that whole pass again, at once. `why`: a sentence for the record (`steal_s was over its threshold ...`)."""

    pass_number: int
    why: str


@dataclass(frozen=True)
class MorePasses:
    """Run these trials after the planned ones: whole passes, with ordinals and pass numbers that go on from the plan's
    (`harness.plan.extend` makes them).
    """

    trials: tuple[PlannedTrial, ...]
    why: str


@dataclass(frozen=True)
class Stop:
    """Run nothing more, though trials are left: a budget is used up, say. The run counts as finished."""

    why: str


Decision = GoOn | RepeatPass | MorePasses | Stop

#: Asked whenever a pass is complete: all records so far, and the plan with what was added to it. It must bound itself:
#: it is asked again after every repeat. Its answer must depend on nothing else, so that a resumed run gets the same.
More = Callable[[Sequence[TrialRecord], Plan], Decision]


def never_more(_records: Sequence[TrialRecord], _plan: Plan) -> Decision:
    """The rule of an experiment that states neither precision nor repeats."""
    return GoOn()
