"""Pairs of runs whose truth is known, and how agreement judges them.

The second run of a pair is on another host: everything in it is faster or slower by a common factor. Where the truth is
a shift, its first arm takes so much longer there, so every pair of arms with the first in it has another ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log1p
from typing import Any

import numpy as np

from harness.experiment.types import Experiment, Rule
from harness.records import TrialRecord, broken_links, seal
from harness.verdict.agreed import Agreed, Agreement, Bears, Fact, RunEvidence
from harness.verdict.agreement import agree
from harness.verdict.calibration.scenarios import SCENARIOS, Scenario, draw
from harness.verdict.calibration.study import as_experiment, as_records
from harness.verdict.judging import judge

#: Arms and passes of both runs.
SHAPES = ((2, 5), (2, 10), (3, 6), (5, 5))
#: True shifts of the ratio from run to run, and the margins that each pair of runs is judged under.
SHIFTS, MARGINS = (0.0, 0.01, 0.03, 0.10), (0.01, 0.03, 0.10)
#: Pairs of runs judged together, as metrics of one pair: making a record costs as much as judging it.
BATCH = 25

Map = Callable[[Callable[["Task"], list["Row"]], Iterable["Task"]], Iterable[list["Row"]]]


@dataclass(frozen=True)
class Task:
    """One cell. `index`: of the cell, so that its draws depend on nothing else."""

    seed: int
    index: int
    arms: int
    passes: int
    scenario: str
    shift: float
    pairs: int


@dataclass(frozen=True)
class Row:
    """One cell under one margin, shares of pairs of runs. `contradicted`: any pair of arms whose true shift lies inside
    the margin was contradicted. `confirmed`: of the pairs of arms whose true shift is the margin or more, the share
    that was confirmed. `right_same`: of pairs of arms without a shift the share confirmed; `right_shifted`: of those
    with one beyond the margin the share contradicted; None where there is none.
    """

    arms: int
    passes: int
    scenario: str
    shift: float
    margin: float
    pairs: int
    contradicted: float
    confirmed: float
    right_same: float | None
    right_shifted: float | None


@dataclass(frozen=True)
class Case:
    """A truth that is no matter of noise. `word`: the right one; `right`: share of pairs of runs that got it."""

    name: str
    text: str
    word: str
    pairs: int
    right: float


def tasks(seed: int, pairs: int) -> tuple[Task, ...]:
    """Every cell: shapes by scenario by shift."""
    cells = [(a, p, s, d) for a, p in SHAPES for s in SCENARIOS for d in SHIFTS]
    return tuple(Task(seed, index, *cell, pairs) for index, cell in enumerate(cells))


def run(
    cells: Sequence[Task], workers: Map = map, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> list[Row]:
    """Every cell under every margin, in the order of the cells."""
    rows: list[Row] = []
    for done, found in enumerate(workers(cell, cells), start=1):
        rows += found
        progress(done, len(cells))
    return rows


def cell(task: Task) -> list[Row]:
    """Draw and judge one cell's pairs of runs."""
    rng = np.random.default_rng((task.seed, task.index))
    scenario = SCENARIOS[task.scenario]
    found: dict[float, list[Any]] = {margin: [] for margin in MARGINS}
    for start in range(0, task.pairs, BATCH):
        shape = (min(BATCH, task.pairs - start), task.arms, task.passes)
        first, second = _evidence(rng, scenario, shape, 0.0, "1"), _evidence(rng, scenario, shape, task.shift, "2")
        for margin in MARGINS:
            found[margin].append(_words(agree(first, second, default_margin=margin), shape[0]))
    return [_row(task, margin, np.concatenate(words)) for margin, words in found.items()]


def _evidence(
    rng: np.random.Generator, scenario: Scenario, shape: tuple[int, int, int], shift: float, host: str
) -> RunEvidence:
    """One run, judged; its host has a speed of its own."""
    values, places = draw(scenario, rng, shape, log1p(shift))
    values = values * np.exp(0.3 * rng.standard_normal((shape[0], 1, 1)))
    return evidence(as_experiment(shape, Rule.STRICT), as_records(values, places), host)


def evidence(experiment: Experiment, records: Sequence[TrialRecord], host: str, **key: Any) -> RunEvidence:
    """A run as `agree` takes it."""
    return RunEvidence(
        experiment=experiment, records=records, judgement=judge(experiment, records, {}), host=host,
        key={"threads": Fact(2, Bears.MEASURED), **key},
    )  # fmt: skip


