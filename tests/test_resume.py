"""What is still to run, and when a run may go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.experiment.types import Experiment, Limits
from harness.plan import PlannedTrial
from harness.records import Failure, Reason, TrialRecord
from harness.run.extras import Extra
from harness.run.head import Head
from harness.run.resume import ResumeError, experiment_differences, require_same
from harness.run.schedule import Left, next_attempt, open_tasks, pass_just_ended, whole_plan
from harness.testing.fakes import fake_experiment, fake_plan

EXPERIMENT = fake_experiment("a", "b", passes=2, priming=1)
PLAN = fake_plan(EXPERIMENT)


def done(*what: str) -> list[TrialRecord]:
    """Records from words: `3` answers planned trial 3, `3i` was interrupted, `3f` failed, `3#2` is a second attempt."""
    records = []
    for number, word in enumerate(what, start=1):
        ordinal, _, attempt = word.rstrip("if").partition("#")
        planned = PLAN.trials[int(ordinal) - 1]
        reason = {"i": Reason.INTERRUPTED, "f": Reason.SIGNAL}.get(word[-1])
        records.append(
            TrialRecord(
                trial=number,
                planned=planned.ordinal,
                arm=planned.arm,
                pass_number=planned.pass_number,
                position=planned.position,
                attempt=int(attempt or 1),
                priming=planned.priming,
                started_at="",
                began=0.0,
                ended=1.0,
                failure=Failure(reason=reason, evidence="") if reason else None,
            )
        )
    return records


def left(records: list[TrialRecord], *extras: Extra, crash: Left | None = None) -> str:
    """The open attempts as text: `3 4#2` are planned trial 3 and a second attempt at 4."""
    return " ".join(
        f"{task.planned.ordinal}{f'#{task.attempt}' if task.attempt > 1 else ''}"
        for task in open_tasks(PLAN, extras, records, crash)
    )


def test_the_fake_plan_is_as_the_words_below_assume() -> None:
    """Two priming trials, then a b, then b a."""
    assert [(t.ordinal, t.arm, t.pass_number, t.position) for t in PLAN.trials] == [
        (1, "a", 0, 1), (2, "b", 0, 2), (3, "a", 1, 1), (4, "b", 1, 2), (5, "b", 2, 1), (6, "a", 2, 2),
    ]  # fmt: skip


def test_case_04_what_is_recorded_is_not_run_again() -> None:
    """Trials with a record, failed ones included, are not open; all others are, in the plan's order."""
    assert left([]) == "1 2 3 4 5 6"
    assert left(done("1", "2", "3", "4f")) == "5 6"
    assert left(done("1", "2", "3", "4", "5", "6")) == ""


def test_case_03_an_interrupted_trial_is_open_and_counts_on() -> None:
    """An interrupted attempt is tried again under the next number, however often."""
    assert left(done("1", "2", "3", "4i")) == "4#2 5 6"
    assert left(done("1", "2", "3", "4i", "4#2i")) == "4#3 5 6"
    assert left(done("1", "2", "3", "4i", "4#2")) == "5 6"


def test_case_04_an_attempt_that_left_files_and_no_record_is_not_overwritten() -> None:
    """A killed attempt's files stay: the next attempt has the next number and says why."""
    crash = Left(attempts={1: 1, 2: 1, 3: 1})
    assert left(done("1", "2"), crash=crash) == "3#2 4 5 6"
    task = open_tasks(PLAN, (), done("1", "2"), crash)[0]
    assert task.note == "attempt 1 left files and no record: harness was killed, or could not store it"


def test_a_repeated_pass_is_run_at_once_and_whole() -> None:
    """All arms of a repeated pass run again, above every attempt so far, before the next pass, and once."""
    records = done("1", "2", "3i", "3#2", "4f")
    assert next_attempt(records, 1) == 3
    repeat = Extra(why="disturbed", after=3, repeat=1, attempt=3)
    assert left(records, repeat) == "3#3 4#3 5 6"
    assert left(done("1", "2", "3i", "3#2", "4f", "3#3", "4#3i"), repeat) == "4#4 5 6"
    assert left(done("1", "2", "3i", "3#2", "4f", "3#3", "4#3"), repeat) == "5 6"


def test_added_passes_follow_the_plan() -> None:
    """Passes that were added run after the planned ones."""
    more = (PlannedTrial(ordinal=7, arm="a", pass_number=3, position=1),)
    extra = Extra(why="too wide", after=4, trials=more)
    assert left(done("1", "2", "3", "4", "5", "6"), extra) == "7"
    assert whole_plan(PLAN, (extra,)).trials[-1] == more[0]


