"""Every gate of the ranking rule, each shut by a hand-made run: the right code, and all codes that apply."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verdict_runs import EXACT, PERPLEXITY, SCORE, Cell, experiment, place, record, run

from harness.experiment.types import Arm, Claim, ClaimKind, Expectation, Experiment, Precision, Rule
from harness.metrics import REGISTRY, Better, Kind, Metric
from harness.records import MemoryRecord, PhaseMemory, Reason, TrialRecord, Value
from harness.units import format_quantity
from harness.verdict import judge
from harness.verdict.passes import more_passes
from harness.verdict.types import Code, Equivalent, Interval, Judgement, PairVerdict, Ranked, Refused, Unknown

CLEAR: dict[str, list[Cell]] = {"a": [1.00, 1.01, 1.02, 1.01, 1.00, 1.01], "b": [2.00, 2.02, 2.03, 2.01, 2.00, 2.03]}


def only(judgement: Judgement) -> PairVerdict:
    """The one verdict of two arms on one metric."""
    assert len(judgement.verdicts) == 1
    return judgement.verdicts[0]


def judged(table: dict[str, list[Cell]], passes: int | None = None, **more: Any) -> Judgement:
    """Judge a hand-made table."""
    return judge(experiment(list(table), passes or len(next(iter(table.values()))), **more), run(table), {})


def codes(verdict: PairVerdict) -> set[str]:
    """The codes of a refusal."""
    assert isinstance(verdict.outcome, Refused), verdict.outcome
    return {code.value for code in verdict.codes}


def pair(judgement: Judgement, a: str, b: str) -> PairVerdict:
    """The verdict of that pair."""
    return next(v for v in judgement.verdicts if {v.a, v.b} == {a, b})


def test_arms_that_lie_clearly_apart_are_ranked() -> None:
    """Disjoint spreads, an interval far from 1, enough passes, balanced places: ranked, and the lower is better."""
    verdict = only(judged(CLEAR))
    assert verdict.outcome == Ranked("a")
    assert verdict.within.a_better == verdict.within.passes == 6
    assert verdict.ratio == pytest.approx(0.5, abs=0.01)


def test_a_higher_is_better_metric_ranks_the_other_arm() -> None:
    """The direction of the metric decides who is better, nothing else."""
    metric = replace(SCORE, better=Better.HIGHER)
    assert only(judged(CLEAR, metrics=[metric])).outcome == Ranked("b")


def test_touching_spreads_are_not_ranked_under_strict_and_may_be_under_paired() -> None:
    """One spread ends where the other begins, though b is higher in every pass: overlap, yet apart within passes."""
    table: dict[str, list[Cell]] = {"a": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "b": [1.5, 1.6, 1.72, 1.8, 1.9, 2.02]}
    strict = only(judged(table))
    assert codes(strict) == {"spreads_overlap"}
    assert "paired" in strict.outcome.reasons[0].remedy  # type: ignore[union-attr]
    assert strict.within.a_better == 6
    paired = judged(table, rule=Rule.PAIRED)
    assert only(paired).outcome == Ranked("a")
    assert any("paired" in note for note in paired.notes)


def test_disjoint_spreads_alone_do_not_suffice() -> None:
    """Values apart by a hair, while a third arm shows noise as large as the gap: the interval holds 1."""
    wide: dict[str, list[Cell]] = {
        "a": [1.00, 1.09, 1.03, 1.098, 1.02],
        "b": [1.10, 1.10, 1.17, 1.10, 1.18],
        "c": [1.5, 1.1, 1.9, 1.2, 2.2],
    }
    assert codes(pair(judged(wide), "a", "b")) == {"interval_contains_one"}


def test_a_stated_margin_must_be_cleared_by_the_whole_interval() -> None:
    """A difference of 2 % that is certain is still within a margin of 5 %."""
    table: dict[str, list[Cell]] = {
        "a": [1.0, 1.001, 1.0, 1.002, 1.001, 1.0],
        "b": [1.02, 1.021, 1.02, 1.022, 1.02, 1.021],
    }
    assert only(judged(table)).outcome == Ranked("a")
    assert only(judged(table, margins={"score": 0.05})).outcome == Equivalent(0.05)
    assert codes(only(judged(table, margins={"score": 0.0205}))) == {"within_margin"}


def test_equivalence_needs_a_stated_margin() -> None:
    """Close arms without a margin are refused: not ranked is never the same as equal."""
    table: dict[str, list[Cell]] = {
        "a": [1.0, 1.001, 0.999, 1.0, 1.001, 1.0],
        "b": [1.0, 1.0, 1.001, 0.999, 1.0, 1.001],
    }
    assert isinstance(only(judged(table)).outcome, Refused)
    assert only(judged(table, margins={"score": 0.01})).outcome == Equivalent(0.01)


def test_two_noisy_arms_are_not_equivalent_for_want_of_passes() -> None:
    """Noise of 10 % cannot show equivalence within 1 %."""
    table: dict[str, list[Cell]] = {"a": [1.0, 1.1, 0.9, 1.0, 1.1, 0.95], "b": [1.0, 0.9, 1.1, 1.05, 1.0, 1.0]}
    assert isinstance(only(judged(table, margins={"score": 0.01})).outcome, Refused)


@pytest.mark.parametrize("passes", [1, 2, 3, 4])
def test_case_39_too_few_passes_are_refused_and_crash_nothing(passes: int) -> None:
    """Two arms need 5 passes (4 degrees of freedom); below, nothing is ranked, and one value has no spread."""
    table: dict[str, list[Cell]] = {"a": [10.0 + 0.01 * i for i in range(passes)], "b": [20.1] * passes}
    verdict = only(judged(table))
    assert "too_few_passes" in codes(verdict)
    if passes == 1:
        assert isinstance(verdict.interval, Unknown)
        assert isinstance(verdict.estimate, Unknown)
        assert codes(verdict) == {"too_few_passes"}


def test_case_39_three_passes_with_two_failing_leave_one_value_and_no_ranking() -> None:
    """One valid pass each at 10.0 and 10.1 after two failures: too few passes, failed trials, no interval."""
    bad = Reason.NONZERO_EXIT
    verdict = only(judged({"a": [10.0, bad, bad], "b": [10.1, bad, bad]}))
    assert {"too_few_passes", "failed_trials"} <= codes(verdict)
    assert isinstance(verdict.interval, Unknown)


def test_case_39_equal_values_make_no_winner_and_no_division_by_zero() -> None:
    """Arms with exactly equal values: the interval has the width of the resolution and holds 1."""
    verdict = only(judged({"a": [5.0] * 6, "b": [5.0] * 6}))
    assert codes(verdict) == {"spreads_overlap", "interval_contains_one"}
    assert isinstance(verdict.interval, Interval)
    assert 0 < verdict.interval.high - verdict.interval.low < 1e-5


def test_constant_values_that_differ_by_less_than_the_resolution_are_not_ranked() -> None:
    """Readings in steps of 0.01 that differ by one step lie within what the reading can show."""
    coarse = replace(SCORE, resolution=0.01)
    table: dict[str, list[Cell]] = {"a": [1.00] * 6, "b": [1.01] * 6}
    assert "interval_contains_one" in codes(only(judged(table, metrics=[coarse])))
    assert only(judged(table)).outcome == Ranked("a")


def test_three_arms_need_three_passes() -> None:
    """Three arms by three passes have 4 degrees of freedom: just enough."""
    table: dict[str, list[Cell]] = {"a": [1.0, 1.01, 1.0], "b": [2.0, 2.01, 2.01], "c": [4.0, 4.01, 4.02]}
    assert all(isinstance(v.outcome, Ranked) for v in judged(table).verdicts)
    short = {arm: values[:2] for arm, values in table.items()}
    assert all("too_few_passes" in codes(v) for v in judged(short).verdicts)


def test_a_control_pair_that_separates_voids_every_pair_of_the_metric() -> None:
    """A/A told apart: every verdict of that metric says control_separated, the control pair's own too."""
    table: dict[str, list[Cell]] = {**CLEAR, "a_control": [1.2, 1.21, 1.22, 1.21, 1.2, 1.21]}
    found = judged(table, control=("a", "a_control"))
    assert all("control_separated" in codes(v) for v in found.verdicts)
    assert codes(pair(found, "a", "a_control")) == {"control_separated"}


