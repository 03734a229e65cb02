"""The survival limit is found by bisection, whatever the load needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import parse
from harness.measure.evaluate import evaluate
from harness.metrics import REGISTRY
from harness.plan import Plan, PlannedTrial
from harness.records import Failure, MemoryRecord, PhaseMemory, Reason, SurvivalLimit, TrialRecord
from harness.run import cgroup
from harness.run.names import attempt_of_file, read_stem, trial_stem
from harness.run.schedule import Task, open_tasks
from harness.run.store import RunFolder
from harness.run.survival import (
    ABSOLUTE,
    RELATIVE,
    Found,
    Hopeless,
    Limited,
    NextProbe,
    Outcome,
    Probe,
    Unlimited,
    next_probe,
    next_step,
)
from harness.testing.fakes import fake_experiment
from harness.units import GIB, MIB

ROOT = Path(__file__).resolve().parent.parent


def bisect(need: int, *, start: int, ceiling: int) -> tuple[Found | Hopeless, list[int]]:
    """Probe a load that survives under `need` bytes and more; the limits tried come back too."""
    outcomes: list[Outcome] = []
    for _ in range(64):
        step = next_step(outcomes, start=start, ceiling=ceiling)
        if not isinstance(step, Probe):
            return step, [outcome.limit for outcome in outcomes]
        outcomes.append(Outcome(step.limit, survived=step.limit >= need))
    raise AssertionError("the bisection does not end")


@given(need=st.integers(1, 16 * GIB), start=st.integers(MIB, 16 * GIB))
def test_the_bracket_holds_the_need_and_is_narrow(need: int, start: int) -> None:
    """For any need below the ceiling the bracket holds it, and is as narrow as stated."""
    found, _ = bisect(need, start=start, ceiling=32 * GIB)
    assert isinstance(found, Found)
    assert found.lower < need <= found.upper
    assert found.upper - found.lower <= max(ABSOLUTE, RELATIVE * found.upper)


def test_a_first_guess_near_the_need_costs_few_probes() -> None:
    """From a start 10 % above a need of 1 GiB the limit is found in at most nine probes (2^-7 < 1 %)."""
    _, limits = bisect(GIB, start=GIB * 11 // 10, ceiling=16 * GIB)
    assert len(limits) <= 9


def test_a_load_that_needs_more_than_the_host_has_is_hopeless() -> None:
    """A load that dies under all the host can give has no survival limit, and the sentence says so."""
    found, limits = bisect(64 * GIB, start=GIB, ceiling=16 * GIB)
    assert isinstance(found, Hopeless)
    assert limits[-1] == 16 * GIB
    assert "all that this host can give" in found.why


def test_a_load_that_fails_above_a_limit_it_survived_has_no_limit() -> None:
    """Outcomes that contradict each other are named, not averaged."""
    step = next_step([Outcome(GIB, survived=True), Outcome(2 * GIB, survived=False)], start=GIB, ceiling=4 * GIB)
    assert isinstance(step, Hopeless)
    assert "something else than memory" in step.why


def test_the_limit_of_the_pass_before_costs_two_probes_where_nothing_changed() -> None:
    """Started from the limit found last, the same need is found again with two probes."""
    found, _ = bisect(GIB, start=GIB * 11 // 10, ceiling=16 * GIB)
    assert isinstance(found, Found)
    again, limits = bisect(GIB, start=found.upper, ceiling=16 * GIB)
    assert len(limits) <= 3
    assert isinstance(again, Found)
    assert again.upper <= found.upper


def record(trial: int, *, limit: int | None = None, reason: Reason | None = None, planned: int = 1) -> TrialRecord:
    """A record of arm `a`: a probe if `limit` is given."""
    failure = None if reason is None else Failure(reason=reason, evidence="e")
    return TrialRecord(
        trial=trial, planned=planned, arm="a", pass_number=planned, position=1, priming=limit is not None,
        started_at="", began=0.0, ended=1.0, failure=failure, probe_limit_bytes=limit,
    )  # fmt: skip


A1 = PlannedTrial(ordinal=1, arm="a", pass_number=1, position=1)
A2 = replace(A1, ordinal=2, pass_number=2)
ROOM = Limited(16 * GIB)


def test_the_first_limit_comes_from_what_is_on_record() -> None:
    """Nothing on record: 512 MiB; a peak without a limit: that and a tenth; a limit found before: that one."""
    assert next_probe(A1, [], ROOM) == NextProbe(512 * MIB, 1)
    phase = PhaseMemory(phase="trial", samples=9, s_lower=100 * MIB)
    primed = replace(record(1, planned=9), priming=True, memory=MemoryRecord(backend="none", phases=(phase,)))
    assert next_probe(A1, [primed], ROOM) == NextProbe(110 * MIB, 1)
    counted = replace(record(2), survival=SurvivalLimit(lower=70 * MIB, upper=72 * MIB, probes=7))
    assert next_probe(A2, [primed, counted], ROOM) == NextProbe(72 * MIB, 1)


def test_outcomes_are_read_from_the_records() -> None:
    """Probes on record are not run again, an interrupted one tells nothing, and what they bracket is the answer."""
    before = [record(1, limit=64 * MIB), record(2, limit=62 * MIB, reason=Reason.INTERRUPTED)]
    assert next_probe(A1, before, ROOM) == NextProbe(60 * MIB, 3)
    died = [*before, record(3, limit=60 * MIB, reason=Reason.OUT_OF_MEMORY)]
    assert next_probe(A1, died, ROOM) == SurvivalLimit(lower=60 * MIB, upper=64 * MIB, probes=2)


def test_a_pass_that_is_repeated_is_probed_anew() -> None:
    """Probes before an answered attempt belong to that attempt; those before an interrupted one stand for the next."""
    probes = [record(1, limit=64 * MIB), record(2, limit=60 * MIB, reason=Reason.OUT_OF_MEMORY)]
    assert isinstance(next_probe(A1, [*probes, record(3, reason=Reason.INTERRUPTED)], ROOM), SurvivalLimit)
    assert next_probe(A1, [*probes, record(3, reason=Reason.DISTURBED)], ROOM) == NextProbe(512 * MIB, 3)


def test_a_probe_answers_no_planned_trial_and_no_statistics_see_it() -> None:
    """With probes on record the planned trial is still open, at its first attempt."""
    plan = Plan(seed=1, trials=(A1,), arms=("a",))
    assert open_tasks(plan, (), [record(1, limit=64 * MIB)]) == (Task(planned=A1),)


def test_without_room_for_limits_the_host_is_named() -> None:
    """A host that sets no limits gives no survival limit, and says what it lacks."""
    assert next_probe(A1, [], Unlimited("no cgroup")) == SurvivalLimit(missing="no cgroup", host_lacks=True)


def test_a_probe_has_files_of_its_own() -> None:
    """Its stem differs from the trial's and reads back to the same planned trial and attempt."""
    assert trial_stem(7, "a", 2, 3) == "0007-a~a2~p3"
    assert attempt_of_file("0007-a~a2~p3.log") == (7, 2)
    assert read_stem("0007-a~p3") == (7, "a", 1)


