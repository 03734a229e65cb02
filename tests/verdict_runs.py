"""Hand-made runs for the tests of verdicts: records from a table of numbers, nothing measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.experiment.types import Arm, Experiment
from harness.metrics import REGISTRY, Better, Kind, Metric
from harness.records import Failure, Reason, TrialRecord, Value

SCORE = Metric(name="score", unit="s", better=Better.LOWER, definition="hand-made", source="a test")
EXACT = Metric(name="size", unit="B", better=Better.LOWER, definition="hand-made", source="a test", kind=Kind.EXACT)
PERPLEXITY = REGISTRY["perplexity"]

Cell = float | Value | Reason | Mapping[str, float | Value] | None


def experiment(arms: Sequence[str], passes: int, *, metrics: Sequence[Metric] = (SCORE,), **more: Any) -> Experiment:
    """An experiment of `command` arms."""
    return Experiment(
        name="hand_made",
        question="What is said of it?",
        passes=passes,
        arms=tuple(Arm(name=name, engine="command") for name in arms),
        metrics=tuple(metrics),
        **more,
    )


def place(index: int, number: int, arms: int) -> int:
    """Places rotate, so that every arm takes each once in as many passes as there are arms."""
    return (index + number) % arms + 1


def record(arm: str, number: int, position: int, cell: Cell, **more: Any) -> TrialRecord:
    """One trial: a value of `score`, a failure, several metrics by name, or (None) no value at all."""
    values: Mapping[str, Value] = {}
    failure = None
    if isinstance(cell, Reason):
        failure = Failure(reason=cell, evidence=f"made to fail: {cell.value}")
    elif isinstance(cell, Mapping):
        values = {name: value if isinstance(value, Value) else Value(value=value) for name, value in cell.items()}
    elif cell is not None:
        values = {"score": cell if isinstance(cell, Value) else Value(value=cell)}
    trial = more.pop("trial", number * 100 + position)
    return TrialRecord(
        trial=trial,
        planned=trial,
        arm=arm,
        pass_number=number,
        position=position,
        started_at="2026-12-01T00:00:00Z",
        began=0.0,
        ended=1.0,
        failure=failure,
        values=values,
        **more,
    )


def run(table: Mapping[str, Sequence[Cell]], **more: Any) -> list[TrialRecord]:
    """All records of a run, `table[arm][pass]`, places rotating."""
    arms = list(table)
    return [
        record(arm, number, place(index, number, len(arms)), cell, **more)
        for index, arm in enumerate(arms)
        for number, cell in enumerate(table[arm], start=1)
    ]