def test_a_control_pair_that_does_not_separate_lets_others_be_ranked() -> None:
    """A/A not told apart: the rest is judged as ever, and no note asks for a control."""
    table: dict[str, list[Cell]] = {**CLEAR, "a_control": [1.01, 1.00, 1.02, 1.00, 1.01, 1.01]}
    found = judged(table, control=("a", "a_control"))
    assert pair(found, "a", "b").outcome == Ranked("a")
    assert not any("control" in note for note in found.notes)


def test_a_control_pair_that_cannot_be_judged_is_said() -> None:
    """The control failed in one pass: others may be ranked, and a note says that nothing guards the metric."""
    table: dict[str, list[Cell]] = {**CLEAR, "a_control": [1.01, 1.00, 1.02, 1.00, 1.01, Reason.TIMEOUT]}
    found = judged(table, control=("a", "a_control"))
    assert pair(found, "a", "b").outcome == Ranked("a")
    assert any("could not be judged for score" in note for note in found.notes)


def test_a_margin_does_not_hide_a_control_pair_that_separates() -> None:
    """The control pair is judged without the margin: a certain 3 % between equal arms voids a margin of 10 %."""
    table: dict[str, list[Cell]] = {**CLEAR, "a_control": [1.03, 1.04, 1.05, 1.04, 1.03, 1.04]}
    found = judged(table, control=("a", "a_control"), margins={"score": 0.1}, rule=Rule.PAIRED)
    assert "control_separated" in codes(pair(found, "a", "b"))


def test_case_13_places_that_decide_the_value_rank_nobody() -> None:
    """Three equal arms over 4 passes whose value depends on their place alone: nothing is ranked."""
    table: dict[str, list[Cell]] = {f"a{i}": [100 * (1 + 0.02 * place(i, j, 3)) for j in range(1, 5)] for i in range(3)}
    for rule in Rule:
        assert not any(isinstance(v.outcome, Ranked) for v in judged(table, rule=rule).verdicts)


def test_an_arm_that_always_runs_first_is_order_confounded() -> None:
    """Plain a b, a b, ...: the places cannot be told from the arms, however clear the difference."""
    records = [record(arm, n, at, CLEAR[arm][n - 1]) for n in range(1, 7) for at, arm in enumerate(CLEAR, start=1)]
    verdict = only(judge(experiment(["a", "b"], 6), records, {}))
    assert codes(verdict) == {"order_confounded"}


