"""Walking a plan: what is measured, stored, repeated, stopped and resumed. No process runs here."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.experiment.types import Experiment
from harness.plan import Plan
from harness.records import Failure, Reason, TrialRecord
from harness.run.decision import Decision, GoOn, More, MorePasses, RepeatPass, Stop, never_more
from harness.run.files import StoreError
from harness.run.instruments import Instruments, Trial
from harness.run.runner import End, RunEnd, run_experiment
from harness.run.stop import StopFlag
from harness.run.store import RunFolder
from harness.run.writer import RunWriter
from harness.testing.fakes import (
    CapturedProgress,
    FakeCaches,
    FakeTrials,
    Outcome,
    by_place,
    fake_experiment,
    fake_plan,
)


def new_folder(results: Path, experiment: Experiment, clock_of: FakeTrials) -> RunFolder:
    """A run that has not begun."""
    plan, moment = fake_plan(experiment), clock_of.clock.utc()
    return RunFolder.create(results, experiment, plan, host={}, versions={}, moment=moment)


def walk(
    folder: RunFolder,
    trials: FakeTrials,
    *,
    more: More = never_more,
    stop: StopFlag | None = None,
    progress: CapturedProgress | None = None,
    caches: FakeCaches | None = None,
    instruments: Instruments[Trial, TrialRecord] | None = None,
) -> RunEnd:
    """Run, or go on with, what the folder holds."""
    head = folder.head()
    with RunWriter(folder) as writer:
        return run_experiment(
            head.experiment,
            head.plan,
            writer,
            instruments=instruments or trials.instruments(),
            caches=caches or FakeCaches(),
            progress=progress or CapturedProgress(),
            stop=stop or StopFlag(),
            more=more,
            clock=trials.clock,
        )


def story(folder: RunFolder) -> str:
    """The records as text: `a1 b1` are arms and passes, `#2` an attempt, `!reason` a failure."""
    words = []
    for one in folder.records().records:
        attempt = f"#{one.attempt}" if one.attempt > 1 else ""
        words.append(f"{one.arm}{one.pass_number}{attempt}{f'!{one.failure.reason.value}' if one.failure else ''}")
    return " ".join(words)


def scores(folder: RunFolder) -> dict[tuple[str, int], float]:
    """What would be judged: the latest usable value of each arm and pass."""
    return {
        (one.arm, one.pass_number): one.values["score"].value
        for one in folder.records().records
        if one.usable and not one.priming
    }


def test_a_plan_is_walked_in_its_order_and_every_record_is_chained(tmp_path: Path) -> None:
    """Priming first, then the passes; numbers, positions and marks are the plan's; nothing is broken or left."""
    trials, caches = FakeTrials(), FakeCaches()
    folder = new_folder(tmp_path, fake_experiment("a", "b", passes=2, priming=1), trials)
    end = walk(folder, trials, caches=caches)
    assert story(folder) == "a0 b0 a1 b1 b2 a2"
    recorded = folder.records()
    assert [(r.trial, r.planned, r.position, r.priming) for r in recorded.records] == [
        (1, 1, 1, True), (2, 2, 2, True), (3, 3, 1, False), (4, 4, 2, False), (5, 5, 1, False), (6, 6, 2, False),
    ]  # fmt: skip
    assert (recorded.notes, recorded.damaged) == ((), False)
    assert (end.end, end.ok, end.expected, end.unexpected, end.left) == (End.FINISHED, 4, 0, 0, 0)
    assert (caches.removed, trials.released, trials.swept) == (True, 6, 1)


def test_case_04_every_record_is_on_disk_before_the_next_trial_starts(tmp_path: Path) -> None:
    """When trial n starts, n - 1 records can be read by anybody."""
    trials, seen = FakeTrials(), list[int]()
    folder = new_folder(tmp_path, fake_experiment(passes=3), trials)
    trials.during = lambda _trial, _stop: seen.append(len(folder.records().records))
    walk(folder, trials)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_case_08_a_failed_trial_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    """An arm that dies in one pass costs that trial alone, and an expected failure is told from another."""
    trials = FakeTrials()

    def behave(trial: Trial) -> Outcome:
        dies = trial.arm.name == "b" and trial.task.planned.pass_number == 2
        return Failure(reason=Reason.SIGNAL, signal="SIGSEGV", evidence="died") if dies else by_place(trial)

    trials.behave = behave
    folder = new_folder(tmp_path, fake_experiment(passes=3), trials)
    end = walk(folder, trials)
    assert story(folder) == "a1 b1 b2!signal a2 a3 b3"
    assert (end.end, end.ok, end.unexpected) == (End.FINISHED, 5, 1)


