"""Quality in trials of its own: planned apart, run apart, judged apart, and paired over windows of text."""

from __future__ import annotations

import json
import math
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from contract_lab import Lab
from test_evaluate import asked, record, stream
from test_evaluate import quality as window
from verdict_runs import PERPLEXITY, SCORE, experiment, run
from verdict_runs import record as trial

from harness.measure.evaluate import evaluate
from harness.plan import Expected, UnknownTime, expected_seconds, extend, make_plan, schedule_text
from harness.records import Reason, TrialRecord, Value, from_line, seal, to_line
from harness.report import RunData
from harness.report.markdown import markdown
from harness.run.schedule import open_tasks
from harness.verdict import judge
from harness.verdict.agreed import Bears
from harness.verdict.types import Equivalent, Judgement, PairVerdict, Ranked

BOTH = (SCORE, PERPLEXITY)
WORK = {"quality": {"text": "own.txt", "windows": 8, "window_tokens": 16, "trials": 2}}


def nats(*shift: float) -> Value:
    """Eight windows of very different difficulty, each harder or easier by the same or its own shift."""
    base = (2.0, 3.5, 2.8, 4.1, 3.0, 2.2, 3.9, 3.3)
    shifts = shift * 8 if len(shift) == 1 else shift
    series = tuple(one + more for one, more in zip(base, shifts, strict=True))
    return Value(value=math.exp(sum(series) / 8), series=series)


def scorings(arm: str, *cells: Value | Reason) -> list[TrialRecord]:
    """Trials of an arm's own for quality, in order."""
    made = []
    for number, cell in enumerate(cells, start=1):
        found = cell if isinstance(cell, Reason) else {"perplexity": cell}
        made.append(trial(arm, 0, number, found, trial=9000 + 100 * ord(arm) + number, scoring=True))
    return made


def judged(a: Value, b: Value, *, margin: float | None = None) -> Judgement:
    """Two arms of equal speed, each scored twice."""
    margins = {} if margin is None else {"perplexity": margin}
    records = run({"a": [1.0] * 4, "b": [1.0] * 4}) + scorings("a", a, a) + scorings("b", b, b)
    return judge(experiment("ab", 4, metrics=BOTH, workload=WORK, margins=margins), records, {})


def perplexity(found: Judgement) -> PairVerdict:
    """The verdict on quality."""
    return next(verdict for verdict in found.verdicts if verdict.metric.name == "perplexity")


def test_text_is_scored_in_sweeps_of_its_own_before_the_passes() -> None:
    """Two sweeps over the arms, in square brackets; passes, their order and those added later are as without them."""
    plain = experiment("ab", 2)
    both = experiment("ab", 2, metrics=BOTH, workload=WORK)
    with_text, without = make_plan(both, 7), make_plan(plain, 7)
    assert schedule_text(with_text) == "[abab] " + schedule_text(without)
    assert [(t.arm, t.pass_number, t.position) for t in with_text.trials if t.scoring] == (
        [("a", 0, 1), ("b", 0, 1), ("a", 0, 2), ("b", 0, 2)]
    )
    assert with_text.passes == 2
    longer = extend(with_text, both, 3)
    assert [t.arm for t in longer.trials[4:]] == [t.arm for t in extend(without, plain, 3).trials]
    assert [t.ordinal for t in longer.trials] == list(range(1, 15))


def test_an_experiment_of_quality_alone_scores_in_its_passes() -> None:
    """There is nothing to keep apart: no trial is added."""
    only = experiment("ab", 2, metrics=[PERPLEXITY], workload=WORK)
    assert not any(one.scoring for one in make_plan(only, 7).trials)
    assert only.metrics_of(scoring=False) == (PERPLEXITY,)


