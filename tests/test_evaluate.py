"""One trial's raw data becomes values or a failure: known answers, and everything that must not pass for a value."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.events import Events, parse
from harness.experiment.types import Arm, Expectation, Experiment
from harness.measure.evaluate import evaluate
from harness.measure.speed import drift
from harness.metrics import REGISTRY, Better, Metric
from harness.records import (
    Disturbance,
    Failure,
    MemoryRecord,
    PhaseMemory,
    Reason,
    TrialRecord,
    from_line,
    seal,
    to_line,
)

SCORE = Metric(name="score", unit="s", better=Better.LOWER, definition="as reported", source="the file", positive=False)
DONE = {"event": "done"}


def asked(*metrics: str | Metric, expect: Expectation | None = None, **more: Any) -> Experiment:
    """An experiment of one arm."""
    arm = Arm(name="a", engine="command", command=("x",), expect=expect or Expectation())
    chosen = tuple(REGISTRY[metric] if isinstance(metric, str) else metric for metric in metrics)
    return Experiment(name="e", question="q", passes=1, arms=(arm,), metrics=chosen, **more)


def record(**more: Any) -> TrialRecord:
    """A trial of 2.5 s that ended well."""
    fields: dict[str, Any] = {"trial": 1, "planned": 1, "arm": "a", "pass_number": 1, "position": 1}
    return TrialRecord(**{**fields, "started_at": "", "began": 10.0, "ended": 12.5, **more})


def stream(*events: dict[str, Any] | str) -> Events:
    """Events as a driver writes them, `done` at the end; bare NaN is written as Python writes it."""
    return parse(event if isinstance(event, str) else json.dumps(event) for event in (*events, DONE))


def iteration(phase: str, tokens_in: int, tokens_out: int, seconds: float) -> dict[str, Any]:
    """One iteration event."""
    return {"event": "iteration", "phase": phase, "tokens_in": tokens_in, "tokens_out": tokens_out, "seconds": seconds}


def metric(name: str, value: Any) -> dict[str, Any]:
    """One metric event."""
    return {"event": "metric", "name": name, "value": value}


def failure(done: TrialRecord) -> tuple[Reason, str]:
    """Reason and evidence of a trial that must have failed; it keeps no values and survives the way to disk."""
    assert done.failure is not None
    assert not done.usable
    assert dict(done.values) == {}
    assert from_line(to_line(seal(done, ""))).failure == done.failure
    return done.failure.reason, done.failure.evidence


def test_prefill_and_decode_follow_their_definitions() -> None:
    """512 tokens in 2, 1 and 4 s: median 256; 65 tokens out in 2 s: 64 / 2 = 32. Warm-up iterations do not count."""
    found = evaluate(
        asked("prefill_tokens_per_s", "decode_tokens_per_s"),
        record(),
        stream(
            iteration("warm-up", 512, 1, 100.0),
            iteration("prefill", 512, 1, 2.0),
            iteration("prefill", 512, 1, 1.0),
            iteration("prefill", 512, 1, 4.0),
            iteration("decode", 32, 65, 2.0),
        ),
        None,
    )
    assert found.usable
    assert found.values["prefill_tokens_per_s"].value == 256.0
    assert found.values["prefill_tokens_per_s"].series == (256.0, 512.0, 128.0)
    assert found.values["decode_tokens_per_s"].value == 32.0


def test_times_come_from_the_record_and_from_phases() -> None:
    """wall_s is the trial's own span; load_s the span of the phase."""
    load = [{"event": "phase", "name": "load", "state": state, "t": t} for state, t in (("begin", 1.0), ("end", 3.5))]
    found = evaluate(asked("wall_s", "load_s"), record(), stream(*load), None)
    assert (found.values["wall_s"].value, found.values["load_s"].value) == (2.5, 2.5)
    reason, evidence = failure(evaluate(asked("load_s"), record(), stream(load[0]), None))
    assert (reason, "did not end" in evidence) == (Reason.BAD_OUTPUT, True)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([iteration("prefill", 511, 1, 1.0)] * 2, "tokens_in is 511, 512 was asked for"),
        ([iteration("prefill", 512, 2, 1.0)] * 2, "tokens_out is 2, 1 was asked for"),
        ([iteration("prefill", 512, 1, 1.0)], "1 of 2 iterations"),
        ([iteration("prefill", 512, 1, 0.0)] * 2, "no reading"),
        ([iteration("prefill", 512, 1, 1.0), iteration("prefill", 512, 1, math.nan)], "cannot be used"),
        ([iteration("decode", 512, 1, 1.0)] * 2, "missing"),
        ([], "missing"),
    ],
)
def test_wrong_work_is_bad_output(events: list[dict[str, Any]], says: str) -> None:
    """Iterations with another token count than the workload's, too few of them or a bare NaN are no speed."""
    experiment = asked("prefill_tokens_per_s", workload={"prefill": {"prompt_tokens": 512, "repeats": 2}})
    reason, evidence = failure(evaluate(experiment, record(), stream(*events), None))
    assert reason is Reason.BAD_OUTPUT
    assert evidence.startswith("prefill_tokens_per_s: ")
    assert says in evidence


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (-1, "negative"),
        ("", "''"),
        ("1,234.5", "1,234.5"),
        (None, "None"),
        (True, "True"),
        ([1], "[1]"),
    ],
)
def test_case_14_what_is_no_number_is_bad_output_with_the_text_as_written(value: Any, says: str) -> None:
    """NaN, infinities, text, negatives: a recorded failure that names the metric, never a number."""
    reason, evidence = failure(evaluate(asked(SCORE), record(), stream(metric("score", value)), None))
    assert reason is Reason.BAD_OUTPUT
    assert evidence.startswith("score: ")
    assert says in evidence


