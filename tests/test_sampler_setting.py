"""How densely memory is sampled is a setting: of the file, or of one arm, and never a difference in work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.events import parse
from harness.experiment import ExperimentError, differences_text, load, loads
from harness.measure.evaluate import evaluate
from harness.records import TrialRecord
from harness.run.store import RunFolder

ROOT = Path(__file__).resolve().parent.parent
FILE = """
question: q
passes: 1
engine: {command: {}}
sampler: {hz: 20}
arms:
  a: {command: ["true"]}
  b: {command: ["true"], sampler: {hz: 0}}
metrics: [peak_rss_anon]
"""


def test_an_arm_s_own_rate_wins_over_the_file_s() -> None:
    """The file's rate holds for every arm without one; neither is told to the arm; both stand in the differences."""
    experiment = loads(FILE, "f.yaml")
    a, b = experiment.arms
    assert (a.sampler_hz, b.sampler_hz) == (20, 0)
    assert a.work() == b.work()
    assert a.identity != b.identity
    assert differences_text(experiment) == ("b: sampler.hz = 0 (a: 20)",)


def test_without_the_key_an_arm_s_identity_is_what_it_was() -> None:
    """A setting that nobody made is no part of an arm."""
    arm = loads(FILE.replace("sampler: {hz: 20}\n", ""), "f.yaml").arms[0]
    assert arm.sampler_hz is None
    assert arm.configuration() == arm.work()


@pytest.mark.parametrize("given", ["{hz: -1}", "{hz: 201}", "{hz: true}", "{}", "20"])
def test_a_rate_that_cannot_be_is_refused(given: str) -> None:
    """A rate is a whole number from 0 to 200."""
    with pytest.raises(ExperimentError, match="sampler"):
        loads(FILE.replace("{hz: 20}", given), "f.yaml")


def test_without_a_sampler_memory_is_missing_with_that_reason() -> None:
    """No failure, no value, and the reason names the setting."""
    experiment = loads(FILE, "f.yaml")
    record = TrialRecord(
        trial=1, planned=1, arm="b", pass_number=1, position=1, started_at="", began=0.0, ended=1.0
    )  # fmt: skip
    found = evaluate(experiment, record, parse(['{"event": "done"}']), None)
    assert (found.failure, dict(found.values)) == (None, {})
    assert "sampler is off" in found.missing["peak_rss_anon"]
    lost = evaluate(experiment, replace(record, arm="a"), parse(['{"event": "done"}']), None)
    assert lost.failure is not None


def test_each_arm_of_a_real_run_is_sampled_at_its_own_rate(tmp_path: Path) -> None:
    """0 Hz leaves no memory record and no samples file; 100 Hz samples every 10 ms; the run is judged as usual."""
    arms = [sys.executable, str(ROOT / "harness" / "testing" / "arms.py"), "ok", "0.3"]
    value = {
        "question": "q",
        "passes": 1,
        "engine": {"command": {}},
        "arms": {f"at_{hz}": {"command": arms, "sampler": {"hz": hz}} for hz in (0, 100)},
        "metrics": [{"name": "score", "unit": "s", "better": "lower"}],
    }
    (tmp_path / "rates.yaml").write_text(json.dumps(value))
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", "rates.yaml", "--results", str(tmp_path / "results")],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HARNESS_CACHE": str(tmp_path / "c"),
            "HARNESS_HOST_LOCK": str(tmp_path / "lock"),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    folder = RunFolder(next((tmp_path / "results" / "rates").iterdir()))
    records = {record.arm: record for record in folder.records().records}
    assert records["at_0"].memory is None
    memory = records["at_100"].memory
    assert memory is not None
    assert memory.cost is not None
    assert memory.cost.period_s == 0.01
    assert len(list((folder.path / "samples").iterdir())) == 1


def test_the_experiment_on_the_sampler_s_cost_is_in_order() -> None:
    """Three arms that differ in nothing but the rate, over whole rotations."""
    experiment = load(ROOT / "experiments" / "sampler_cost.yaml")
    assert [arm.sampler_hz for arm in experiment.arms] == [0, 20, 100]
    assert experiment.passes % len(experiment.arms) == 0
    assert len({json.dumps(arm.work()) for arm in experiment.arms}) == 1