def test_unbalanced_places_count_only_for_what_they_can_contribute() -> None:
    """Five passes of two arms cannot balance places; a doubling is ranked all the same, a hair's breadth is not."""
    table: dict[str, list[Cell]] = {arm: list(values[:5]) for arm, values in CLEAR.items()}
    assert only(judged(table)).outcome == Ranked("a")
    close: dict[str, list[Cell]] = {"a": [1.0, 1.01, 1.02, 1.0, 1.01], "b": [1.001, 1.02, 1.0, 1.01, 1.0]}
    assert "order_confounded" in codes(only(judged(close)))


def test_unequal_work_is_named() -> None:
    """A fact that both arms report and that differs is named with both values; a fact of one arm alone is not."""
    records = [replace(r, work={"threads": 2 if r.arm == "a" else 1, "kv_bytes": 7}) for r in run(CLEAR)]
    verdict = only(judge(experiment(["a", "b"], 6), records, {}))
    assert codes(verdict) == {"unequal_work"}
    assert isinstance(verdict.outcome, Refused)
    assert "threads is 2 for a and 1 for b" in verdict.outcome.reasons[0].sentence
    alone = [replace(r, work={"threads": 2}) if r.arm == "a" else r for r in run(CLEAR)]
    assert isinstance(only(judge(experiment(["a", "b"], 6), alone, {})).outcome, Ranked)


def test_case_36_trials_from_two_hosts_are_never_ranked() -> None:
    """Arm a from one host and b from another, scaled by 1.28: a host fact that differs is unequal work."""
    table: dict[str, list[Cell]] = {
        "a": [1.0, 1.001, 1.0, 1.002, 1.0, 1.001],
        "b": [1.28, 1.281, 1.28, 1.283, 1.28, 1.281],
    }
    records = [replace(r, work={"host": "one" if r.arm == "a" else "two"}) for r in run(table)]
    assert "unequal_work" in codes(only(judge(experiment(["a", "b"], 6), records, {})))


def test_case_8_a_splendid_value_of_a_failed_trial_never_counts() -> None:
    """Arm b fails in 2 of 4 passes after printing a very fast value, c in all: none of theirs enters or is ranked."""
    table: dict[str, list[Cell]] = {
        "a": [2.0, 2.01, 2.0, 2.01],
        "b": [1.5, 1.5, 1.5, 1.5],
        "c": [0.1] * 4,
        "d": [3.0] * 4,
        "e": [5.0] * 4,
    }
    records = []
    for r in run(table):
        failed = r.arm == "c" or (r.arm == "b" and r.pass_number in {2, 4})
        broken = record(r.arm, r.pass_number, r.position, Reason.NONZERO_EXIT)
        records.append(replace(broken, values={"score": Value(value=0.001)}) if failed else r)
    found = judge(experiment(list(table), 4), records, {})
    assert found.arms["b"].metrics["score"].low == 1.5
    assert found.arms["b"].metrics["score"].n == 2
    assert (found.arms["b"].ok, found.arms["b"].failed) == (2, 2)
    assert found.arms["c"].metrics == {}
    assert "failed_trials" in codes(pair(found, "a", "b"))
    assert "2 of 4 passes" in pair(found, "a", "b").notes[0]
    assert {"failed_trials", "metric_missing"} <= codes(pair(found, "a", "c"))
    assert pair(found, "a", "d").outcome == Ranked("a")
    assert len(found.failures) == 6


def test_an_arm_that_is_meant_to_fail_costs_the_others_nothing() -> None:
    """Its pairs say that it has no value; its failures count as fulfilled; the others are ranked on all passes."""
    table: dict[str, list[Cell]] = {**CLEAR, "broken": [Reason.SIGNAL] * 6}
    plan = experiment(list(table), 6)
    meant = Arm(name="broken", engine="command", expect=Expectation(failure="signal"))
    plan = replace(plan, arms=(*plan.arms[:2], meant))
    records = [replace(r, expected=True) if r.failure else r for r in run(table)]
    found = judge(plan, records, {})
    assert pair(found, "a", "b").outcome == Ranked("a")
    assert codes(pair(found, "a", "broken")) == {"metric_missing", "too_few_passes"}
    assert (found.arms["broken"].ok, found.arms["broken"].failed) == (6, 0)


def test_a_disturbed_trial_has_its_own_code() -> None:
    """A disturbed trial that no repetition replaced refuses its pairs as disturbed."""
    table: dict[str, list[Cell]] = {"a": list(CLEAR["a"]), "b": [*CLEAR["b"][:5], Reason.DISTURBED]}
    assert codes(only(judged(table))) == {"disturbed"}


def test_a_repeated_pass_replaces_the_whole_of_it_and_hides_nothing() -> None:
    """Pass 2 failed for b and was run again for both arms: the later attempt counts, the first stays listed."""
    table: dict[str, list[Cell]] = {"a": list(CLEAR["a"]), "b": [CLEAR["b"][0], Reason.DISTURBED, *CLEAR["b"][2:]]}
    again = [record("a", 2, 1, 1.015, attempt=2, trial=901), record("b", 2, 2, 2.015, attempt=2, trial=902)]
    found = judge(experiment(["a", "b"], 6), [*run(table), *again], {})
    assert only(found).outcome == Ranked("a")
    assert found.arms["a"].metrics["score"].values[2] == 1.015
    assert [(row.reason, row.replaced) for row in found.failures] == [("disturbed", True)]
    assert found.arms["b"].failed == 0


