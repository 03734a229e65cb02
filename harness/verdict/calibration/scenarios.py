"""Synthetic runs whose truth is known: who differs, and what the host does to everybody.

Noise is 1 % lognormal unless a scenario says otherwise, so an effect of 0.03 is three standard deviations. Every
generator takes a seeded numpy Generator; the same seed gives the same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Standard deviation of a trial's log value.
NOISE = 0.01

Draw = Callable[[np.random.Generator, tuple[int, int, int], Any], Any]


@dataclass(frozen=True)
class Scenario:
    """`draw(generator, (experiments, arms, passes), places)` gives log deviations of that shape, before any effect."""

    name: str
    text: str
    draw: Draw


def _noise(rng: np.random.Generator, shape: tuple[int, int, int], _places: Any) -> Any:
    return NOISE * rng.standard_normal(shape)


def _outliers(rng: np.random.Generator, shape: tuple[int, int, int], places: Any) -> Any:
    return 3 * _noise(rng, shape, places) + np.log(1.5) * (rng.random(shape) < 0.02)


def _drift(rng: np.random.Generator, shape: tuple[int, int, int], places: Any) -> Any:
    experiments, _, passes = shape
    walk = np.cumsum(0.02 * rng.standard_normal((experiments, 1, passes)) + 0.01, axis=2)
    return _noise(rng, shape, places) + walk


def _position(rng: np.random.Generator, shape: tuple[int, int, int], places: Any) -> Any:
    return _noise(rng, shape, places) + np.log1p(0.02 * places)[None]


def _unequal(rng: np.random.Generator, shape: tuple[int, int, int], places: Any) -> Any:
    scale = rng.permuted(np.tile(np.geomspace(0.3, 3.0, shape[1]), (shape[0], 1)), axis=1)
    return _noise(rng, shape, places) * scale[:, :, None]


def _one_noisy(rng: np.random.Generator, shape: tuple[int, int, int], places: Any) -> Any:
    scale = rng.permuted(np.tile([3.0, *[0.3] * (shape[1] - 1)], (shape[0], 1)), axis=1)
    return _noise(rng, shape, places) * scale[:, :, None]


def _within_trial(rng: np.random.Generator, shape: tuple[int, int, int], _places: Any) -> Any:
    """A trial's value is the median of 9 iterations that hang together (AR(1), 0.9) round the trial's own level."""
    steps = [rng.standard_normal(shape)]
    for _ in range(8):
        steps.append(0.9 * steps[-1] + np.sqrt(1 - 0.81) * rng.standard_normal(shape))
    return NOISE * (rng.standard_normal(shape) + np.median(steps, axis=0)) / np.sqrt(2)


def _bimodal(rng: np.random.Generator, shape: tuple[int, int, int], places: Any) -> Any:
    return _noise(rng, shape, places) + 0.05 * (rng.random(shape) < 0.5)


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("lognormal", "1 % lognormal noise and nothing else", _noise),
        Scenario("outliers", "a noisy host: 3 % noise, and one trial in 50 reads 50 % more", _outliers),
        Scenario("drift", "the host drifts over passes: a walk of 2 % a pass, and 1 % a pass on top", _drift),
        Scenario("position", "each place later in a pass adds 2 %", _position),
        Scenario("unequal", "standard deviations from 0.3 % to 3 %, in geometric steps over the arms", _unequal),
        Scenario("one_noisy", "one arm at 3 %, all others at 0.3 %", _one_noisy),
        Scenario(
            "within_trial", "medians of nine correlated iterations round a level of the trial's own", _within_trial
        ),
        Scenario("bimodal", "each trial of each arm falls into one of two modes 5 % apart", _bimodal),
    )
}


def places(rng: np.random.Generator, arms: int, passes: int) -> Any:
    """Place of each arm in each pass, [arms, passes], from 1: rotations in random order under random names, so that
    every arm takes every place once in `arms` passes, and counts differ by at most one otherwise.
    """
    names = rng.permutation(arms)
    shifts = np.concatenate([rng.permutation(arms) for _ in range(-(-passes // arms))])[:passes]
    return (names[:, None] + shifts[None, :]) % arms + 1


def draw(scenario: Scenario, rng: np.random.Generator, shape: tuple[int, int, int], effect: float) -> tuple[Any, Any]:
    """Values [experiments, arms, passes] and places [arms, passes]; the first arm takes `exp(effect)` times as long."""
    where = places(rng, shape[1], shape[2])
    logs = scenario.draw(rng, shape, where)
    logs[:, 0] += effect
    return 10.0 * np.exp(logs), where