_LIMITS = cgroup.cannot_limit(cgroup.probe())


@pytest.mark.skipif(_LIMITS is not None, reason=str(_LIMITS))
def test_the_limit_of_a_real_program_is_found(tmp_path: Path) -> None:
    """A program that writes 48 MiB survives under no less than 48 MiB, and within the resolution above what an
    interpreter needs beside it; every probe is on record, and the verdicts see the counted trials alone.
    """
    arms = [sys.executable, str(ROOT / "harness" / "testing" / "arms.py"), "spike", "48", "1", "1", "0.1"]
    file = tmp_path / "limit.yaml"
    file.write_text(
        json.dumps(
            {
                "question": "q",
                "passes": 2,
                "seed": 1,
                "engine": {"command": {}},
                "arms": {"a": {"command": arms}},
                "metrics": ["survival_limit"],
            }
        )
    )
    environment = {**os.environ, "HARNESS_CACHE": str(tmp_path / "c"), "HARNESS_HOST_LOCK": str(tmp_path / "lock")}
    words = ["-m", "harness", "run", str(file), "--results", str(tmp_path / "results")]
    done = subprocess.run(
        [sys.executable, *words], env={**environment, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = RunFolder(next((tmp_path / "results" / "limit").iterdir()))
    records = folder.records()
    assert records.notes == ()
    probes = [one for one in records.records if one.probe_limit_bytes is not None]
    counted = [one for one in records.records if one.probe_limit_bytes is None]
    assert [one.usable for one in counted] == [True, True]
    assert any(one.failure is not None and one.failure.reason == Reason.OUT_OF_MEMORY for one in probes)
    assert all(one.priming and (one.usable or one.expected) for one in probes)
    for one in counted:
        value = one.values["survival_limit"]
        assert value.lower is not None
        assert 48 * MIB <= value.value <= 80 * MIB
        assert value.value - value.lower <= ABSOLUTE
    words = ["-m", "harness", "report", str(folder.path), "--json"]
    report = subprocess.run(
        [sys.executable, *words], env={**environment, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    found = json.loads(report.stdout)
    assert found["failures"] == []
    assert found["arms"]["a"]["metrics"]["survival_limit"]["n"] == 2


def test_on_a_host_without_limits_the_metric_is_bad_output_and_nothing_is_probed() -> None:
    """The counted trial runs alone and fails as `bad_output` with what the host lacks; a load that nothing saves has
    no value and has not failed.
    """
    metric = REGISTRY["survival_limit"]
    experiment = replace(fake_experiment("a"), metrics=(metric,))
    events = parse(['{"event": "done"}'])
    lacking = SurvivalLimit(missing="no memory cgroup can be used", host_lacks=True)
    found = evaluate(experiment, replace(record(1), survival=lacking), events, None)
    assert found.failure is not None
    assert (found.failure.reason, found.values) == (Reason.BAD_OUTPUT, {})
    assert "no memory cgroup can be used" in found.failure.evidence
    hopeless = evaluate(experiment, replace(record(1), survival=SurvivalLimit(missing="dies always")), events, None)
    assert hopeless.failure is None
    assert hopeless.missing == {"survival_limit": "survival_limit: dies always"}


def test_a_probe_that_dies_is_no_failure_of_the_run() -> None:
    """It is marked expected whatever it died of, and an interrupted one is not."""
    experiment = replace(fake_experiment("a"), metrics=(REGISTRY["survival_limit"],))
    died = evaluate(experiment, record(1, limit=MIB, reason=Reason.LOAD_ERROR), parse([]), None)
    stopped = evaluate(experiment, record(1, limit=MIB, reason=Reason.INTERRUPTED), parse([]), None)
    assert (died.expected, stopped.expected) == (True, False)