def test_scoring_trials_have_a_time_of_their_own() -> None:
    """Four passes' trials of 2 s and four scorings of 5 s; without a measured scoring the whole is unknown."""
    both = experiment("ab", 2, metrics=BOTH, workload=WORK)
    plan, known = make_plan(both, 1), {"a": 2.0, "b": 2.0}
    found = expected_seconds(plan, both, known, {"a": 5.0, "b": 5.0})
    assert isinstance(found, Expected)
    assert found.seconds == 28.0
    unknown = expected_seconds(plan, both, known)
    assert isinstance(unknown, UnknownTime)
    assert unknown.why == "no scoring trial of a, b was measured yet"


def test_no_speed_from_a_scoring_trial_and_no_quality_from_any_other() -> None:
    """Whatever an arm reports besides: each kind of trial yields its own metrics, and misses none of the other's."""
    both = asked("perplexity", "decode_tokens_per_s", workload={})
    said = [
        window(0, 10, 30.0),
        {"event": "iteration", "phase": "decode", "tokens_in": 8, "tokens_out": 9, "seconds": 2.0},
    ]
    scoring = evaluate(both, record(scoring=True, pass_number=0), stream(*said), None)
    counted = evaluate(both, record(), stream(*said), None)
    assert set(scoring.values) == {"perplexity"}
    assert set(counted.values) == {"decode_tokens_per_s"}
    assert (scoring.failure, counted.failure) == (None, None)
    assert evaluate(both, record(), stream(said[1]), None).failure is None
    lacking = evaluate(both, record(scoring=True, pass_number=0), stream(said[1]), None).failure
    assert lacking is not None
    assert lacking.reason is Reason.BAD_OUTPUT


def test_quality_is_judged_over_windows_of_its_own_trials() -> None:
    """A shift of 0.02 nats in every window is told apart, ratio exp(0.02), though windows differ by 2 nats; the passes'
    trials, which hold no perplexity, are no missing values.
    """
    verdict = perplexity(judged(nats(0.02), nats(0.0)))
    assert verdict.outcome == Ranked("b")
    assert verdict.ratio == pytest.approx(math.exp(0.02))
    assert (verdict.within.a_better, verdict.within.passes) == (0, 8)
    assert verdict.codes == ()


def test_equivalence_within_a_margin_is_judged_over_windows() -> None:
    """Differences of at most 0.001 nats lie inside 0.2 %, those of 0.01 do not."""
    small, large = (tuple(size * sign for sign in (1, -1, 0, 1, -1, 1, -1, 0)) for size in (0.001, 0.01))
    assert perplexity(judged(nats(*small), nats(0.0), margin=0.002)).outcome == Equivalent(0.002)
    assert not isinstance(perplexity(judged(nats(*large), nats(0.0), margin=0.002)).outcome, Equivalent)


def test_repeats_that_differ_are_reported() -> None:
    """Perplexity repeats to the last digit on one host and build; an arm whose repeats do not is flagged by name."""
    asked_for = experiment("ab", 4, metrics=BOTH, workload=WORK)
    passes = run({"a": [1.0, 1.1] * 2, "b": [2.0, 2.1] * 2})
    same = passes + scorings("a", nats(0.0), nats(0.0)) + scorings("b", nats(0.1), nats(0.1))
    other = passes + scorings("a", nats(0.0), nats(1e-9)) + scorings("b", nats(0.1), nats(0.1))
    assert judge(asked_for, same, {}).arms["a"].flags == ()
    (flag,) = judge(asked_for, other, {}).arms["a"].flags
    assert flag.startswith("a, perplexity: 2 trials over the same text gave ")
    assert judge(asked_for, other, {}).arms["b"].flags == ()
    texts = [text_of(asked_for, records) for records in (same, other)]
    assert "the repeats are equal to the last digit in every window" in texts[0]
    assert "the repeats are equal in all but 1 arm, see Arms" in texts[1]


def text_of(asked_for: object, records: list[TrialRecord]) -> str:
    """The report."""
    data = RunData(experiment=asked_for, run="r", records=tuple(records))  # type: ignore[arg-type]  # see the callers
    return markdown(data, judge(data.experiment, records, {}), {})


