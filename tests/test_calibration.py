"""The calibration study: seeded, through the real judge, with other tools' rules beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from scipy import stats

from harness.verdict.calibration import other_tools, redraw, report, shares, study
from harness.verdict.calibration.scenarios import SCENARIOS, draw, places
from harness.verdict.calibration.study import Row, Task, cell

CONTRACT = {
    "type": "object",
    "required": ["cells"],
    "properties": {
        "cells": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": [
                    "rule", "arms", "passes", "scenario", "effect", "experiments", "false_rankings", "power"
                ],
                "properties": {
                    "rule": {"type": "string"},
                    "arms": {"type": "integer"},
                    "passes": {"type": "integer"},
                    "effect": {"type": "number"},
                    "false_rankings": {"type": "number", "minimum": 0, "maximum": 1},
                    "power": {"type": "number", "minimum": 0, "maximum": 1},
                },
            },
        }
    },
}  # fmt: skip


def rows_of(task: Task) -> dict[str, Row]:
    """One cell's rows by rule."""
    return {row.rule: row for row in cell(task)}


def test_every_cell_that_was_promised_is_there() -> None:
    """2..8 arms by 3..10 passes by every scenario, without an effect and with one."""
    found = {(t.arms, t.passes, t.scenario, t.effect) for t in study.tasks(1, 100)}
    for m, k, name, effect in product(range(2, 9), range(3, 11), SCENARIOS, (0.0, study.EFFECT)):
        assert (m, k, name, effect) in found


def test_a_cell_depends_on_its_seed_alone() -> None:
    """The same task gives the same rows; another seed gives others."""
    task = Task(seed=5, index=7, arms=3, passes=5, scenario="lognormal", effect=0.02, experiments=40)
    assert cell(task) == cell(task)
    assert cell(task) != cell(Task(**{**task.__dict__, "seed": 6}))


def test_the_order_of_work_does_not_matter() -> None:
    """Mapped in any way that keeps order, the study is the same."""
    todo = study.tasks(3, 4)[:4]

    def eager(function: Any, items: Iterable[Task]) -> Iterator[list[Row]]:
        return iter([function(item) for item in items])

    assert study.run(todo, map, lambda _done, _all: None) == study.run(todo, eager, lambda _done, _all: None)


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_case_37_identical_arms_are_ranked_in_at_most_one_of_twenty(scenario: str) -> None:
    """200 experiments of three identical arms, three and five passes: within the promise and four standard errors."""
    for passes in (3, 5):
        task = Task(seed=11, index=passes, arms=3, passes=passes, scenario=scenario, effect=0.0, experiments=200)
        found = rows_of(task)
        limit = shares.bound(found["strict"])
        assert found["strict"].false_rankings <= limit
        assert found["paired"].false_rankings <= limit


def test_a_large_effect_is_found_and_is_no_false_ranking() -> None:
    """Five standard deviations at 4 arms by 6 passes: nearly always ranked, the right way."""
    found = rows_of(Task(seed=1, index=1, arms=4, passes=6, scenario="lognormal", effect=0.05, experiments=50))
    assert found["paired"].power > 0.95
    assert found["paired"].false_rankings < 0.2
    assert found["hyperfine_order"].false_rankings == 1.0


def test_the_study_can_fail() -> None:
    """A rule that ranks everything is seen as broken by the very bound that acquits ours."""
    rows = cell(Task(seed=1, index=1, arms=4, passes=4, scenario="lognormal", effect=0.0, experiments=50))
    assert shares.broken(rows, "hyperfine_order")
    assert not shares.broken(rows, "paired")
    assert "hyperfine_order" not in shares.keeping(rows)


def test_strict_never_ranks_what_paired_does_not() -> None:
    """`strict` adds a condition: its power is at most that of `paired`."""
    found = rows_of(Task(seed=2, index=2, arms=5, passes=5, scenario="drift", effect=0.03, experiments=50))
    assert found["strict"].power <= found["paired"].power


