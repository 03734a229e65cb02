"""More whole passes: for a stated precision by width alone, and to repeat what failed or was disturbed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from verdict_runs import Cell, experiment, record, run

from harness.experiment.types import Precision
from harness.records import Reason
from harness.verdict.passes import Stop, more_passes, passes_to_repeat

NOISY: dict[str, list[Cell]] = {"a": [1.0, 1.02, 0.99, 1.03, 1.0, 1.01], "b": [1.02, 1.0, 1.03, 1.0, 1.01, 0.98]}


def decide(target: float, table: dict[str, list[Cell]] = NOISY, elapsed_s: float = 60.0, **more: Any) -> Any:
    """The decision after the planned six passes."""
    limits = {"max_passes": 100, "budget_s": 1e6, **more}
    plan = experiment(["a", "b"], 6, precision=Precision(target=target, **limits))
    return more_passes(plan, run(table), {}, elapsed_s)


def test_a_run_without_a_precision_stops_as_planned() -> None:
    """No precision: no further pass."""
    found = more_passes(experiment(["a", "b"], 6), run(NOISY), {}, 60.0)
    assert (found.more, found.stop) == (0, Stop.AS_PLANNED)


def test_a_wide_enough_target_is_met_by_the_planned_passes() -> None:
    """A half width of 50 % is there already."""
    assert decide(0.5).stop is Stop.PRECISE


def test_passes_grow_with_the_square_of_the_precision() -> None:
    """Half the width takes four times the passes (the quantile of the first stage stays)."""
    coarse, fine = decide(0.02), decide(0.01, max_passes=1000)
    assert coarse.more == coarse.wanted - 6
    assert fine.wanted == pytest.approx(4 * coarse.wanted, rel=0.05)


def test_the_cap_and_the_budget_stop_it() -> None:
    """Never more than the cap; never a pass that does not fit: six passes took 60 s, so 35 s more hold three."""
    assert decide(0.001, max_passes=10).more == 4
    assert decide(0.001, max_passes=6).stop is Stop.CAP
    assert decide(0.001, budget_s=95.0).more == 3
    stopped = decide(0.001, budget_s=65.0)
    assert (stopped.more, stopped.stop) == (0, Stop.BUDGET)
    assert "60 s of 65 s" in stopped.why


def test_later_passes_do_not_change_how_many_are_wanted() -> None:
    """Stein's two stages: the number is fixed by the planned passes, so no lucky later value stops the run early."""
    rng = np.random.default_rng(1)
    plan = experiment(["a", "b"], 6, precision=Precision(target=0.01, max_passes=1000, budget_s=1e6))
    wanted = more_passes(plan, run(NOISY), {}, 60.0).wanted
    longer = {arm: [*cells, *(float(x) for x in rng.normal(1, 1e-6, 5))] for arm, cells in NOISY.items()}
    assert more_passes(plan, run(longer), {}, 60.0).wanted == wanted


def test_who_is_ahead_does_not_matter() -> None:
    """The same noise with b twice as slow asks for the same number of passes: width only, never p."""
    apart: dict[str, list[Cell]] = {"a": NOISY["a"], "b": [2 * float(x) for x in NOISY["b"]]}  # type: ignore[arg-type]
    assert decide(0.01, apart, max_passes=1000).wanted == decide(0.01, max_passes=1000).wanted


def test_without_an_interval_no_number_of_passes_is_invented() -> None:
    """One complete pass has no spread: it stops and says why."""
    bad = Reason.NONZERO_EXIT
    table: dict[str, list[Cell]] = {"a": NOISY["a"], "b": [1.0, bad, bad, bad, bad, bad]}
    assert decide(0.01, table).stop is Stop.UNKNOWN


def test_a_disturbed_or_failed_pass_is_repeated_as_a_whole() -> None:
    """Pass 2 was disturbed, pass 4 failed: both are named, once each."""
    table: dict[str, list[Cell]] = {
        "a": [1.0, Reason.DISTURBED, 1.0, 1.0, 1.0],
        "b": [1.0, 1.0, 1.0, Reason.TIMEOUT, 1.0],
    }
    assert passes_to_repeat(experiment(["a", "b"], 5, repeat_passes=1), run(table)) == (2, 4)
    assert passes_to_repeat(experiment(["a", "b"], 5), run(table)) == ()


def test_a_pass_is_repeated_no_more_often_than_stated() -> None:
    """Two attempts of pass 1 failed: once more is allowed by 2, not by 1; a good second attempt ends it."""
    first = [record("a", 1, 1, Reason.DISTURBED, trial=1), record("b", 1, 2, 1.0, trial=2)]
    bad = [record("a", 1, 1, Reason.DISTURBED, trial=3, attempt=2), record("b", 1, 2, 1.0, trial=4, attempt=2)]
    good = [record("a", 1, 1, 1.0, trial=3, attempt=2), record("b", 1, 2, 1.0, trial=4, attempt=2)]
    twice, once = (experiment(["a", "b"], 1, repeat_passes=n) for n in (2, 1))
    assert passes_to_repeat(twice, [*first, *bad]) == (1,)
    assert passes_to_repeat(once, [*first, *bad]) == ()
    assert passes_to_repeat(once, [*first, *good]) == ()


def test_expected_failures_and_interruptions_are_not_repeated() -> None:
    """An arm that failed as it should, and a trial for resuming, ask for no repetition."""
    expected = [record("a", 1, 1, Reason.SIGNAL, trial=1, expected=True), record("b", 1, 2, 1.0, trial=2)]
    stopped = [record("a", 2, 1, Reason.INTERRUPTED, trial=3), record("b", 2, 2, 1.0, trial=4)]
    assert passes_to_repeat(experiment(["a", "b"], 2, repeat_passes=1), [*expected, *stopped]) == ()