def test_the_report_counts_scorings_and_windows_not_passes() -> None:
    """`2 of 2` scorings, values by scoring, wins by window; the passes' tables hold no scoring trial."""
    records = (
        run({"a": [1.0] * 4, "b": [1.0] * 4}) + scorings("a", nats(0.02), nats(0.02)) + scorings("b", *[nats(0)] * 2)
    )
    said = text_of(experiment("ab", 4, metrics=BOTH, workload=WORK), records)
    assert "8 counted trials of 2 arms in 4 passes; rule `strict`. Text was scored in 4 trials of its own" in said
    part = said[said.index("### perplexity") :]
    assert "n of k scorings" in part
    assert "2 of 2" in part
    assert "All trial values of perplexity by scoring" in part
    assert "8 windows; lower is better" in part
    assert "windows in which a was better" in said


def test_a_failed_scoring_is_a_failure_of_quality_alone() -> None:
    """The pair is refused on perplexity with `1 of 2 scorings`; speed is judged as if nothing had happened."""
    records = run({"a": [1.0, 1.01, 1.0, 1.01, 1.0], "b": [2.0, 2.01, 2.0, 2.01, 2.0]})
    records += scorings("a", nats(0.0), Reason.SIGNAL) + scorings("b", nats(0.1), nats(0.1))
    found = judge(experiment("ab", 5, metrics=BOTH, workload=WORK), records, {})
    assert perplexity(found).codes == ("failed_trials",)
    assert "1 of 2 scorings" in str(perplexity(found).outcome)
    assert next(v for v in found.verdicts if v.metric is SCORE).outcome == Ranked("a")
    (row,) = found.failures
    assert (row.scoring, row.pass_number, row.replaced) == (True, 0, False)
    assert "| a | scoring |" in text_of(experiment("ab", 5, metrics=BOTH, workload=WORK), records)


def test_a_run_without_its_scorings_is_not_complete() -> None:
    """A missing trial of quality is a missing trial."""
    records = run({"a": [1.0] * 4, "b": [1.0] * 4}) + scorings("a", nats(0.0), nats(0.0)) + scorings("b", nats(0.0))
    assert not judge(experiment("ab", 4, metrics=BOTH, workload=WORK), records, {}).complete
    whole = [*records, replace(scorings("b", nats(0.0), nats(0.0))[1])]
    assert judge(experiment("ab", 4, metrics=BOTH, workload=WORK), whole, {}).complete


def test_what_is_left_to_run_after_a_crash_holds_the_scorings() -> None:
    """Those without a record, and those that were interrupted, before the passes."""
    both = experiment("ab", 1, metrics=BOTH, workload=WORK)
    plan = make_plan(both, 1)
    done = [
        replace(one, planned=one.position * 2 - (one.arm == "a")) for one in scorings("a", nats(0), Reason.INTERRUPTED)
    ]
    left = open_tasks(plan, (), done)
    assert [(task.planned.arm, task.planned.position, task.planned.scoring, task.attempt) for task in left[:3]] == (
        [("b", 1, True, 1), ("a", 2, True, 2), ("b", 2, True, 1)]
    )
    assert [task.planned.scoring for task in left[3:]] == [False, False]


def test_a_record_of_before_still_has_its_digest() -> None:
    """`scoring` is no part of the digest of a trial that is none, so chains of committed runs hold; else it is."""
    one = seal(record(), "")
    old = json.loads(to_line(one))
    del old["scoring"]
    assert from_line(json.dumps(old)) == one
    assert seal(record(scoring=True), "").digest != one.digest


_ARM = """
spec = json.load(open(os.environ["HARNESS_WORKLOAD"]))
scoring = spec["needs"] == ["quality"]
assert sorted(spec["workload"]) == (["quality"] if scoring else []), spec
if scoring:
    part = spec["workload"]["quality"]
    assert open(part["path"]).read() == "some text" and len(part["sha256"]) == 64
    for index in range(part["windows"]):
        say(event="quality", window=index, tokens=part["window_tokens"] - 1, nll=15 * (2.0 + index / 7 + SHIFT))
if not scoring:
    time.sleep(PAUSE)
    score(1.0)
done()
"""


