"""The records of a study, and the shares that its report is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

from harness.verdict.calibration.study import EFFECT, Row, as_json

PROMISE, Z = 0.05, 4.0


def write_records(path: Path, rows: Sequence[Row], *, seed: int) -> None:
    """Write calibration.json: every rule in every cell, one a line, nothing rounded; the study's seed beside them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = ",\n".join(json.dumps(row, allow_nan=False) for row in as_json(rows)["cells"])
    path.write_text(f'{{"seed": {seed}, "cells": [\n{cells}\n]}}\n')


def read_records(path: Path) -> tuple[list[Row], int]:
    """Rows and seed of a calibration.json. Raise `ValueError` if it is none."""
    try:
        found = json.loads(path.read_text())
        return [Row(**cell) for cell in found["cells"]], int(found["seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no record of a calibration: {type(error).__name__}: {error}") from error


def bound(row: Row) -> float:
    """Largest share of false rankings that a true 5 % may show in this cell, judged over all cells at once (z = 4)."""
    return PROMISE + Z * sqrt(PROMISE * (1 - PROMISE) / row.experiments)


def broken(rows: Sequence[Row], rule: str) -> list[Row]:
    """Cells without effect in which a rule makes more than 5 % false rankings, beyond simulation error."""
    return [row for row in rows if row.rule == rule and row.effect == 0 and row.false_rankings > bound(row)]


def keeping(rows: Sequence[Row]) -> list[str]:
    """Rules that keep to 5 % in every cell, in order of appearance."""
    return [rule for rule in dict.fromkeys(row.rule for row in rows) if not broken(rows, rule)]


def mean_power(rows: Sequence[Row], rule: str, effect: float = EFFECT, scenario: str | None = None) -> float:
    """Mean over cells of the share of true differences ranked the right way."""
    found = [
        row.power for row in rows if row.rule == rule and row.effect == effect and scenario in {None, row.scenario}
    ]
    return sum(found) / len(found) if found else float("nan")


def pooled(rows: Sequence[Row], rule: str, scenario: str) -> float:
    """Share of false rankings over all experiments without effect of a scenario."""
    found = [row for row in rows if row.rule == rule and row.scenario == scenario and row.effect == 0]
    return sum(row.false_rankings * row.experiments for row in found) / sum(row.experiments for row in found)
