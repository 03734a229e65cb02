"""The plan: which trial runs when. Priming, trials that score text, then balanced passes from one recorded seed. Pure.

Passes come in blocks of m, m the number of arms. A block is a Latin square: over its m passes every arm takes every
position once. Its rows are the rotations of Williams' zigzag 0, m-1, 1, m-2, ..., so that every arm also follows every
other exactly once for an even m, and exactly twice over two blocks for an odd one (plain rotation would let an arm
follow the same neighbour all but one time). Rows and letters are shuffled anew in each block, letters of an odd m in
every second. Two arms: ABBA or BAAB. A block depends on the seed and its number only, so
adding passes later gives the order that the longer plan would have had from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from typing import Final

from harness.experiment.types import Experiment
from harness.units import format_seconds

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial to run. `ordinal`: from 1, in order. `pass_number`: from 1, 0 for priming. `position`: within its pass,
    from 1 (priming counts through). A pass that is run again is the same planned trials, attempted anew. `scoring`: a
    trial of its own for quality, in no pass: its pass number is 0, its position the how manieth of its arm, from 1.
    """

    ordinal: int
    arm: str
    pass_number: int
    position: int
    priming: bool = False
    scoring: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All trials in order. `seed`: what the order was drawn from. `notes`: what the reader should know of the order,
    such as positions that cannot be balanced. `arms`: names in the file's order.
    """

    seed: int
    trials: tuple[PlannedTrial, ...]
    notes: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()

    @property
    def passes(self) -> int:
        """Number of passes."""
        return max((trial.pass_number for trial in self.trials), default=0)


def make_plan(experiment: Experiment, seed: int) -> Plan:
    """Priming sweeps, sweeps that score, then `experiment.passes` passes; the same seed gives the same plan on every
    machine.
    """
    priming = tuple(_priming(experiment))
    plan = Plan(seed=seed, trials=priming + tuple(_scoring(experiment, len(priming))), arms=experiment.names)
    return extend(plan, experiment, experiment.passes)


def extend(plan: Plan, experiment: Experiment, passes: int) -> Plan:
    """The plan with so many more whole passes; ordinals go on, and positions are balanced over all passes."""
    if plan.arms != experiment.names:
        raise ValueError(f"the plan is for arms {plan.arms}, the experiment has {experiment.names}; plan anew")
    trials = list(plan.trials)
    for number in range(plan.passes + 1, plan.passes + passes + 1):
        for position, arm in enumerate(_order(plan.arms, plan.seed, number), start=1):
            trials.append(_planned(trials, arm, number, position))
    return replace(plan, trials=tuple(trials), notes=_notes(len(plan.arms), plan.passes + passes))


def positions(plan: Plan) -> dict[str, dict[int, int]]:
    """For each arm, how many passes have it at each position."""
    found = {arm: dict.fromkeys(range(1, len(plan.arms) + 1), 0) for arm in plan.arms}
    for trial in plan.trials:
        if trial.pass_number > 0:
            found[trial.arm][trial.position] += 1
    return found


def schedule_text(plan: Plan) -> str:
    """The order as one letter a trial: `abba`, `abc bca cab`, `(ab) [abab] abba`; priming in round, scoring in square
    brackets. Names of one letter
    stand for themselves, others are a, b, c in the file's order. Two arms are written two passes a word.
    """
    single = all(len(arm) == 1 for arm in plan.arms)
    letter = {arm: arm if single else _LETTERS[index % 26] + "'" * (index // 26) for index, arm in enumerate(plan.arms)}
    words = []
    for (number, scoring), group in groupby(plan.trials, key=lambda trial: (trial.pass_number, trial.scoring)):
        word = "".join(letter[trial.arm] for trial in group)
        if number == 0:
            words.append(f"[{word}]" if scoring else f"({word})")
        elif len(plan.arms) == 2 and number % 2 == 0 and words:
            words[-1] += word
        else:
            words.append(word)
    return " ".join(words)


@dataclass(frozen=True)
class Expected:
    """How long a plan will take. `seconds`: from wall times that were measured. `basis`: where these come from."""

    seconds: float
    basis: str

    @property
    def text(self) -> str:
        """For people."""
        return f"about {format_seconds(self.seconds)} ({self.basis})"


@dataclass(frozen=True)
class UnknownTime:
    """How long a plan will take is not known. `at_most`: seconds, from the limits alone."""

    why: str
    at_most: float

    @property
    def text(self) -> str:
        """For people."""
        return f"unknown: {self.why}; the limits allow {format_seconds(self.at_most)} at most"


def expected_seconds(
    plan: Plan, experiment: Experiment, known: Mapping[str, float], scoring: Mapping[str, float] | None = None
) -> Expected | UnknownTime:
    """Wall time of all trials of the plan. `known`, `scoring`: seconds a trial by arm, as measured before, of trials of
    the passes and of those that score. A control takes what its arm takes. An arm that nobody has measured makes the
    whole unknown: a guess would be read as a promise.
    """
    measured = {False: known, True: scoring or {}}
    twin = {arm.name: arm.control_of or arm.name for arm in experiment.arms}
    each = [
        measured[trial.scoring].get(trial.arm, measured[trial.scoring].get(twin[trial.arm])) for trial in plan.trials
    ]
    unmeasured: dict[str, dict[str, None]] = {}
    for trial, seconds in zip(plan.trials, each, strict=True):
        if seconds is None:
            unmeasured.setdefault("scoring trial" if trial.scoring else "trial", {})[trial.arm] = None
    if unmeasured:
        bound = len(plan.trials) * (experiment.limits.trial + experiment.limits.exit)
        lacking = " and ".join(f"no {kind} of {', '.join(arms)}" for kind, arms in unmeasured.items())
        return UnknownTime(f"{lacking} was measured yet", bound)
    total = sum(seconds or 0.0 for seconds in each)
    return Expected(total, f"{len(plan.trials)} trials, by the wall time of earlier trials of each arm")


def _priming(experiment: Experiment) -> Iterator[PlannedTrial]:
    """Sweep by sweep, in the file's order, each arm as often as it asks for."""
    sweeps = max((arm.priming for arm in experiment.arms), default=0)
    names = [arm.name for sweep in range(sweeps) for arm in experiment.arms if arm.priming > sweep]
    for ordinal, name in enumerate(names, start=1):
        yield PlannedTrial(ordinal=ordinal, arm=name, pass_number=0, position=ordinal, priming=True)