def test_case_14_a_number_beyond_floats_and_a_missing_metric_are_bad_output() -> None:
    """`1e309` is no number, and a metric that was asked for and not reported is named."""
    too_large = '{"event": "metric", "name": "score", "value": 1e309}'
    assert "inf" in failure(evaluate(asked(SCORE), record(), stream(too_large), None))[1]
    assert "score: missing" in failure(evaluate(asked(SCORE), record(), stream(metric("other", 1)), None))[1]
    spoilt = stream(metric("score", 1), metric("score", math.nan), metric("score", 1))
    assert failure(evaluate(asked(SCORE), record(), spoilt, None))[0] is Reason.BAD_OUTPUT


def test_case_14_zero_is_a_value_of_a_metric_of_the_file_and_none_of_a_built_in_one() -> None:
    """A zero that the file allows is recorded as it is; no built-in quantity can be zero."""
    assert evaluate(asked(SCORE), record(), stream(metric("score", 0)), None).values["score"].value == 0.0
    zero = evaluate(asked("decode_tokens_per_s"), record(), stream(metric("decode_tokens_per_s", 0)), None)
    assert "more than 0" in failure(zero)[1]


def test_case_41_repeated_readings_collapse_to_one_value_and_stay_beside_it() -> None:
    """A trial is one value, whatever it repeats inside: the median."""
    events = stream(*(metric("score", value) for value in (5, 1, 9, 2)))
    value = evaluate(asked(SCORE), record(), events, None).values["score"]
    assert (value.value, value.series) == (3.5, (5.0, 1.0, 9.0, 2.0))


def test_an_exact_metric_has_one_value() -> None:
    """Bytes of a checkpoint reported as two different numbers are no exact reading."""
    name = "checkpoint_bytes"
    assert evaluate(asked(name), record(), stream(metric(name, 7), metric(name, 7)), None).values[name].value == 7
    assert "exact" in failure(evaluate(asked(name), record(), stream(metric(name, 7), metric(name, 8)), None))[1]


def test_case_08_a_trial_that_failed_keeps_no_value_however_splendid() -> None:
    """A metric printed before death never enters the record's values."""
    died = record(failure=Failure(reason=Reason.SIGNAL, signal="SIGILL", evidence="SIGILL"))
    found = evaluate(asked(SCORE), died, stream(metric("score", 0.001)), None)
    assert failure(found) == (Reason.SIGNAL, "SIGILL")
    assert not found.expected


def test_without_done_nothing_counts() -> None:
    """A stream that stops before `done` is incomplete, whatever it held."""
    events = parse([json.dumps(metric("score", 1))])
    assert "`done`" in failure(evaluate(asked(SCORE), record(), events, None))[1]


def quality(window: Any, tokens: Any, nll: Any) -> dict[str, Any]:
    """One quality event."""
    return {"event": "quality", "window": window, "tokens": tokens, "nll": nll}


def test_perplexity_weights_windows_by_their_tokens() -> None:
    """(30 + 10) nats over (10 + 10) tokens: exp(2); the series is the mean of each window, in order."""
    events = stream(quality(1, 10, 10.0), quality(0, 10, 30.0))
    value = evaluate(asked("perplexity"), record(), events, None).values["perplexity"]
    assert value.value == pytest.approx(math.exp(2), rel=1e-15)
    assert value.series == (3.0, 1.0)


