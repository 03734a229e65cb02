"""The block analysis against numbers worked out by hand and against an independent implementation."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from statsmodels.stats.libqsturng import qsturng
from verdict_runs import experiment, place, run

from harness.experiment.types import Rule
from harness.verdict import judge
from harness.verdict.blocks import fit, own_alpha
from harness.verdict.quantiles import studentized_range
from harness.verdict.types import Estimate, Interval, PositionEffect


def rotated(arms: int, passes: int) -> np.ndarray:
    """Places of a rotated order."""
    return np.array([[place(i, j, arms) for j in range(1, passes + 1)] for i in range(arms)], dtype=float)


def test_a_table_worked_out_by_hand_gives_its_residual_mean_square() -> None:
    """Rows 1 2 3, 2 4 6, 6 3 3: means 2, 4, 4; residual squares 14, df 4, worked out on paper."""
    # grand mean 10/3, pass means 3, 3, 4; fitted = row + pass - grand, residuals:
    # row 1: 1-5/3, 2-5/3, 3-8/3 = -2/3, 1/3, 1/3; row 2: 2-11/3, 4-11/3, 6-14/3 = -5/3, 1/3, 4/3
    # row 3: 6-11/3, 3-11/3, 3-14/3 = 7/3, -2/3, -5/3; squares (4+1+1 + 25+1+16 + 49+4+25)/9 = 126/9 = 14
    found = fit(np.array([[1.0, 2, 3], [2, 4, 6], [6, 3, 3]]), rotated(3, 3), 1e-12, 3)
    assert found.df == 4
    assert found.mean_square == pytest.approx(14 / 4, rel=1e-12)
    assert found.difference[0][1] == -2
    assert found.difference[1][2] == 0


def test_the_analysis_equals_an_independent_implementation() -> None:
    """Residual mean square, difference and pooled half width equal statsmodels' two-way model to 1e-9."""
    rng = np.random.default_rng(5)
    for arms, passes in ((2, 5), (3, 3), (5, 5), (8, 10)):
        logs = rng.normal(size=(arms, passes)) * 0.01 + rng.normal(size=(1, passes)) * 0.1
        frame = pd.DataFrame(
            [(logs[i, j], f"a{i}", f"p{j}") for i in range(arms) for j in range(passes)], columns=["y", "arm", "block"]
        )
        witness = smf.ols("y ~ C(arm) + C(block)", frame).fit()
        found = fit(logs, rotated(arms, passes), 1e-30, arms)
        assert found.mean_square == pytest.approx(witness.mse_resid, rel=1e-9)
        assert found.df == witness.df_resid
        assert found.difference[1][0] == pytest.approx(witness.params["C(arm)[T.a1]"], abs=1e-9)
        error = math.sqrt(2 * witness.mse_resid / passes)
        assert witness.bse["C(arm)[T.a1]"] == pytest.approx(error, rel=1e-9)
        pooled = studentized_range(arms, found.df) / math.sqrt(2) * error
        assert found.half_width[0][1] >= pooled * (1 - 1e-9)
        if not found.own[0][1]:
            assert found.half_width[0][1] == pytest.approx(pooled, rel=1e-9)


def test_the_position_slope_equals_an_independent_implementation() -> None:
    """The effect of the place within a pass, and its error, equal statsmodels' covariate to 1e-9."""
    rng = np.random.default_rng(6)
    arms, passes = 3, 5
    places = rotated(arms, passes)
    logs = 0.02 * places + rng.normal(size=(arms, passes)) * 0.01
    frame = pd.DataFrame(
        [(logs[i, j], f"a{i}", f"p{j}", places[i, j]) for i in range(arms) for j in range(passes)],
        columns=["y", "arm", "block", "place"],
    )
    witness = smf.ols("y ~ C(arm) + C(block) + place", frame).fit()
    found = fit(logs, places, 1e-30, arms)
    assert found.slope == pytest.approx(witness.params["place"], abs=1e-9)
    assert found.slope_error == pytest.approx(witness.bse["place"], rel=1e-9)


def test_quantiles_equal_the_published_tables() -> None:
    """q(.05; 3, 10) = 3.877 and q(.05; 8, 63) by an independent approximation; two arms are sqrt(2) t."""
    assert studentized_range(3, 10) == pytest.approx(3.877, abs=5e-4)
    assert studentized_range(8, 63) == pytest.approx(float(qsturng(0.95, 8, 63)), rel=2e-3)
    assert studentized_range(2, 4) == pytest.approx(2.776445 * math.sqrt(2), rel=1e-6)


def test_arm_variances_are_unbiased_under_unequal_noise() -> None:
    """With variances 9, 1 and 1/4 over many passes, each arm's own variance comes out as itself."""
    rng = np.random.default_rng(7)
    true = np.array([9.0, 1.0, 0.25, 1.0])
    logs = rng.normal(size=(4, 20_000)) * np.sqrt(true)[:, None] + rng.normal(size=(1, 20_000))
    found = fit(logs, np.tile(np.arange(4.0)[:, None], (1, 20_000)), 1e-12, 4)
    assert found.variance == pytest.approx(true, rel=0.1)


def test_the_own_interval_takes_over_where_an_arm_is_noisy() -> None:
    """A pair with one noisy arm gets a wider interval than the pooled one, quiet pairs never a narrower one."""
    rng = np.random.default_rng(8)
    logs = rng.normal(size=(8, 6)) * np.array([3.0] + [0.3] * 7)[:, None]
    found = fit(logs, rotated(8, 6), 1e-12, 8)
    pooled = studentized_range(8, found.df) * math.sqrt(found.mean_square / 6)
    assert found.own[0][1]
    assert found.half_width[0][1] > pooled
    assert found.half_width[2][3] == pytest.approx(pooled)


def test_the_level_of_the_own_interval_is_fixed_in_advance() -> None:
    """The level is min(1/40, 0.3/(m k^2/3)): the constants that the simulations settled."""
    assert own_alpha(3, 3) == 0.025
    assert own_alpha(8, 5) == pytest.approx(0.3 / (8 * 5 ** (2 / 3)))


def test_a_verdict_carries_the_hand_worked_interval() -> None:
    """Two arms, five passes, log differences .01 .02 .03 .04 .05: mean .03, t(4) = 2.776, error .015811/sqrt(5)."""
    logs = [0.01, 0.02, 0.03, 0.04, 0.05]
    table = {"a": [math.exp(x) for x in logs], "b": [1.0] * 5}
    verdict = judge(experiment(["a", "b"], 5, rule=Rule.PAIRED), run(table), {}).verdicts[0]
    half = 2.7764451 * 0.0158113883 / math.sqrt(5)
    assert isinstance(verdict.interval, Interval)
    assert math.log(verdict.interval.low) == pytest.approx(0.03 - half, abs=1e-7)
    assert math.log(verdict.interval.high) == pytest.approx(0.03 + half, abs=1e-7)
    assert isinstance(verdict.estimate, Estimate)
    assert verdict.estimate.df == 4
    assert verdict.smallest_effect == pytest.approx(math.exp(half) - 1, abs=1e-7)


def test_the_position_effect_is_estimated_and_reported() -> None:
    """Three equal arms that read 2 % more with every place: the judgement says about 2 % a place."""
    table = {f"a{i}": [1.02 ** place(i, j, 3) for j in range(1, 7)] for i in range(3)}
    found = judge(experiment(list(table), 6), run(table), {}).positions["score"]
    assert isinstance(found, PositionEffect)
    assert found.per_place == pytest.approx(0.02, abs=1e-6)
    assert found.low <= 0.02 <= found.high