@pytest.mark.parametrize("step", ["prepare", "counters", "run", "evaluate"])
def test_a_fault_of_the_harness_costs_one_trial(tmp_path: Path, step: str) -> None:
    """An exception of ours in any step becomes `harness_error` with its place, leftovers are swept, the run goes on."""
    trials, calls = FakeTrials(), [0]
    whole = trials.instruments()

    def once(*arguments: object) -> object:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("surprise")
        return getattr(whole, step)(*arguments)

    folder = new_folder(tmp_path, fake_experiment(passes=2), trials)
    end = walk(folder, trials, instruments=replace(whole, **{step: once}))  # type: ignore[arg-type]
    assert story(folder) == "a1 b1!harness_error b2 a2"
    failure = folder.records().records[1].failure
    assert failure is not None
    assert failure.evidence.startswith("RuntimeError: surprise (test_runner.py:")
    assert failure.log == "logs/0002-b.log"
    assert (end.end, end.unexpected, trials.swept) == (End.FINISHED, 1, 2)
    assert trials.released == (3 if step == "prepare" else 4)


def test_a_harness_that_is_broken_stops_after_three_trials(tmp_path: Path) -> None:
    """Three faults of the harness in a row end the run, resumable, instead of spoiling every trial."""
    trials = FakeTrials()

    def broken(_trial: Trial) -> Trial:
        raise RuntimeError("no cgroup")

    folder, caches = new_folder(tmp_path, fake_experiment(passes=9), trials), FakeCaches()
    end = walk(folder, trials, caches=caches, instruments=replace(trials.instruments(), prepare=broken))
    assert (end.end, end.unexpected, end.left, caches.removed) == (End.FAULT, 3, 15, False)
    assert "no cgroup" in end.why


def test_a_cleaning_up_that_fails_spoils_no_trial(tmp_path: Path) -> None:
    """A cgroup that cannot be removed is told and leaves a good trial good."""
    trials, progress = FakeTrials(), CapturedProgress()

    def stuck(_request: Trial) -> None:
        raise OSError(errno.EBUSY, "busy")

    folder = new_folder(tmp_path, fake_experiment(passes=1), trials)
    walk(folder, trials, progress=progress, instruments=replace(trials.instruments(), release=stuck))
    assert story(folder) == "a1 b1"
    assert sum("cleaning up after a trial failed: OSError" in line for line in progress.lines) == 2


def test_case_07_a_record_that_cannot_be_stored_stops_the_run_and_sweeps(tmp_path: Path) -> None:
    """When appending fails the run stops with the store's message, processes are swept, caches kept for a resume."""
    trials, caches, progress = FakeTrials(), FakeCaches(), CapturedProgress()
    folder = new_folder(tmp_path, fake_experiment(passes=2), trials)

    def fill(trial: Trial, _stop: StopFlag) -> None:
        if trial.number == 3:
            monkey.setattr("harness.run.files.os.write", full)

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trials.during = fill
    with pytest.MonkeyPatch.context() as monkey, pytest.raises(StoreError, match="ENOSPC"):
        walk(folder, trials, caches=caches, progress=progress)
    assert story(folder) == "a1 b1"
    assert (trials.swept, caches.removed, trials.released) == (1, False, 3)
    assert "--resume" in progress.lines[-1]
    trials.during = lambda _trial, _stop: None
    walk(folder, trials)
    assert story(folder) == "a1 b1 b2#2 a2"


def test_case_07_a_disk_that_fills_up_inside_a_trial_stops_the_run_too(tmp_path: Path) -> None:
    """An arm's log that cannot be written is no failure of the arm: the run stops and says why."""
    trials = FakeTrials()

    def full(_trial: Trial) -> Outcome:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    trials.behave = full
    folder = new_folder(tmp_path, fake_experiment(), trials)
    with pytest.raises(StoreError, match=r"EDQUOT.*quota"):
        walk(folder, trials)
    assert (story(folder), trials.swept) == ("", 1)