def test_a_repetition_that_is_not_complete_does_not_count_yet() -> None:
    """Only one arm of pass 2 has run again: the earlier attempt is judged still."""
    table: dict[str, list[Cell]] = {"a": list(CLEAR["a"]), "b": list(CLEAR["b"])}
    found = judge(experiment(["a", "b"], 6), [*run(table), record("a", 2, 1, 99.0, attempt=2, trial=901)], {})
    assert found.arms["a"].metrics["score"].values[2] == 1.01


def test_an_interrupted_trial_is_replaced_by_the_resumed_one() -> None:
    """Arm b was interrupted in pass 6 and ran again: the run is complete and ranked."""
    table: dict[str, list[Cell]] = {"a": list(CLEAR["a"]), "b": [*CLEAR["b"][:5], Reason.INTERRUPTED]}
    assert "failed_trials" in codes(only(judge(experiment(["a", "b"], 6), run(table), {})))
    found = judge(experiment(["a", "b"], 6), [*run(table), record("b", 6, 1, 2.03, attempt=2, trial=901)], {})
    assert only(found).outcome == Ranked("a")
    assert found.complete


def test_case_4_a_run_cut_short_is_marked_and_not_ranked() -> None:
    """Two arms by six passes with the last trial missing: incomplete, and no pair of it is ranked."""
    records = [r for r in run(CLEAR) if not (r.arm == "b" and r.pass_number == 6)]
    found = judge(experiment(["a", "b"], 6), records, {})
    assert not found.complete
    assert codes(only(found)) == {"too_few_passes"}
    assert any("not complete" in note for note in found.notes)


def test_one_missing_value_of_a_trial_that_ended_well_is_metric_missing() -> None:
    """A trial without the metric leaves a hole that is named; the others are judged on all their passes."""
    table: dict[str, list[Cell]] = {**CLEAR, "c": [4.0, 4.1, None, 4.1, 4.0, 4.1]}
    found = judged(table)
    assert codes(pair(found, "a", "c")) == {"metric_missing"}
    assert "5 of 6 passes" in pair(found, "a", "c").notes[0]
    assert pair(found, "a", "b").outcome == Ranked("a")


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_case_38_values_without_a_ratio_are_not_comparable(bad: float) -> None:
    """Zero, negative or infinite values are refused by name; nothing is dropped and the other pairs stand."""
    table: dict[str, list[Cell]] = {**CLEAR, "c": [5.0, 5.0, bad, 5.0, 5.0, 5.0]}
    found = judged(table)
    assert "not_comparable" in codes(pair(found, "a", "c"))
    assert isinstance(pair(found, "a", "c").interval, Unknown)
    assert pair(found, "a", "b").outcome == Ranked("a")


def test_case_38_a_missing_arm_changes_no_other_figure() -> None:
    """The count behind each summary is the count of its own values: no mean over cells that are not there."""
    table: dict[str, list[Cell]] = {"a": [1.0, 2.0, 3.0, None], "b": [1.0, 2.0, 3.0, 4.0], "c": [1.0, 2.0, 3.0, 4.0]}
    found = judged(table)
    assert found.arms["a"].metrics["score"].n == 3
    assert found.arms["b"].metrics["score"].n == 4


def test_an_infinite_value_that_became_a_failure_is_failed_trials() -> None:
    """A reading that was no number is the failure bad_output of its trial."""
    table: dict[str, list[Cell]] = {"a": list(CLEAR["a"]), "b": [*CLEAR["b"][:5], Reason.BAD_OUTPUT]}
    assert codes(only(judged(table))) == {"failed_trials"}


def test_another_unit_is_a_mismatch() -> None:
    """A value recorded in another unit than the metric's is refused."""
    table: dict[str, list[Cell]] = {"a": list(CLEAR["a"]), "b": [Value(value=2000.0 + i, unit="ms") for i in range(6)]}
    assert "unit_mismatch" in codes(only(judged(table)))


def test_case_40_a_bimodal_arm_is_not_ranked_and_is_named() -> None:
    """Arm a lives at 40 and 85, b at 60: the spreads overlap, and the report says that a has two modes."""
    table: dict[str, list[Cell]] = {
        "a": [40.0, 85.0, 40.0, 85.0, 40.0, 85.0],
        "b": [60.0, 61.0, 60.0, 61.0, 60.0, 61.0],
    }
    verdict = only(judged(table))
    assert "spreads_overlap" in codes(verdict)
    assert any("a lives in two modes" in note for note in verdict.notes)
    assert not any("b lives" in note for note in verdict.notes)


def test_case_40_four_trials_are_enough_to_see_two_modes() -> None:
    """The case's own numbers: {40, 40, 85, 85} against {60, 61, 60, 61}."""
    verdict = only(judged({"a": [40.0, 40.0, 85.0, 85.0], "b": [60.0, 61.0, 60.0, 61.0]}))
    assert {"spreads_overlap", "too_few_passes"} <= codes(verdict)
    assert any("two modes" in note for note in verdict.notes)