def _scoring(experiment: Experiment, before: int) -> Iterator[PlannedTrial]:
    """Sweep by sweep, in the file's order; before the passes, so that a text that cannot be scored is known at once.
    An arm that is meant to fail has nothing to score.
    """
    sound = [arm.name for arm in experiment.arms if arm.expect.failure is None]
    sweeps = [(sweep, name) for sweep in range(1, experiment.scorings + 1) for name in sound]
    for ordinal, (sweep, name) in enumerate(sweeps, start=before + 1):
        yield PlannedTrial(ordinal=ordinal, arm=name, pass_number=0, position=sweep, scoring=True)


def _planned(before: Sequence[PlannedTrial], arm: str, pass_number: int, position: int) -> PlannedTrial:
    return PlannedTrial(ordinal=len(before) + 1, arm=arm, pass_number=pass_number, position=position)


def _order(arms: Sequence[str], seed: int, pass_number: int) -> list[str]:
    """Arms of one pass, in order."""
    block, row = divmod(pass_number - 1, len(arms))
    return _block(arms, seed, block)[row]


def _block(arms: Sequence[str], seed: int, block: int) -> list[list[str]]:
    """One Latin square, its rows and letters shuffled. Text seeds `Random` the same on every machine and version."""
    size = len(arms)
    mirrored = size % 2 == 1 and block % 2 == 1  # an odd square balances neighbours only together with its mirror image
    letters = _random(seed, block - mirrored).sample(arms, size)
    shifts = _random(seed, block, "rows").sample(range(size), size)
    zigzag = [step // 2 if step % 2 == 0 else size - 1 - step // 2 for step in range(size)]
    rows = [[letters[(place + shift) % size] for place in zigzag] for shift in shifts]
    return [row[::-1] for row in rows] if mirrored else rows


def _random(*what: object) -> Random:
    return Random("/".join(map(str, what)))  # noqa: S311 - a repeatable order is wanted, not a secret


def _notes(arms: int, passes: int) -> tuple[str, ...]:
    over = passes % arms
    if over == 0:
        return ()
    more = arms - over
    note = (
        f"{passes} passes are no multiple of {arms} arms: positions cannot be balanced fully and differ by one;"
        f" {more} more pass{'es' if more > 1 else ''} would balance them"
    )
    return (note,)