def test_case_14_a_record_with_nan_in_a_drivers_facts_becomes_a_harness_error(tmp_path: Path) -> None:
    """What strict JSON cannot hold is never written: the trial is recorded as spoiled, and why."""
    trials = FakeTrials()
    whole = trials.instruments()
    spoil = replace(whole, evaluate=lambda _t, record, _d: replace(record, work={"tokens": float("inf")}))
    folder = new_folder(tmp_path, fake_experiment(passes=1), trials)
    walk(folder, trials, instruments=spoil)
    assert story(folder) == "a1!harness_error b1!harness_error"
    assert "cannot be stored" in str(folder.records().records[0].failure)


def test_case_03_a_stop_ends_the_run_at_once_and_a_resume_goes_on(tmp_path: Path) -> None:
    """The open trial is recorded as interrupted, no other starts, finished passes stay, the rest runs on resume."""
    trials, caches = FakeTrials(), FakeCaches()
    folder = new_folder(tmp_path, fake_experiment("a", "b", "c", passes=3), trials)
    trials.during = lambda trial, stop: stop.request("SIGINT") if trial.number == 5 else None
    end = walk(folder, trials, caches=caches)
    assert (end.end, end.left, caches.removed) == (End.INTERRUPTED, 5, False)
    assert story(folder) == "a1 b1 c1 b2 c2!interrupted"
    assert "SIGINT" in end.why
    trials.during = lambda _trial, _stop: None
    assert walk(folder, trials, caches=caches).end == End.FINISHED
    assert story(folder) == "a1 b1 c1 b2 c2!interrupted c2#2 a2 c3 a3 b3"
    assert caches.removed
    assert folder.records().records[5].notes == ("attempt 1 was interrupted, or primed caches that are gone",)
    whole = FakeTrials()
    other = new_folder(tmp_path, fake_experiment("a", "b", "c", passes=3), whole)
    walk(other, whole)
    assert scores(folder) == scores(other)


def test_case_03_a_stop_between_trials_starts_none(tmp_path: Path) -> None:
    """A request that comes before a trial leaves no record of it."""
    trials, stop = FakeTrials(), StopFlag()
    folder = new_folder(tmp_path, fake_experiment(), trials)
    stop.request("SIGTERM")
    assert walk(folder, trials, stop=stop).end == End.INTERRUPTED
    assert (story(folder), trials.ran) == ("", [])


def test_resuming_a_finished_run_runs_nothing(tmp_path: Path) -> None:
    """A second resume of a run that is complete starts no trial and changes no byte."""
    trials = FakeTrials()
    folder = new_folder(tmp_path, fake_experiment(), trials)
    walk(folder, trials)
    before = (folder.path / "trials.jsonl").read_bytes()
    assert walk(folder, trials).end == End.FINISHED
    assert (len(trials.ran), (folder.path / "trials.jsonl").read_bytes()) == (6, before)


def test_case_12_lost_caches_are_primed_again_before_anything_counts(tmp_path: Path) -> None:
    """If private caches are gone on resume, every primed arm is primed again first."""
    trials = FakeTrials()
    folder = new_folder(tmp_path, fake_experiment(passes=2, priming=1), trials)
    trials.during = lambda trial, stop: stop.request("SIGINT") if trial.number == 5 else None
    walk(folder, trials)
    trials.during = lambda _trial, _stop: None
    walk(folder, trials, caches=FakeCaches(lost=True))
    assert story(folder) == "a0 b0 a1 b1 b2!interrupted a0#2 b0#2 b2#2 a2"


def repeat_once(records: Sequence[TrialRecord], _plan: Plan) -> Decision:
    """Repeat pass 1 once if b failed in it: a rule that bounds itself by what is recorded."""
    failed = [one for one in records if one.pass_number == 1 and not one.usable]
    repeated = any(one.attempt > 1 for one in records if one.pass_number == 1)
    return RepeatPass(1, "pass 1 was disturbed") if failed and not repeated else GoOn()


def test_a_disturbed_pass_is_run_again_whole_and_the_first_stays(tmp_path: Path) -> None:
    """The rule's repeat runs all arms of the pass again, at once, and is taken down with its reason."""
    trials = FakeTrials()

    def behave(trial: Trial) -> Outcome:
        disturbed = trial.number == 2
        return Failure(reason=Reason.DISTURBED, evidence="steal") if disturbed else by_place(trial)

    trials.behave = behave
    folder = new_folder(tmp_path, fake_experiment(passes=2), trials)
    end = walk(folder, trials, more=repeat_once)
    assert story(folder) == "a1 b1!disturbed a1#2 b1#2 b2 a2"
    assert (end.ok, end.unexpected) == (4, 0)
    extra = folder.extras()[0]
    assert (extra.why, extra.repeat, extra.attempt, extra.after) == ("pass 1 was disturbed", 1, 2, 2)


