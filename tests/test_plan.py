"""The order of trials: balanced, repeatable, extendable, and asserted as text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.experiment.types import Arm, Experiment
from harness.plan import Expected, Plan, UnknownTime, expected_seconds, extend, make_plan, positions, schedule_text


def experiment(names: str, passes: int, priming: int = 0) -> Experiment:
    """Arms of one letter each."""
    arms = tuple(Arm(name=name, engine="command", command=("x",), priming=priming) for name in names)
    return Experiment(name="e", question="q", passes=passes, arms=arms, metrics=())


def words(plan: Plan) -> list[str]:
    """One word a pass."""
    return [
        "".join(trial.arm for trial in plan.trials if trial.pass_number == number)
        for number in range(1, plan.passes + 1)
    ]


@pytest.mark.parametrize(
    ("names", "passes", "seed", "text"),
    [
        ("ab", 4, 1, "baab abba"),
        ("abc", 6, 1, "cab bca abc acb bac cba"),
        ("abcd", 4, 1, "dcba abcd bdac cadb"),
        ("a", 3, 1, "a a a"),
    ],
)
def test_case_13_the_schedule_as_text(names: str, passes: int, seed: int, text: str) -> None:
    """A seed gives this very order, on every machine and Python version: a record of a run can be checked."""
    assert schedule_text(make_plan(experiment(names, passes), seed)) == text


@given(st.integers(0, 2**63 - 1))
def test_case_13_two_arms_run_abba_or_baab(seed: int) -> None:
    """Two passes of two arms are always one of the two mirrored orders."""
    assert {*schedule_text(make_plan(experiment("ab", 6), seed)).split()} <= {"abba", "baab"}


@given(st.integers(1, 8), st.integers(1, 20), st.integers(0, 2**63 - 1))
def test_case_13_every_arm_takes_every_position_equally_often(arms: int, passes: int, seed: int) -> None:
    """Positions differ by at most one; over a multiple of the arms they are equal, and only else a note says so."""
    plan = make_plan(experiment("abcdefgh"[:arms], passes), seed)
    counts = [count for places in positions(plan).values() for count in places.values()]
    assert max(counts) - min(counts) == (1 if passes % arms else 0)
    assert bool(plan.notes) == bool(passes % arms)
    assert all(sorted(word) == sorted(plan.arms) for word in words(plan))
    assert [trial.ordinal for trial in plan.trials] == list(range(1, arms * passes + 1))


@given(st.sampled_from([2, 4, 6, 8]), st.integers(0, 2**63 - 1))
def test_case_13_an_even_number_of_arms_is_balanced_for_neighbours_too(arms: int, seed: int) -> None:
    """Within a block every arm follows every other exactly once, so `always after A` cannot favour anyone."""
    followed = [pair for word in words(make_plan(experiment("abcdefgh"[:arms], arms), seed)) for pair in pairwise(word)]
    assert len(set(followed)) == len(followed) == arms * (arms - 1)


@given(st.sampled_from([3, 5, 7]), st.integers(0, 2**63 - 1))
def test_case_13_an_odd_number_of_arms_is_balanced_for_neighbours_over_two_blocks(arms: int, seed: int) -> None:
    """Over 2m passes every arm follows every other exactly twice."""
    plan = make_plan(experiment("abcdefg"[:arms], 2 * arms), seed)
    followed = [pair for word in words(plan) for pair in pairwise(word)]
    assert {followed.count(pair) for pair in followed} == {2}
    assert len(set(followed)) == arms * (arms - 1)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 9), st.integers(0, 2**32))
def test_adding_passes_gives_what_the_longer_plan_would_have_been(arms: int, first: int, more: int, seed: int) -> None:
    """Extension keeps every earlier trial, and the balance of the whole."""
    short, long = experiment("abcdef"[:arms], first, priming=1), experiment("abcdef"[:arms], first + more, priming=1)
    assert extend(make_plan(short, seed), short, more) == make_plan(long, seed)


def test_priming_comes_first_sweep_by_sweep() -> None:
    """Priming trials are marked, stand before the first pass, and belong to pass 0."""
    arms = (
        Arm(name="a", engine="command", priming=2),
        Arm(name="b", engine="command", priming=1),
        Arm(name="c", engine="command"),
    )
    plan = make_plan(Experiment(name="e", question="q", passes=1, arms=arms, metrics=()), 3)
    assert schedule_text(plan).startswith("(aba) ")
    assert [(t.arm, t.pass_number, t.priming) for t in plan.trials[:4]][:3] == [
        ("a", 0, True),
        ("b", 0, True),
        ("a", 0, True),
    ]
    assert not any(trial.priming for trial in plan.trials[3:])


def test_more_passes_need_the_same_arms() -> None:
    """A plan is extended for its own experiment only."""
    with pytest.raises(ValueError, match="plan anew"):
        extend(make_plan(experiment("abc", 3), 1), experiment("ab", 3), 1)


def test_seeds_matter() -> None:
    """Different seeds give different orders, blocks differ from each other."""
    assert len({schedule_text(make_plan(experiment("abcde", 5), seed)) for seed in range(20)}) == 20
    blocks = schedule_text(make_plan(experiment("ab", 40), 1)).split()
    assert {*blocks} == {"abba", "baab"}


def test_expected_time_is_measured_or_unknown() -> None:
    """Nothing is guessed: an arm without a measured trial makes the time unknown, with the bound of the limits."""
    asked = experiment("ab", 2)
    plan = make_plan(asked, 1)
    assert expected_seconds(plan, asked, {"a": 2.0, "b": 3.0}) == Expected(
        10.0, "4 trials, by the wall time of earlier trials of each arm"
    )
    unknown = expected_seconds(plan, asked, {"a": 2.0})
    assert isinstance(unknown, UnknownTime)
    assert unknown.text == "unknown: no trial of b was measured yet; the limits allow 2 h 04 min at most"