@pytest.mark.parametrize(
    "windows",
    [
        [quality(0, 15, 30.0)],
        [quality(0, 15, 30.0), quality(0, 15, 30.0)],
        [quality(0, 15, 30.0), quality(2, 15, 30.0)],
        [quality(0, 15, 30.0), quality(1, 15, 1.0), quality(1, 15, 1.0)],
        [quality(0, 15, 30.0), quality(1, 15, math.nan)],
        [quality(0, 15, 30.0), quality(1, 15, None)],
        [quality(0, 15, 30.0), quality(1, 15, -1.0)],
        [quality(0, 15, 30.0), quality(1, 0, 1.0)],
        [quality(0, 15, 30.0), quality(1, 16, 1.0)],
        [quality(0, 15, 30.0), quality(1, 14, 1.0)],
        [quality(0, 15, 30.0), quality(True, 15, 1.0)],
        [quality(0, 15, 30.0), quality(1, 15, 1e9)],
        [quality(0, 15, 30.0), quality(1, 15, 1.0), quality(2, 15, 1.0)],
        [{"event": "quality"}],
        [],
    ],
)
def test_case_51_one_bad_window_makes_the_whole_bad(windows: list[dict[str, Any]]) -> None:
    """A window that is missing, doubled, unscored or not finite is never left out silently."""
    experiment = asked("perplexity", workload={"quality": {"text": "t", "windows": 2, "window_tokens": 16}})
    reason, evidence = failure(evaluate(experiment, record(), stream(*windows), None))
    assert (reason, evidence.startswith("perplexity: ")) == (Reason.BAD_OUTPUT, True)


def test_case_51_windows_scored_whole_but_for_their_first_token_are_a_value() -> None:
    """Two windows of 16 tokens, 15 of each scored: 45 nats over 30 tokens."""
    experiment = asked("perplexity", workload={"quality": {"text": "t", "windows": 2, "window_tokens": 16}})
    found = evaluate(experiment, record(), stream(quality(0, 15, 30.0), quality(1, 15, 15.0)), None)
    assert found.values["perplexity"].value == pytest.approx(math.exp(1.5))


def engagement(name: str, modules: Any = None, calls: Any = None) -> dict[str, Any]:
    """One engagement event."""
    return {"event": "engagement", "name": name, "modules": modules or {}, "calls": calls or {}}


INT4 = Expectation(engaged="cpu_int4", modules={"linear": 196, "embedding": "> 0"}, calls={"direct": "> 0", "wide": 0})
GOOD = engagement("cpu_int4", {"linear": 196, "embedding": 1}, {"direct": 5, "wide": 0})


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "expected cpu_int4, found no engagement event at all"),
        ([engagement("gptq", {"linear": 196})], "expected cpu_int4, found gptq"),
        ([engagement("cpu_int4", {"linear": 98, "embedding": 1}, {"direct": 5, "wide": 0})], "linear == 196, found 98"),
        (
            [engagement("cpu_int4", {"linear": 196}, {"direct": 5, "wide": 0})],
            "embedding > 0, found none (linear: 196)",
        ),
        ([engagement("cpu_int4", {"linear": 196, "embedding": 1}, {"direct": 0, "wide": 0})], "direct > 0, found 0"),
        ([engagement("cpu_int4", {"linear": 196, "embedding": 1}, {"direct": 5, "wide": 9})], "wide == 0, found 9"),
        ([engagement("cpu_int4", {"linear": "196", "embedding": 1}, {"direct": 5, "wide": 0})], "found '196'"),
        ([engagement("cpu_int4", {"linear": math.nan, "embedding": 1}, {"direct": 5, "wide": 0})], "found 'nan'"),
    ],
)
def test_case_48_and_68_other_code_than_declared_is_not_engaged(events: list[dict[str, Any]], says: str) -> None:
    """A plugin that was skipped, half engaged or took the slow path fails its trial, naming expected and found."""
    experiment = asked(SCORE, expect=INT4)
    reason, evidence = failure(evaluate(experiment, record(), stream(metric("score", 1), *events), None))
    assert reason is Reason.NOT_ENGAGED
    assert says in evidence
    assert evaluate(experiment, record(), stream(metric("score", 1), GOOD), None).usable