def test_drift_over_passes_is_removed_by_paired_and_overlaps_under_strict() -> None:
    """The host slows by 10 % a pass; b is 5 % slower throughout: paired ranks it, strict shows the overlap."""
    table: dict[str, list[Cell]] = {
        "a": [1.1**j for j in range(6)],
        "b": [1.05 * 1.1**j * (1 + 0.001 * (j % 2)) for j in range(6)],
    }
    assert codes(only(judged(table))) == {"spreads_overlap"}
    assert only(judged(table, rule=Rule.PAIRED)).outcome == Ranked("a")


def test_case_11_an_arm_that_drifts_inside_its_trials_is_flagged() -> None:
    """Last thirds 30 % above first thirds, far beyond the spread over trials: the arm carries a flag."""
    warming = tuple(0.7 if i < 3 else 1.0 for i in range(9))
    table: dict[str, list[Cell]] = {
        "a": [Value(value=1.0 + 0.001 * i, series=warming) for i in range(6)],
        "b": [Value(value=1.0 + 0.001 * i, series=(1.0,) * 9) for i in range(6)],
    }
    found = judged(table)
    assert any("steady" in flag for flag in found.arms["a"].flags)
    assert not found.arms["b"].flags


def test_case_41_iterations_inside_a_trial_are_no_replicates() -> None:
    """Long correlated series inside each trial leave the interval as it is: one number per trial counts."""
    rng = np.random.default_rng(4)
    level = {"a": rng.normal(1, 0.05, 6), "b": rng.normal(1, 0.05, 6)}
    bare: dict[str, list[Cell]] = {arm: [float(x) for x in xs] for arm, xs in level.items()}
    full: dict[str, list[Cell]] = {
        arm: [Value(value=float(x), series=tuple([float(x)] * 500)) for x in xs] for arm, xs in level.items()
    }
    assert only(judged(full)).interval == only(judged(bare)).interval


def test_priming_trials_never_count() -> None:
    """A priming trial, whatever it reads, is in no figure."""
    priming = [record("a", 0, 1, 1e9, priming=True, trial=1), record("b", 0, 2, 1e-9, priming=True, trial=2)]
    found = judge(experiment(["a", "b"], 6), [*priming, *run(CLEAR)], {})
    assert found.arms["a"].metrics["score"].high == 1.02
    assert found.arms["a"].ok == 6


PEAK = replace(SCORE, name="peak", unit="s", kind=Kind.PEAK)


def peaks(low: float, width: float | None) -> list[Cell]:
    """Six trials whose bracket begins near `low` and is `width` wide."""
    return [
        {
            "peak": Value(
                value=low + i,
                lower=low + i,
                upper=None if width is None else low + i + width,
                upper_missing="no cgroup",
            )
        }
        for i in range(6)
    ]


def test_peaks_are_ranked_only_if_their_brackets_are_disjoint_too() -> None:
    """Lower ends apart, brackets overlapping or unbounded: refused as brackets_overlap; narrow brackets: ranked."""
    assert only(judged({"a": peaks(1000, 10), "b": peaks(2000, 10)}, metrics=[PEAK])).outcome == Ranked("a")
    assert codes(only(judged({"a": peaks(1000, 1500), "b": peaks(2000, 10)}, metrics=[PEAK]))) == {"brackets_overlap"}
    unbounded = only(judged({"a": peaks(1000, None), "b": peaks(2000, 10)}, metrics=[PEAK]))
    assert codes(unbounded) == {"brackets_overlap"}
    assert "no cgroup" in unbounded.outcome.reasons[0].sentence  # type: ignore[union-attr]
    paired = judged({"a": peaks(1000, 1500), "b": peaks(2000, 10)}, metrics=[PEAK], rule=Rule.PAIRED)
    assert codes(only(paired)) == {"brackets_overlap"}


def test_mapped_weights_do_not_pass_for_saved_memory() -> None:
    """Arm b holds 500 MiB less anonymous memory and 600 MiB more of a mapped file: not comparable."""
    metric = REGISTRY["settled_rss_anon"]
    mib = 2**20
    table: dict[str, list[Cell]] = {
        "a": [{"settled_rss_anon": 1000.0 * mib + i * mib} for i in range(6)],
        "b": [{"settled_rss_anon": 500.0 * mib + i * mib} for i in range(6)],
    }

    def with_files(amount: int) -> list[TrialRecord]:
        return [
            replace(
                r,
                memory=MemoryRecord(
                    backend="none",
                    phases=(PhaseMemory(phase="settle", samples=9, max_rss_file=amount * mib if r.arm == "b" else 0),),
                ),
            )
            for r in run(table)
        ]

    plan = experiment(["a", "b"], 6, metrics=[metric])
    assert codes(only(judge(plan, with_files(600), {}))) == {"not_comparable"}
    assert only(judge(plan, with_files(100), {})).outcome == Ranked("b")


