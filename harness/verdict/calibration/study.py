"""The simulation study: synthetic records go through the very `judge` that reports use, and counts come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from harness.experiment.types import Arm, Experiment, Rule
from harness.metrics import Better, Metric
from harness.records import TrialRecord, Value
from harness.verdict.calibration import other_tools
from harness.verdict.calibration.scenarios import SCENARIOS, draw
from harness.verdict.judging import judge
from harness.verdict.types import Ranked

ARMS, PASSES = range(2, 9), range(3, 11)
#: The effect that every cell is given: three standard deviations of the plain noise.
EFFECT = 0.03
#: Effects of the power curves, at these arms and passes, under plain noise.
CURVE_EFFECTS, CURVE_ARMS, CURVE_PASSES = (0.01, 0.02, 0.05, 0.15), (2, 5, 8), (5, 10)
#: Experiments judged together as metrics of one run: making a record costs as much as judging it.
BATCH = 25


@dataclass(frozen=True)
class Task:
    """One cell of the study. `seed`: the study's; `index`: of the cell, so that its draws depend on nothing else."""

    seed: int
    index: int
    arms: int
    passes: int
    scenario: str
    effect: float
    experiments: int


@dataclass(frozen=True)
class Row:
    """One rule in one cell. `false_rankings`: share of experiments in which any pair of equal arms was ranked, or any
    pair the wrong way round. `power`: share of pairs that truly differ and were ranked the right way; 0 without effect.
    """

    rule: str
    arms: int
    passes: int
    scenario: str
    effect: float
    experiments: int
    false_rankings: float
    power: float


def tasks(seed: int, experiments: int) -> tuple[Task, ...]:
    """Every cell: 2 to 8 arms by 3 to 10 passes by scenario, without effect and with a quarter as many experiments with
    one; then the power curves.
    """
    fewer = max(experiments // 4, 1)
    cells = [(m, k, name, effect) for name in SCENARIOS for m in ARMS for k in PASSES for effect in (0.0, EFFECT)]
    cells += [(m, k, "lognormal", effect) for m in CURVE_ARMS for k in CURVE_PASSES for effect in CURVE_EFFECTS]
    return tuple(
        Task(seed, index, m, k, name, effect, fewer if effect else experiments)
        for index, (m, k, name, effect) in enumerate(cells)
    )


Map = Callable[[Callable[[Task], list[Row]], Iterable[Task]], Iterator[list[Row]]]


def run(todo: Sequence[Task], mapped: Map, progress: Callable[[int, int], None]) -> list[Row]:
    """Run all cells. `mapped`: like `map`, in order; a pool's `imap` where several processes help. The result is the
    same for any of them. `progress(done, all)` is called after each cell.
    """
    rows: list[Row] = []
    for done, found in enumerate(mapped(cell, todo), start=1):
        rows += found
        progress(done, len(todo))
    return rows


def cell(task: Task) -> list[Row]:
    """All rules on one cell's data."""
    rng = np.random.default_rng([task.seed, task.index])
    judged: dict[str, list[Any]] = {name: [] for name in (*(rule.value for rule in Rule), *other_tools.RULES)}
    for start in range(0, task.experiments, BATCH):
        shape = (min(BATCH, task.experiments - start), task.arms, task.passes)
        values, places = draw(SCENARIOS[task.scenario], rng, shape, task.effect)
        records = as_records(values, places)
        for rule in Rule:
            judged[rule.value].append(_ranked(as_experiment(shape, rule), records))
        direction = _direction(values)
        for name, other in other_tools.RULES.items():
            judged[name].append(other(values) * (_direction_of_medians(values) if name == "asv" else direction))
    return [_row(task, name, np.concatenate(found)) for name, found in judged.items()]


def _row(task: Task, rule: str, ranked: Any) -> Row:
    """`ranked` [experiments, pairs]: 1 if the pair's second arm was called better (lower), -1 the first, 0 neither."""
    truth = np.array([int(a == 0 and task.effect != 0) for a, _ in combinations(range(task.arms), 2)])
    wrong = (ranked != 0) & (ranked != truth)
    return Row(
        rule=rule,
        arms=task.arms,
        passes=task.passes,
        scenario=task.scenario,
        effect=task.effect,
        experiments=task.experiments,
        false_rankings=float(wrong.any(1).mean()),
        power=float((ranked == truth)[:, truth != 0].mean()) if truth.any() else 0.0,
    )


def as_experiment(shape: tuple[int, int, int], rule: Rule) -> Experiment:
    """An experiment of that many metrics, arms and passes."""
    metrics, arms, passes = shape
    return Experiment(
        name="calibration",
        question="Does the rule keep its promise?",
        passes=passes,
        arms=tuple(Arm(name=f"arm{index}", engine="command") for index in range(arms)),
        metrics=tuple(
            Metric(name=f"draw{index}", unit="s", better=Better.LOWER, definition="synthetic", source="seeded draw")
            for index in range(metrics)
        ),
        rule=rule,
    )


def as_records(values: Any, places: Any) -> list[TrialRecord]:
    """Trial records of values [metrics, arms, passes] with places [arms, passes], in the order they would have run."""
    metrics, arms, passes = values.shape
    records: list[TrialRecord] = []
    for number in range(passes):
        for arm in sorted(range(arms), key=lambda arm, number=number: places[arm, number]):  # type: ignore[misc]  # mypy cannot type the default
            ordinal = len(records) + 1
            readings = values[:, arm, number].tolist()
            records.append(
                TrialRecord(
                    trial=ordinal,
                    planned=ordinal,
                    arm=f"arm{arm}",
                    pass_number=number + 1,
                    position=int(places[arm, number]),
                    started_at="",
                    began=0.0,
                    ended=1.0,
                    values={f"draw{index}": Value(value=readings[index]) for index in range(metrics)},
                )
            )
    return records


def _ranked(experiment: Experiment, records: Sequence[TrialRecord]) -> Any:
    """[metrics, pairs]: 1 where the second arm is ranked better, -1 the first, 0 where the pair is not ranked."""
    found = [
        (1 if verdict.outcome.better == verdict.b else -1) if isinstance(verdict.outcome, Ranked) else 0
        for verdict in judge(experiment, records, {}).verdicts
    ]
    return np.array(found).reshape(len(experiment.metrics), -1)


def _direction(values: Any) -> Any:
    means = values.mean(2)
    first, second = np.triu_indices(values.shape[1], 1)
    return np.sign(means[:, first] - means[:, second]).astype(int)


def _direction_of_medians(values: Any) -> Any:
    return _direction(np.median(values, axis=2, keepdims=True))


def as_json(rows: Iterable[Row]) -> dict[str, Any]:
    """The contract's shape of calibration.json."""
    return {"cells": [asdict(row) for row in rows]}