def two_more(records: Sequence[TrialRecord], plan: Plan) -> Decision:
    """Ask for passes 3 and 4 once two are done, then stop after pass 3."""
    passes = {one.pass_number for one in records}
    if 3 in passes:
        return Stop("narrow enough")
    if 2 in passes:
        added = fake_plan(fake_experiment(passes=2), first_pass=3, first_ordinal=len(plan.trials) + 1)
        return MorePasses(added.trials, "the interval is too wide")
    return GoOn()


def test_passes_are_added_without_editing_the_plan_and_a_rule_may_stop(tmp_path: Path) -> None:
    """Added passes run on after the planned ones, plan.json stays as it was, and a stop is a finished run."""
    trials, caches = FakeTrials(), FakeCaches()
    folder = new_folder(tmp_path, fake_experiment(passes=2), trials)
    before = (folder.path / "plan.json").read_bytes()
    end = walk(folder, trials, more=two_more, caches=caches)
    assert story(folder) == "a1 b1 b2 a2 a3 b3"
    assert (end.end, end.why, end.left, caches.removed) == (End.STOPPED, "narrow enough", 2, True)
    assert (folder.path / "plan.json").read_bytes() == before


def test_a_decision_taken_before_a_crash_is_not_taken_twice(tmp_path: Path) -> None:
    """Killed right after a decision was taken down, the resumed run carries it out once."""
    trials = FakeTrials()
    folder = new_folder(tmp_path, fake_experiment(passes=2), trials)
    trials.during = lambda trial, stop: stop.request("SIGKILL") if trial.number == 5 else None
    walk(folder, trials, more=two_more)
    content = (folder.path / "trials.jsonl").read_bytes()
    (folder.path / "trials.jsonl").write_bytes(b"".join(content.splitlines(keepends=True)[:4]))
    trials.during = lambda _trial, _stop: None
    walk(folder, trials, more=two_more)
    assert [len(extra.trials) for extra in folder.extras()] == [4, 0]  # the passes that were added, and the stop
    assert folder.extras()[1].why == "narrow enough"
    assert story(folder) == "a1 b1 b2 a2 a3#2 b3"


def test_a_clock_set_back_changes_no_duration(tmp_path: Path) -> None:
    """Setting the time of day back in the middle of a run leaves every duration as it was."""
    trials = FakeTrials()
    trials.during = lambda _trial, _stop: trials.clock.step_utc(-86_400)
    folder = new_folder(tmp_path, fake_experiment(), trials)
    walk(folder, trials)
    assert {one.ended - one.began for one in folder.records().records} == {10.0}


def test_progress_tells_pass_arm_phase_memory_and_time_left(tmp_path: Path) -> None:
    """Whoever waits is told which trial runs, how it went and how long it will still take."""
    trials, progress = FakeTrials(seconds=30), CapturedProgress()
    folder = new_folder(tmp_path, fake_experiment(passes=1, priming=1), trials)
    walk(folder, trials, progress=progress)
    assert progress.lines == [
        f"run {folder.run}: 4 trials to run",
        "[1/4] priming, arm a",
        "        a: ok in 30.00 s",
        "[2/4] priming, arm b, about 1 min 30 s left",
        "        b: ok in 30.00 s",
        "[3/4] pass 1, arm a, about 1 min 00 s left",
        "        a: ok in 30.00 s",
        "[4/4] pass 1, arm b, about 30.00 s left",
        "        b: ok in 30.00 s",
        "finished: every planned trial is on record",
    ]
    assert {(moment.phase, moment.memory_bytes) for moment in progress.moments} == {("load", 1 << 20)}


def test_a_display_that_breaks_costs_no_trial(tmp_path: Path) -> None:
    """A progress that raises on a moment leaves every trial as good as it was."""

    class Broken(CapturedProgress):
        def now(self, moment: object) -> None:
            raise OSError(errno.EIO, f"terminal gone at {moment}")

    trials = FakeTrials()
    folder = new_folder(tmp_path, fake_experiment(passes=1), trials)
    walk(folder, trials, progress=Broken())
    assert story(folder) == "a1 b1"