def lab_experiment(lab: Lab, *, pause: float = 0.0) -> Path:
    """Two arms, the second 0.1 nats worse in each window."""
    lab.folder.mkdir(parents=True, exist_ok=True)
    (lab.folder / "own.txt").write_text("some text")
    arms = {
        name: _ARM.replace("SHIFT", shift).replace("PAUSE", str(pause)) for name, shift in (("a", "0.0"), ("b", "0.1"))
    }
    score = {"name": "score", "unit": "s", "better": "lower"}
    return lab.write(
        "apart",
        arms,
        passes=2,
        metrics=[score, "perplexity"],
        workload={"quality": dict(list(WORK["quality"].items())[:3])},
    )


def test_a_run_keeps_scoring_apart_from_end_to_end(tmp_path: Path) -> None:
    """Text found beside the file, digested, given to the scoring trials only; the plan says so; the report is whole."""
    lab = Lab(tmp_path)
    file = lab_experiment(lab)
    planned = lab.harness("plan", file).stdout
    assert "scoring 1 (text only, apart from speed and memory): a, b" in planned
    assert "4 trials, and 4 that score text" in lab.harness("check", file).stdout
    done = lab.run(file)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = lab.runs("apart")
    assert [(t["scoring"], t["pass"], sorted(t["values"])) for t in lab.trials(folder)] == (
        [(True, 0, ["perplexity"])] * 4 + [(False, number, ["score"]) for number in (1, 1, 2, 2)]
    )
    _, report = lab.report(folder)
    (verdict,) = (one for one in report["verdicts"] if one["metric"] == "perplexity")
    assert (verdict["verdict"], verdict["better"]) == ("ranked", "a")
    assert verdict["ratio"] == pytest.approx(math.exp(-0.1))
    assert report["arms"]["a"]["metrics"]["perplexity"]["n"] == 2
    assert report["arms"]["a"]["trials"] == {"ok": 2, "failed": 0}


def test_an_interrupted_run_goes_on_behind_its_scorings(tmp_path: Path) -> None:
    """What was scored is not scored again; a text that changed meanwhile forbids to go on."""
    lab = Lab(tmp_path)
    file = lab_experiment(lab, pause=5.0)
    process = lab.start("run", file, "--results", lab.results)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not [
        run for run in lab.results.glob("apart/*/trials.jsonl") if len(run.read_text().splitlines()) == 4
    ]:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 5
    (folder,) = lab.runs("apart")
    (tmp_path / "own.txt").write_text("other text")
    refused = lab.run(file, "--resume", folder)
    assert (refused.returncode, "the text own.txt: recorded" in refused.stderr) == (2, True)
    (tmp_path / "own.txt").write_text("some text")
    done = lab.run(file, "--resume", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(one["scoring"] for one in lab.trials(folder)) == 4


def test_a_text_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    """Exit code 2, and the place that was looked at."""
    lab = Lab(tmp_path)
    file = lab_experiment(lab)
    (tmp_path / "own.txt").unlink()
    done = lab.run(file)
    assert done.returncode == 2
    assert f"workload.quality: text 'own.txt': there is no file {tmp_path / 'own.txt'}" in done.stderr


def test_a_dry_run_counts_scorings_and_misses_the_text(tmp_path: Path) -> None:
    """Nothing is started, and what a run would refuse is said."""
    lab = Lab(tmp_path)
    file = lab_experiment(lab)
    told = lab.harness("run", file, "--dry-run")
    assert (told.returncode, "8 trials with priming and scoring of text" in told.stdout) == (0, True)
    (tmp_path / "own.txt").unlink()
    refused = lab.harness("run", file, "--dry-run")
    assert refused.returncode == 2
    assert "workload.quality: text 'own.txt': there is no file" in refused.stdout


def test_the_text_bears_on_what_is_scored_alone() -> None:
    """Two runs over different text are not compared on perplexity; their speed is."""
    assert (Bears.QUALITY.on(PERPLEXITY), Bears.QUALITY.on(SCORE)) == (True, False)