def test_a_few_mapped_libraries_blind_no_control() -> None:
    """Two arms of one configuration, 1 MiB of anonymous memory and 13 MiB of files apart: no ranking and no
    equivalence, but the control guards the metric; below the metric's resolution files count for nothing.
    """
    metric = REGISTRY["settled_rss_anon"]
    mib = 2**20
    table: dict[str, list[Cell]] = {
        "a": [{"settled_rss_anon": 1000.0 * mib + i * mib} for i in range(6)],
        "b": [{"settled_rss_anon": 1001.0 * mib - i * mib} for i in range(6)],
    }

    def with_files(amount: int) -> list[TrialRecord]:
        phase = PhaseMemory(phase="settle", samples=9, max_rss_file=amount)
        none = PhaseMemory(phase="settle", samples=9, max_rss_file=0)
        return [
            replace(r, memory=MemoryRecord(backend="none", phases=(phase if r.arm == "b" else none,)))
            for r in run(table)
        ]

    plan = replace(experiment(["a", "b"], 6, metrics=[metric]), control=("a", "b"))
    hidden = judge(plan, with_files(13 * mib), {})
    assert "not_comparable" in codes(only(hidden))
    assert not any("could not be judged" in note for note in hidden.notes)
    assert "not_comparable" not in codes(only(judge(plan, with_files(metric_resolution(metric)), {})))


def metric_resolution(metric: Metric) -> int:
    """The smallest difference that a reading shows, bytes."""
    assert metric.resolution is not None
    return int(metric.resolution)


def test_exact_metrics_are_compared_exactly() -> None:
    """One pass is enough: sizes that differ are ranked, equal ones equivalent with margin 0, a varying one is none."""

    def sizes(*values: float) -> list[Cell]:
        return [{"size": value} for value in values]

    assert only(judged({"a": sizes(100.0), "b": sizes(101.0)}, metrics=[EXACT])).outcome == Ranked("a")
    assert only(judged({"a": sizes(100.0), "b": sizes(100.0)}, metrics=[EXACT])).outcome == Equivalent(0.0)
    varying = judged({"a": sizes(100.0, 101.0), "b": sizes(90.0, 90.0)}, metrics=[EXACT])
    assert codes(only(varying)) == {"not_comparable"}
    assert only(varying).interval != only(varying).ratio


def windows(nll: list[float]) -> list[Cell]:
    """Two trials that repeat exactly."""
    return [{"perplexity": Value(value=math.exp(sum(nll) / len(nll)), series=tuple(nll))}] * 2


def test_perplexity_is_paired_over_the_same_windows() -> None:
    """Windows differ by a factor among themselves, b is 0.02 nats worse in each: ranked, ratio exp(-0.02)."""
    rng = np.random.default_rng(2)
    base = rng.normal(3, 0.5, 40)
    a = [float(x) for x in base]
    b = [float(x) for x in base + 0.02 + rng.normal(0, 0.005, 40)]
    verdict = only(judged({"a": windows(a), "b": windows(b)}, metrics=[PERPLEXITY]))
    assert verdict.outcome == Ranked("a")
    assert verdict.ratio == pytest.approx(math.exp(-0.02), abs=0.003)
    noisy = [float(x) for x in base + rng.normal(0, 0.2, 40)]
    assert "interval_contains_one" in codes(only(judged({"a": windows(a), "b": windows(noisy)}, metrics=[PERPLEXITY])))


def test_perplexity_over_different_text_is_not_comparable() -> None:
    """Forty windows against thirty-nine are not the same text."""
    a = [3.0 + 0.01 * i for i in range(40)]
    assert codes(only(judged({"a": windows(a), "b": windows(a[:39])}, metrics=[PERPLEXITY]))) == {"not_comparable"}


def test_perplexity_half_width_is_students_t_over_windows() -> None:
    """Differences 0.01 0.02 0.03 0.04 0.05 over five windows: mean 0.03, t(4) 2.776, error 0.015811/sqrt(5)."""
    a, b = [1.01, 1.02, 1.03, 1.04, 1.05], [1.0] * 5
    verdict = only(judged({"a": windows(a), "b": windows(b)}, metrics=[PERPLEXITY]))
    assert isinstance(verdict.interval, Interval)
    half = 2.7764451 * 0.0158113883 / math.sqrt(5)
    assert math.log(verdict.interval.high) == pytest.approx(0.03 + half, abs=1e-7)


def test_tie_groups_are_a_partial_order() -> None:
    """Here a and b tie, b and c tie, a beats c: two groups that share b, and a stands before c."""
    table: dict[str, list[Cell]] = {
        "a": [1.00, 1.06, 1.00, 1.06, 1.00, 1.06],
        "b": [1.05, 1.11, 1.05, 1.11, 1.05, 1.11],
        "c": [1.10, 1.16, 1.10, 1.16, 1.10, 1.16],
    }
    assert judged(table).tie_groups["score"] == (("a", "b"), ("b", "c"))


def test_passes_needed_grows_with_the_square_of_the_noise() -> None:
    """A difference of a third of the half width needs about nine times the passes."""
    table: dict[str, list[Cell]] = {"a": [1.0, 1.1, 1.0, 1.1, 1.0, 1.1], "b": [1.1, 1.0, 1.12, 1.0, 1.12, 1.0]}
    verdict = only(judged(table))
    assert isinstance(verdict.interval, Interval)
    assert isinstance(verdict.ratio, float)
    half = math.log(verdict.interval.high / verdict.interval.low) / 2
    assert verdict.passes_needed == math.ceil(6 * (half / abs(math.log(verdict.ratio))) ** 2)


def table_of(values: list[list[float]]) -> dict[str, list[Cell]]:
    """Named rows."""
    return {f"a{i}": list(row) for i, row in enumerate(values)}