@pytest.mark.parametrize(
    ("passes", "level"), [(3, 0.05), (4, 0.05), (5, 0.05), (8, 0.05), (6, 0.002), (7, 0.002), (10, 0.002)]
)
def test_mann_whitneys_table_equals_scipys_exact_test(passes: int, level: float) -> None:
    """The largest significant u agrees with scipy's exact p values."""
    u = other_tools.most_extreme_u(passes, level)
    low = np.arange(passes, dtype=float)

    def p(found: int) -> float:
        # x all below y but for `found` pairs: shift the largest x up past that many y, one x after another
        x, y = low.copy(), low + 1000
        left = found
        for index in range(passes - 1, -1, -1):
            step = min(left, passes)
            x[index] = 999.5 + step + 0.001 * index if step else x[index]
            left -= step
        return float(stats.mannwhitneyu(x, y, method="exact").pvalue)

    assert u < 0 or p(u) <= level
    assert p(u + 1) > level


def test_other_rules_equal_scipy_on_one_table() -> None:
    """Student's and Welch's tests and the disjoint spreads, pair by pair, as scipy and plain Python have them."""
    values = np.exp(0.01 * np.random.default_rng(3).standard_normal((40, 3, 5)) + [[[0.0], [0.0], [0.015]]])
    student, welch, apart = (rule(values) for rule in (other_tools.student, other_tools.welch, other_tools.min_max))
    for n in range(40):
        for column, (a, b) in enumerate(((0, 1), (0, 2), (1, 2))):
            x, y = values[n, a], values[n, b]
            assert student[n, column] == (stats.ttest_ind(x, y).pvalue < 0.05)
            assert welch[n, column] == (stats.ttest_ind(x, y, equal_var=False).pvalue < 0.05)
            assert apart[n, column] == (max(x) < min(y) or max(y) < min(x))


def test_places_are_balanced() -> None:
    """Every arm takes every place once in as many passes as arms; otherwise counts differ by at most one."""
    rng = np.random.default_rng(1)
    for arms, passes in ((4, 8), (5, 3), (3, 7)):
        where = places(rng, arms, passes)
        assert all(sorted(column) == list(range(1, arms + 1)) for column in where.T)
        for row in where:
            counts = np.bincount(row, minlength=arms + 1)[1:]
            assert counts.max() - counts.min() <= 1


def test_an_effect_is_a_log_ratio_of_the_first_arm() -> None:
    """The same seed with and without an effect of 0.03: the first arm times exp(0.03), the others untouched."""
    plain, _ = draw(SCENARIOS["lognormal"], np.random.default_rng(9), (5, 3, 4), 0.0)
    moved, _ = draw(SCENARIOS["lognormal"], np.random.default_rng(9), (5, 3, 4), 0.03)
    assert moved[:, 0] / plain[:, 0] == pytest.approx(np.exp(0.03))
    assert (moved[:, 1:] == plain[:, 1:]).all()


def test_records_and_report_have_the_contracts_shape_and_repeat(tmp_path: Path) -> None:
    """calibration.json fits the contract; the same rows give the same bytes of report and pictures."""
    rng = np.random.default_rng(1)
    rows = [
        Row(rule, m, k, name, effect, 50, float(rng.uniform(0, 0.1)), float(rng.uniform()) if effect else 0.0)
        for m, k, name in product(study.ARMS, study.PASSES, SCENARIOS)
        for effect in (0.0, study.EFFECT)
        for rule in ("strict", "paired", *other_tools.RULES)
    ]
    shares.write_records(tmp_path / "calibration.json", rows, seed=1)
    jsonschema.validate(json.loads((tmp_path / "calibration.json").read_text()), CONTRACT)
    first = {p.name: p.read_bytes() for p in report.write_report(tmp_path / "one", rows, seed=1).parent.iterdir()}
    second = {p.name: p.read_bytes() for p in report.write_report(tmp_path / "two", rows, seed=1).parent.iterdir()}
    assert first == second
    assert {name for name in first if name.endswith(".png")} == {
        f"verdict_calibration_{part}.png" for part in ("rules", "cells", "power", "effect")
    }
    assert b"[[" not in first["verdict_calibration.md"]
    again = redraw(tmp_path / "calibration.json", tmp_path / "again").parent
    assert {p.name: p.read_bytes() for p in again.iterdir()} == first


def test_a_file_that_is_no_record_is_refused_by_name(tmp_path: Path) -> None:
    """Redrawing from something else says what it is not."""
    (tmp_path / "other.json").write_text('{"cells": [{}]}')
    with pytest.raises(ValueError, match="no record of a calibration"):
        redraw(tmp_path / "other.json", tmp_path)