def _words(found: Agreement, metrics: int) -> Any:
    """[metrics, pairs of arms]: 1 confirmed, -1 contradicted, 0 neither."""
    value = {Agreed.CONFIRMED: 1, Agreed.CONTRADICTED: -1}
    return np.array([value.get(pair.agreement, 0) for pair in found.verdicts]).reshape(metrics, -1)


def _row(task: Task, margin: float, words: Any) -> Row:
    """Pairs of arms run as in `itertools.combinations`: the first `arms - 1` hold the shifted arm."""
    pairs = np.arange(words.shape[1])
    shifted = (pairs < task.arms - 1) & (task.shift != 0)
    inside = ~shifted | (task.shift <= margin)
    beyond = shifted & (task.shift >= margin)
    return Row(
        arms=task.arms,
        passes=task.passes,
        scenario=task.scenario,
        shift=task.shift,
        margin=margin,
        pairs=task.pairs,
        contradicted=float((words == -1)[:, inside].any(1).mean()) if inside.any() else 0.0,
        confirmed=float((words == 1)[:, beyond].mean()) if beyond.any() else 0.0,
        right_same=float((words == 1)[:, ~shifted].mean()) if not shifted.all() else None,
        right_shifted=float((words == -1)[:, shifted].mean()) if shifted.any() and task.shift > margin else None,
    )


Change = Callable[[RunEvidence, RunEvidence, np.random.Generator], RunEvidence]


def cases(seed: int, pairs: int) -> list[Case]:
    """Truths that are no matter of noise, each over random pairs of runs with shifts of 0, 1, 3 and 10 %."""
    told: tuple[tuple[str, str, str, Change], ...] = (
        ("other instruction set", "AMX on the second host only", "not_comparable", _other_isa),
        ("other thread count", "four threads instead of two", "not_comparable", _other_threads),
        ("fewer passes", "the second run has two passes", "consistent_but_imprecise", _fewer),
        ("edited record", "one value of one trial changed by 1 % on disk", "not_comparable", _edited),
        ("same trials", "the second run is a copy of the first", "not_comparable", _copied),
    )
    return [
        Case(name, text, word, pairs, _right(np.random.default_rng((seed, 7, place)), pairs, change, word))
        for place, (name, text, word, change) in enumerate(told)
    ]


def _right(rng: np.random.Generator, pairs: int, change: Change, word: str) -> float:
    """Share of pairs of runs that get that word, shifts in turn."""
    right, scenario, shape = 0, SCENARIOS["lognormal"], (1, 2, 5)
    for number in range(pairs):
        shift = SHIFTS[number % len(SHIFTS)]
        first = _sealed(_evidence(rng, scenario, shape, 0.0, "1"))
        second = _sealed(_evidence(rng, scenario, shape, shift, "2"))
        found = agree(first, change(first, second, rng))
        right += all(pair.agreement.value == word for pair in found.verdicts)
    return right / pairs


def _sealed(one: RunEvidence) -> RunEvidence:
    return replace(one, records=tuple(_chained(one.records)))


def _chained(records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
    previous = ""
    for record in records:
        sealed = seal(record, previous)
        previous = sealed.digest
        yield sealed


def _other_isa(_: RunEvidence, second: RunEvidence, __: np.random.Generator) -> RunEvidence:
    return replace(second, key={**second.key, "instruction sets": Fact(["amx_bf16"], Bears.MEASURED)})


def _other_threads(_: RunEvidence, second: RunEvidence, __: np.random.Generator) -> RunEvidence:
    return replace(second, key={**second.key, "threads": Fact(4, Bears.MEASURED)})


def _fewer(_: RunEvidence, second: RunEvidence, __: np.random.Generator) -> RunEvidence:
    experiment = replace(second.experiment, passes=2)
    records = [record for record in second.records if record.pass_number <= 2]
    return replace(second, experiment=experiment, records=records, judgement=judge(experiment, records, {}))


def _edited(_: RunEvidence, second: RunEvidence, rng: np.random.Generator) -> RunEvidence:
    records = list(second.records)
    place = int(rng.integers(len(records)))
    ((name, value),) = records[place].values.items()
    records[place] = replace(records[place], values={name: replace(value, value=value.value * 1.01)})
    return replace(
        second, records=records, judgement=judge(second.experiment, records, {}), problems=broken_links(tuple(records))
    )


def _copied(first: RunEvidence, _: RunEvidence, __: np.random.Generator) -> RunEvidence:
    return replace(first, host="2")