tables = st.integers(2, 5).flatmap(
    lambda arms: st.lists(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=5), min_size=arms, max_size=arms)
)


def outcomes(judgement: Judgement) -> dict[tuple[str, frozenset[str]], tuple[str, frozenset[Code]]]:
    """Each pair's outcome, whichever way round it is named."""
    return {
        (v.metric.name, frozenset((v.a, v.b))): (
            v.outcome.better if isinstance(v.outcome, Ranked) else type(v.outcome).__name__,
            frozenset(v.codes),
        )
        for v in judgement.verdicts
    }


def trials(table: dict[str, list[Cell]], positions: dict[str, int]) -> list[TrialRecord]:
    """Records whose places belong to the data, whatever the arms' names or order."""
    arms = len(table)
    return [
        record(arm, n, place(positions[arm], n, arms), cell)
        for arm in table
        for n, cell in enumerate(table[arm], start=1)
    ]


def plan_for(arms: list[str], rule: Rule) -> Experiment:
    """Five passes with a margin."""
    return experiment(arms, 5, rule=rule, margins={"score": 0.02})


@settings(max_examples=60, deadline=None)
@given(tables, st.sampled_from(list(Rule)))
def test_swapping_two_labels_swaps_the_verdict_exactly(values: list[list[float]], rule: Rule) -> None:
    """Give a0's trials to a1 and the other way round: every verdict follows the data to the other name."""
    table = table_of(values)
    where = {arm: i for i, arm in enumerate(table)}
    swap = {"a0": "a1", "a1": "a0"}
    swapped = {arm: table[swap.get(arm, arm)] for arm in table}
    before = outcomes(judge(plan_for(list(table), rule), trials(table, where), {}))
    after = outcomes(
        judge(plan_for(list(table), rule), trials(swapped, {arm: where[swap.get(arm, arm)] for arm in table}), {})
    )
    renamed = {
        (metric, frozenset(swap.get(name, name) for name in names)): (swap.get(what, what), why)
        for (metric, names), (what, why) in before.items()
    }
    assert after == renamed


@settings(max_examples=60, deadline=None)
@given(tables, st.randoms(use_true_random=False), st.sampled_from(list(Rule)))
def test_permuting_arms_changes_nothing(values: list[list[float]], random: object, rule: Rule) -> None:
    """The order of arms in the file and of records in the run touches no verdict and no interval."""
    table = table_of(values)
    where = {arm: i for i, arm in enumerate(table)}
    names = list(table)
    random.shuffle(names)  # type: ignore[attr-defined]
    records = trials(table, where)
    before = judge(plan_for(list(table), rule), records, {})
    after = judge(plan_for(names, rule), list(reversed(records)), {})
    assert outcomes(before) == outcomes(after)
    for verdict in before.verdicts:
        other = pair(after, verdict.a, verdict.b)
        assert isinstance(verdict.interval, Interval)
        assert isinstance(other.interval, Interval)
        if other.a == verdict.a:
            assert other.interval == verdict.interval
        else:
            assert other.interval.low == pytest.approx(1 / verdict.interval.high, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(tables, st.floats(1e-3, 1e3), st.sampled_from(list(Rule)))
def test_scaling_all_values_changes_no_verdict(values: list[list[float]], factor: float, rule: Rule) -> None:
    """Seconds or milliseconds: the verdicts are the same."""
    table = table_of([[round(v, 3) for v in row] for row in values])
    scaled: dict[str, list[Cell]] = {arm: [v * factor for v in row] for arm, row in table.items()}  # type: ignore[operator]
    where = {arm: i for i, arm in enumerate(table)}
    plan = plan_for(list(table), rule)
    assert outcomes(judge(plan, trials(table, where), {})) == outcomes(judge(plan, trials(scaled, where), {}))


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e-300, 1e300, 8e307])
@pytest.mark.parametrize("resolution", [None, 0.0, 1e-320, 0.001, 1e300])
@pytest.mark.parametrize("unit", ["s", "B"])
@pytest.mark.filterwarnings("error")
def test_values_of_any_size_are_judged(size: float, resolution: float | None, unit: str) -> None:
    """From the smallest float to nearly the largest, with any resolution, ratios and differences alike: no overflow, no
    NaN, no crash, and an arm of half the value is better unless the resolution forbids to say so.
    """
    rng = np.random.default_rng(5)
    table: dict[str, list[Cell]] = {
        arm: [max(float(level * size * math.exp(0.01 * x)), 5e-324) for x in rng.standard_normal(6)]
        for arm, level in (("a", 1.0), ("b", 2.0), ("c", 2.0))
    }
    metric = replace(SCORE, resolution=resolution, unit=unit)
    claims = [
        Claim(id=kind.value, metric="score", arm="b", versus="a", kind=kind, op=op, value=1.1, text="")
        for kind, op in ((ClaimKind.RATIO, ">="), (ClaimKind.DIFFERENCE, "<="))
    ]
    found = judged(table, metrics=[metric], claims=tuple(claims), margins={"score": 0.01})
    verdict = pair(found, "a", "b")
    assert isinstance(verdict.interval, Interval)
    assert 0 < verdict.interval.low < verdict.interval.high < math.inf
    assert verdict.outcome == Ranked("a") or codes(verdict) == {"interval_contains_one"}
    if resolution is None:
        assert verdict.outcome == Ranked("a")