def test_case_12_arms_whose_private_caches_are_gone_are_primed_again() -> None:
    """With its caches lost, an arm's earlier priming counts no more: cold and warm trials never mix in one arm."""
    records = done("1", "2", "3")
    assert left(records, crash=Left(reprime={"a": 3})) == "1#2 4 5 6"
    assert left([*records, replace(done("1#2")[0], trial=4)], crash=Left(reprime={"a": 3})) == "4 5 6"


def test_a_pass_is_put_before_the_rule_once() -> None:
    """The rule is asked when a pass is whole, not before, and not again after a decision was taken down."""
    for words, expected in ((("1", "2"), None), (("1", "2", "3"), None), (("1", "2", "3", "4"), 1)):
        records = done(*words)
        assert pass_just_ended(records, open_tasks(PLAN, (), records), ()) == expected
    records = done("1", "2", "3", "4", "5", "6")
    more = Extra(why="", after=4, trials=(PlannedTrial(ordinal=7, arm="a", pass_number=3, position=1),))
    assert pass_just_ended(records, open_tasks(PLAN, (), records), ()) == 2
    assert pass_just_ended(records, open_tasks(PLAN, (more,), records), (more,)) is None


# --- the same experiment, host and versions, or no resume -----------------------------------------------------------

HEAD = Head(run="r", experiment=replace(EXPERIMENT, seed=None), plan=PLAN, versions={}, started_at="")


def changed_arm(**fields: Any) -> Experiment:
    """The experiment with one arm changed."""
    first, second = EXPERIMENT.arms
    return replace(EXPERIMENT, arms=(first, replace(second, **fields)))


@pytest.mark.parametrize(
    ("now", "named"),
    [
        (changed_arm(env={"X": "1"}), "experiment.arms.b.env.X: absent when the run started, '1' now"),
        (changed_arm(args={"dtype": "float16"}), "experiment.arms.b.args.dtype"),
        (changed_arm(command=("true", "other")), "experiment.arms.b.command"),
        (changed_arm(model="elsewhere"), "experiment.arms.b.model"),
        (changed_arm(priming=2), "experiment.arms.b.priming: 1 when the run started, 2 now"),
        (replace(EXPERIMENT, passes=9), "experiment.passes: 2 when the run started, 9 now"),
        (replace(EXPERIMENT, workload={"prefill": {}}), "experiment.workload.prefill"),
        (replace(EXPERIMENT, limits=Limits(trial=5.0)), "experiment.limits.trial"),
        (replace(EXPERIMENT, margins={"score": 0.5}), "experiment.margins.score"),
    ],
)
def test_case_05_a_changed_experiment_is_not_resumed(now: Experiment, named: str) -> None:
    """One changed value anywhere in the resolved experiment refuses the resume and is named."""
    with pytest.raises(ResumeError, match="cannot be resumed") as caught:
        require_same(HEAD, now, recorded={}, now={}, differences=lambda _then, _now: [])
    assert len(caught.value.differs) == 1
    assert named in str(caught.value)


def test_case_05_host_and_versions_count_and_all_differences_are_named() -> None:
    """What differs in host, versions and records is all named at once, with what to do."""
    seen: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []

    def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        seen.append((recorded, now))
        return ["processor: recorded X, now Y", "sources of plugin: recorded 1, now 2"]

    with pytest.raises(ResumeError, match="Remedy: undo these differences") as caught:
        require_same(
            HEAD, EXPERIMENT, recorded={"host": 1}, now={"host": 2}, differences=differences, damage=["trial 1: edited"]
        )
    assert caught.value.differs == (
        "trial 1: edited", "processor: recorded X, now Y", "sources of plugin: recorded 1, now 2",
    )  # fmt: skip
    assert seen == [({"host": 1}, {"host": 2})]


def test_words_and_a_drawn_seed_do_not_forbid_a_resume() -> None:
    """The question's wording, the file's text, and a seed that the file never stated may differ."""
    other = replace(EXPERIMENT, question="Was it?", text="# comment\n")
    require_same(HEAD, other, recorded={}, now={}, differences=lambda _then, _now: [])
    assert experiment_differences(replace(EXPERIMENT, seed=7), replace(EXPERIMENT, seed=None)) == ()
    assert len(experiment_differences(replace(EXPERIMENT, seed=7), replace(EXPERIMENT, seed=8))) == 1