def test_case_68_counters_that_are_all_zero_are_no_evidence() -> None:
    """The name alone does not engage when every counter beside it is zero; later counts replace earlier ones."""
    experiment = asked(SCORE, expect=Expectation(engaged="k"))
    idle, busy = engagement("k", {"linear": 3}, {"a": 0, "b": 0}), engagement("k", {"linear": 3}, {"a": 0, "b": 2})
    assert "all zero" in failure(evaluate(experiment, record(), stream(metric("score", 1), busy, idle), None))[1]
    assert evaluate(experiment, record(), stream(metric("score", 1), idle, busy), None).usable
    assert evaluate(experiment, record(), stream(metric("score", 1), engagement("k")), None).usable


def test_a_failure_that_was_declared_is_expected_and_only_that_one() -> None:
    """Same reason and signal: expected. Another reason, another signal or a good end: unexpected."""
    declared = asked(SCORE, expect=Expectation(failure="signal", signal="SIGILL"))

    def ended(reason: Reason, signal: str | None = None) -> TrialRecord:
        given = record(failure=Failure(reason=reason, evidence="e", signal=signal))
        return evaluate(declared, given, stream(), None)

    assert ended(Reason.SIGNAL, "SIGILL").expected
    assert not ended(Reason.SIGNAL, "SIGSEGV").expected
    assert not ended(Reason.TIMEOUT).expected
    well = evaluate(declared, record(), stream(metric("score", 1)), None)
    assert failure(well) == (Reason.BAD_OUTPUT, "was declared to fail as SIGILL, but ended well")
    assert not well.expected


def test_an_arm_that_may_fail_is_as_expected_either_way() -> None:
    """`may_fail`: SIGILL is expected, a good end keeps its values and is no failure; anything else is unexpected."""
    perhaps = asked(SCORE, expect=Expectation(may_fail="signal", signal="SIGILL", engaged="k"))

    def ended(reason: Reason, signal: str | None = None) -> TrialRecord:
        given = record(failure=Failure(reason=reason, evidence="e", signal=signal))
        return evaluate(perhaps, given, stream(), None)

    assert ended(Reason.SIGNAL, "SIGILL").expected
    assert not ended(Reason.SIGNAL, "SIGSEGV").expected
    assert not ended(Reason.LOAD_ERROR).expected
    well = evaluate(perhaps, record(), stream(metric("score", 1), engagement("k")), None)
    assert well.usable
    assert well.values["score"].value == 1
    other = evaluate(perhaps, record(), stream(metric("score", 1), engagement("j")), None)
    assert failure(other)[0] == Reason.NOT_ENGAGED
    assert not other.expected


def test_failures_found_here_can_be_declared_too() -> None:
    """`bad_output` and `not_engaged` count as expected if declared; declared and not come is unexpected."""
    bad = asked(SCORE, expect=Expectation(failure="bad_output"))
    assert evaluate(bad, record(), stream(metric("score", math.nan)), None).expected
    assert not evaluate(bad, record(), stream(metric("score", 1)), None).expected
    other = asked(SCORE, expect=Expectation(failure="not_engaged", engaged="k"))
    assert evaluate(other, record(), stream(metric("score", 1)), None).expected


def memory(**more: Any) -> MemoryRecord:
    """A memory record of one load phase."""
    phases = (
        PhaseMemory(phase="load", samples=3, s_lower=50, s_upper=60),
        PhaseMemory(phase="trial", samples=9, s_lower=70, s_upper_missing="no mark"),
    )
    return MemoryRecord(**{"backend": "none", "phases": phases, "levels": {"settled": 40}, **more})


def test_memory_values_carry_their_brackets() -> None:
    """A peak's value is its lower end; a bound that is missing says why; a level that was not reached is no failure."""
    experiment = asked("peak_rss_anon", "load_peak_rss_anon", "settled_rss_anon", "trimmed_rss_anon")
    given = memory(levels={"settled": 40, "trimmed": None}, levels_missing={"trimmed": "never settled"})
    found = evaluate(experiment, record(memory=given), stream(), None)
    assert found.usable
    peak, load = found.values["peak_rss_anon"], found.values["load_peak_rss_anon"]
    assert (peak.value, peak.lower, peak.upper, peak.upper_missing) == (70.0, 70.0, None, "no mark")
    assert (load.value, load.lower, load.upper) == (50.0, 50.0, 60.0)
    assert found.values["settled_rss_anon"].value == 40.0
    assert found.missing == {"trimmed_rss_anon": "trimmed_rss_anon: never settled"}


