"""The rule that asks for more passes, as the runner is handed it: whole passes, never beyond the cap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from verdict_runs import experiment, record

from harness.commands.more import more_rule
from harness.experiment.types import Experiment, Precision
from harness.plan import Plan, extend, make_plan
from harness.records import Reason, TrialRecord
from harness.run.decision import GoOn, MorePasses, RepeatPass, Stop


def noisy(plan: Plan, sigma: float, *, broken: int = 0) -> list[TrialRecord]:
    """A record for every planned trial; arm b is a fifth slower. `broken`: the pass in which b fails."""
    rng = np.random.default_rng(8)
    values = [float(np.exp(sigma * rng.standard_normal())) * (1.2 if t.arm == "b" else 1.0) for t in plan.trials]
    return [
        record(
            planned.arm,
            planned.pass_number,
            planned.position,
            Reason.TIMEOUT if planned.pass_number == broken and planned.arm == "b" else value,
            trial=planned.ordinal,
        )
        for planned, value in zip(plan.trials, values, strict=True)
    ]


def asked(cap: int = 8, budget_s: float = 1e6) -> Experiment:
    """Five passes planned, a precision that needs far more."""
    return replace(
        experiment(["a", "b"], 5), precision=Precision(target=0.001, max_passes=cap, budget_s=budget_s), seed=1
    )


def test_passes_are_added_up_to_the_cap_and_no_further() -> None:
    """Five passes planned, eight at most: passes 6, 7 and 8 are added, each with both arms; then it stops."""
    plan = make_plan(asked(), 1)
    more = more_rule(asked(), {})
    found = more(noisy(plan, 0.02), plan)
    assert isinstance(found, MorePasses)
    assert [(t.pass_number, t.arm) for t in sorted(found.trials, key=lambda t: (t.pass_number, t.arm))] == [
        (number, arm) for number in (6, 7, 8) for arm in "ab"
    ]
    wider = extend(plan, asked(), 3)
    end = more(noisy(wider, 0.02), wider)
    assert isinstance(end, Stop)
    assert "8 ran, of 8 at most" in end.why


def test_the_budget_allows_as_many_passes_as_fit() -> None:
    """Every pass takes 2 s: of 14 s, 10 are spent by the planned passes, and two more fit."""
    plan = make_plan(asked(budget_s=14.0), 1)
    found = more_rule(asked(budget_s=14.0), {})(noisy(plan, 0.02), plan)
    assert isinstance(found, MorePasses)
    assert {t.pass_number for t in found.trials} == {6, 7}


def test_a_failed_pass_is_repeated_before_any_is_added() -> None:
    """Pass 2 holds a timeout: it is run again as a whole first."""
    plan = make_plan(asked(), 1)
    found = more_rule(replace(asked(), repeat_passes=1), {})(noisy(plan, 0.02, broken=2), plan)
    assert isinstance(found, RepeatPass)
    assert found.pass_number == 2
    assert "b timeout" in found.why


def test_without_a_precision_the_plan_is_followed() -> None:
    """Nothing is added and nothing stops early."""
    plan = make_plan(experiment(["a", "b"], 5), 1)
    assert isinstance(more_rule(experiment(["a", "b"], 5), {})(noisy(plan, 0.02), plan), GoOn)
