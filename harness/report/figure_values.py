"""Figure: every trial's value, one column an arm, passes from left to right. Shows spread, drift and two modes."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from harness.metrics import Better, Metric
from harness.report import canvas
from harness.report.data import RunData
from harness.report.text import plural, visible
from harness.units import scale_for

#: Share of a column that the passes take; the rest keeps neighbours apart.
_COLUMN = 0.72


def draw_values(data: RunData, metric: Metric, path: Path) -> bool:
    """Draw and save the figure; False (and no file) if no trial has a value."""
    sweep = data.experiment.sweeps_of(metric, data.passes)[1]
    data = data.of(metric)
    columns = [_column(data, metric, name) for name in data.experiment.names]
    every = [value for column in columns for value in column.values()]
    if not every:
        return False
    with canvas.style():
        divisor, unit = scale_for(metric.unit, max(every, key=abs))
        made = canvas.figure(max(6.4, min(canvas.WIDTH, 1.6 + 1.5 * len(columns))), 4.0)
        axes = made.add_subplot()
        low, high = min(every) / divisor, max(every) / divisor
        room = (high - low or abs(high) or 1.0) * 0.09
        axes.set_ylim(low - 2.2 * room, high + room)
        for place, (name, column) in enumerate(zip(data.experiment.names, columns, strict=True)):
            colour = canvas.COLOURS[place % len(canvas.COLOURS)]
            xs = [place + _COLUMN * _offset(number, data.passes) for number in column]
            ys = [value / divisor for value in column.values()]
            if ys:
                edges = (place - _COLUMN / 2 - 0.05, place + _COLUMN / 2 + 0.05)
                axes.fill_between(edges, min(ys), max(ys), color=colour, alpha=0.13, linewidth=0)
                axes.hlines(median(ys), *edges, colors=colour, linewidth=1.2, linestyles="dashed")
                axes.plot(xs, ys, color=colour, linewidth=1.0, marker="o", markersize=5.5, alpha=0.95)
            failed = [
                place + _COLUMN * _offset(record.pass_number, data.passes)
                for record in data.latest
                if record.arm == name and record.failure is not None
            ]
            axes.plot(
                failed, [low - 1.4 * room] * len(failed), "x", color=canvas.INK, markersize=7, markeredgewidth=1.6
            )
        names = [f"{canvas.label(name, 20)}\n{len(column)} of {data.passes}" for name, column in _named(data, columns)]
        crowded = len(columns) > 6 or max(map(len, names)) * len(columns) > 110
        turned: dict[str, Any] = {"rotation": 25, "ha": "right"} if crowded else {}
        axes.set_xticks(range(len(columns)), names, fontsize=9, **turned)
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.grid(visible=True, axis="y")
        better = "lower" if metric.better is Better.LOWER else "higher"
        axes.set_ylabel(f"{visible(unit)} ({better} is better)", fontsize=9)
        made.suptitle(_title(metric, columns), x=0.01, ha="left", fontsize=11, fontweight="bold")
        passes = f"{sweep} 1" if data.passes == 1 else f"{plural(sweep)} 1 to {data.passes} from left to right"
        axes.set_title(
            f"{passes}; band: spread; dashed: median; x: failed; axis not from 0",
            fontsize=8.5, fontweight="normal", color="#555555",
        )  # fmt: skip
        canvas.save(made, path)
    return True


def _named(data: RunData, columns: list[dict[int, float]]) -> list[tuple[str, dict[int, float]]]:
    return list(zip(data.experiment.names, columns, strict=True))


def _column(data: RunData, metric: Metric, name: str) -> dict[int, float]:
    """Value by pass of one arm, usable trials only."""
    usable = (record for record in data.latest if record.arm == name and record.usable)
    found = {record.pass_number: record.values[metric.name].value for record in usable if metric.name in record.values}
    return dict(sorted(found.items()))


def _offset(number: int, passes: int) -> float:
    return (number - 1) / (passes - 1) - 0.5 if passes > 1 else 0.0


def _title(metric: Metric, columns: list[dict[int, float]]) -> str:
    spreads = [(min(column.values()), max(column.values())) for column in columns if column]
    pairs = list(combinations(spreads, 2))
    overlapping = sum(first[0] <= second[1] and second[0] <= first[1] for first, second in pairs)
    name = canvas.label(metric.name, 40)
    if not pairs or min(len(column) for column in columns if column) < 2:  # one value is no spread
        return f"{name}: every trial"
    if overlapping == 0:
        return f"{name}: the spreads of all arms are disjoint"
    if overlapping == len(pairs):
        return f"{name}: all spreads overlap"
    return f"{name}: the spreads of {overlapping} of {len(pairs)} pairs overlap"