def test_a_lost_meter_fails_the_trial_only_where_its_reading_was_asked_for() -> None:
    """No memory record, or a broken one, is `meter_lost`; an experiment on speed does not need it."""
    for broken in (None, memory(lost="the sampler died at 3.1 s")):
        lost = evaluate(asked("peak_rss_anon"), record(memory=broken), stream(), None)
        assert failure(lost)[0] is Reason.METER_LOST
        assert evaluate(asked("wall_s"), record(memory=broken), stream(), None).usable


def test_a_disturbed_trial_fails_and_keeps_its_values_for_the_reader() -> None:
    """A counter over its threshold makes `disturbed`; an unknown counter and an equal one do not."""
    experiment = asked("wall_s", disturbance={"steal_s": 1.0, "swap_in_bytes": 0.0})
    quiet = Disturbance(counters={"steal_s": 1.0, "swap_in_bytes": None})
    assert evaluate(experiment, record(disturbance=quiet), stream(), None).usable
    loud = evaluate(experiment, record(disturbance=replace(quiet, counters={"steal_s": 1.5})), stream(), None)
    assert loud.failure is not None
    assert (loud.failure.reason, loud.failure.evidence) == (Reason.DISTURBED, "steal_s 1.5 > 1")
    assert loud.disturbance.exceeded == ("steal_s",)
    assert (loud.usable, loud.values["wall_s"].value) == (False, 2.5)


def test_a_priming_trial_needs_no_values_but_must_be_engaged() -> None:
    """Priming fills caches: what it does not report is missing, not failed."""
    experiment = asked(SCORE, expect=Expectation(engaged="k"))
    primed = record(priming=True, pass_number=0)
    assert evaluate(experiment, primed, stream(engagement("k")), None).usable
    assert failure(evaluate(experiment, primed, stream(), None))[0] is Reason.NOT_ENGAGED


def test_case_11_drift_within_a_trial_is_told_and_changes_no_value() -> None:
    """Three of ten iterations 30 % slow, or a drift all the way: a note. A steady trial: none."""
    cold = [70.0] * 3 + [100.0, 101.0, 99.0, 100.0, 101.0, 99.0, 100.0]
    steady = [100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0, 99.0, 100.0]
    sliding = [100.0 * 1.02**step for step in range(10)]
    assert [bool(drift(series)) for series in (cold, steady, sliding)] == [True, False, True]
    assert not drift([100.0])
    found = evaluate(asked(SCORE), record(), stream(*(metric("score", value) for value in cold)), None)
    assert "drifts within the trial" in found.notes[0]
    assert found.values["score"].value == 99.5  # 70 70 70 99 [99 100] 100 100 101 101


def test_work_is_what_the_driver_reports() -> None:
    """Facts that must be equal between arms reach the record; lines that are no events are counted in a note."""
    work = {"event": "work", "t": 1.0, "threads": 2, "kv_bytes": math.inf, "prompts": "\ud800"}
    found = evaluate(asked("wall_s"), record(), stream(work, "no json"), None)
    assert dict(found.work) == {"threads": 2, "kv_bytes": "inf", "prompts": "?"}
    assert found.notes == ("1 lines of the event stream were no usable events",)
    assert from_line(to_line(seal(found, ""))).work == found.work


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
_FIELDS = [
    "phase",
    "tokens_in",
    "tokens_out",
    "seconds",
    "name",
    "value",
    "modules",
    "calls",
    "window",
    "tokens",
    "nll",
]
_EVENTS = st.builds(
    lambda kind, name, fields: {**fields, "event": kind, "name": name},
    st.sampled_from(["iteration", "metric", "engagement", "quality", "phase", "work"]),
    st.sampled_from(["score", "prefill", "k", ""]),
    st.dictionaries(st.sampled_from(_FIELDS), st.one_of(_JSON, st.sampled_from(["prefill", "decode"]))),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy host draws examples slowly
@given(st.lists(_EVENTS, max_size=6))
def test_no_stream_of_events_breaks_the_evaluation(events: list[dict[str, Any]]) -> None:
    """Whatever an arm writes, the trial becomes a record that strict JSON can hold."""
    experiment = asked(
        SCORE, "prefill_tokens_per_s", "decode_tokens_per_s", "perplexity", "load_s", expect=Expectation(engaged="k")
    )
    found = evaluate(experiment, record(), stream(*events), None)
    assert from_line(to_line(seal(found, ""))).failure == found.failure