def test_arms_six_hundred_orders_of_magnitude_apart_crash_nothing() -> None:
    """1e-300 against 1e300, with claims both ways: judged, whatever floats can say of it."""
    table: dict[str, list[Cell]] = {"a": [1e-300] * 5, "b": [1e300] * 5, "c": [1.0, 2.0, 1.0, 2.0, 1.0]}
    claims = [
        Claim(id=arm, metric="score", arm=arm, versus=other, kind=kind, op=">=", value=1.1, text="")
        for arm, other in (("a", "b"), ("b", "a"))
        for kind in (ClaimKind.RATIO, ClaimKind.DIFFERENCE)
    ]
    assert len(judged(table, claims=tuple(claims), metrics=[replace(SCORE, unit="B")]).claims) == 4


def test_thirty_arms_of_which_one_stands_out_are_grouped_at_once() -> None:
    """One better arm and 29 that tie: two groups, in well under the half minute that all subsets of 24 would take."""
    rng = np.random.default_rng(2)
    table: dict[str, list[Cell]] = {
        f"x{i}": [float(math.exp(0.01 * x)) * (1 if i == 0 else 2) for x in rng.standard_normal(5)] for i in range(30)
    }
    began = time.monotonic()
    groups = judged(table).tie_groups["score"]
    assert groups == (("x0",), tuple(f"x{i}" for i in range(1, 30)))
    assert time.monotonic() - began < 10


def test_an_interval_that_holds_1_never_reads_as_ending_there() -> None:
    """0.9997 to 1.0003 would read "0.9997 to 1" with four digits; an end that is 1 is 1."""
    assert Interval(0.9997032, 1.0002969, 0.95, "").words == "0.9997 to 1.0003"
    assert Interval(0.99999912, 1.0000011, 0.95, "").words == "0.9999991 to 1.000001"
    assert Interval(0.5, 1.0, 0.95, "").words == "0.5 to 1"


def test_passes_needed_are_those_of_the_arms_that_were_analysed() -> None:
    """Three arms of which one failed twice: the two others have 4 passes and 3 degrees of freedom; they need 5."""
    bad = Reason.TIMEOUT
    table: dict[str, list[Cell]] = {
        "a": [1.0, 1.01, 1.0, 1.01],
        "b": [2.0, 2.01, bad, bad],
        "c": [3.0, 3.01, 3.0, 3.02],
    }
    verdict = pair(judged(table), "a", "c")
    assert codes(verdict) == {"too_few_passes"}
    assert verdict.passes_needed == 5


def test_passes_added_for_a_precision_keep_the_first_stages_variance() -> None:
    """Five noisy passes asked for five more, which were quiet: the interval is the first stage's, narrowed by sqrt(2);
    the same ten passes without a precision are judged by all of them. Quiet first and noisy later: by all of them too.
    """
    noisy, quiet = [1.0, 1.1, 0.95, 1.05, 0.9], [1.0, 1.001, 1.0, 0.999, 1.0]
    other = [1.02] * 10
    plan = experiment(["a", "b"], 5, precision=Precision(target=0.01, max_passes=10, budget_s=1e6))

    def half(values: list[float], plan: Experiment) -> float:
        found = only(judge(plan, run({"a": list(values), "b": list(other[: len(values)])}), {})).interval
        assert isinstance(found, Interval)
        return math.log(found.high / found.low) / 2

    ten = experiment(["a", "b"], 10)
    assert half(noisy + quiet, plan) == pytest.approx(half(noisy, experiment(["a", "b"], 5)) / math.sqrt(2), rel=1e-12)
    assert half(noisy + quiet, plan) > half(noisy + quiet, ten)
    assert half(quiet + noisy, plan) == half(quiet + noisy, ten)


def test_stopping_for_a_precision_ranks_identical_arms_no_more_often() -> None:
    """Two identical arms, 5 passes, then as many as a precision of 1 % asks for at 1 % noise: false rankings under
    `paired` stay within 5 % and three standard errors (the interval on all passes alone: 7.1 %).
    """
    rng = np.random.default_rng(21)
    metrics = [replace(SCORE, name=f"m{index}") for index in range(400)]
    ranked = 0
    for metric in metrics:
        values = np.exp(0.01 * rng.standard_normal((2, 30))).tolist()
        plan = experiment(
            ["a", "b"],
            5,
            rule=Rule.PAIRED,
            precision=Precision(target=0.01, max_passes=30, budget_s=1e6),
            metrics=[metric],
        )
        records = [
            record(arm, number, place(index, number, 2), {metric.name: values[index][number - 1]})
            for index, arm in enumerate(("a", "b"))
            for number in range(1, 31)
        ]
        more = more_passes(plan, [r for r in records if r.pass_number <= 5], {}, 1.0).more
        kept = [r for r in records if r.pass_number <= 5 + more]
        ranked += isinstance(only(judge(plan, kept, {})).outcome, Ranked)
    assert ranked / len(metrics) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(metrics))


def test_a_plain_number_is_said_without_a_unit() -> None:
    """The unit of a perplexity is 1: "25.15", not "25.15 1"."""
    assert format_quantity(25.1536, "1") == "25.15"
    assert format_quantity(25.1536, "tokens/s") == "25.15 tokens/s"
