"""What the gates look at: one arm on one metric, and two of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from harness.experiment.types import Experiment
from harness.metrics import Metric
from harness.records import TrialRecord, Value
from harness.verdict import flags
from harness.verdict.cells import Cells
from harness.verdict.compare import Comparison
from harness.verdict.repeatable import Exact
from harness.verdict.types import Refusal, Unknown


@dataclass(frozen=True, kw_only=True)
class Side:
    """One arm on one metric, worked out once for all its pairs. `values`: by pass. `low`, `high`: the spread, 0 without
    a value. `blank`: passes that ended well without a value. `unrun`: passes without a trial. `failed`: counted trials
    that failed unexpectedly. `odd`: values that no ratio can be formed with. `modes`: two clusters, if any.
    """

    arm: str
    values: Mapping[int, Value]
    low: float
    high: float
    blank: tuple[int, ...]
    unrun: tuple[int, ...]
    failed: tuple[TrialRecord, ...]
    units: frozenset[str]
    odd: tuple[float, ...]
    modes: flags.Modes | None


def side(arm: str, values: Mapping[int, Value], cells: Cells) -> Side:
    """What all pairs of this arm will be asked."""
    judged = cells.judged[arm]
    found = [cell.value for cell in values.values()]
    return Side(
        arm=arm,
        values=values,
        low=min(found, default=0.0),
        high=max(found, default=0.0),
        blank=tuple(n for n, record in judged.items() if record.failure is None and n not in values),
        unrun=tuple(number for number in cells.passes if number not in judged),
        failed=tuple(r for r in judged.values() if r.failure is not None and not r.expected),
        units=frozenset(cell.unit for cell in values.values() if cell.unit is not None),
        odd=tuple(sorted({value for value in found if not isfinite(value) or value <= 0})),
        modes=flags.modes(found),
    )


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Everything the gates look at: two arms on one metric. `common`: passes in which both have a value. `margin`: 0
    where none is stated. `family`: arms with a value.
    """

    experiment: Experiment
    cells: Cells
    metric: Metric
    x: Side
    y: Side
    comparison: Comparison | Exact | Unknown
    margin: float
    family: int
    common: tuple[int, ...]

    @property
    def a(self) -> str:
        """Name of the first arm."""
        return self.x.arm

    @property
    def b(self) -> str:
        """Name of the second arm."""
        return self.y.arm


Gate = Callable[[Pair], Iterable[Refusal]]
