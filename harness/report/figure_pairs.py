"""Figures of the verdicts: the interval of every pair's ratio, and the matrix of arms against arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.metrics import Better, Metric
from harness.report import canvas
from harness.report.sentences import CODE_WORDS, headline, known_interval, known_ratio, oriented
from harness.report.text import significant
from harness.verdict.types import Equivalent, PairVerdict, Ranked, Refused

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RANKED: Final = "#0072B2"
_EQUAL: Final = "#009E73"
_REFUSED: Final = "#8a8a8a"
#: Fill, text colour and symbol of a cell, by how its row fares against its column. Lightness differs too, for grey.
_CELLS: Final = {
    "better": ("#0072B2", "white", "▲ better"),
    "worse": ("#F3B27A", "#222222", "▼ worse"),
    "equal": ("#BFE6D8", "#222222", "≈ equivalent"),
    "refused": ("#EFEFEF", "#333333", "? not ranked"),
    "none": ("white", "#777777", "no verdict"),
}


def draw_intervals(metric: Metric, verdicts: Sequence[PairVerdict], margin: float | None, path: Path) -> bool:
    """Draw the ratio of every pair with its interval; False (and no file) if no pair has a ratio."""
    shown = [verdict for verdict in verdicts if (known_ratio(verdict) or 0.0) > 0]
    if not shown:
        return False
    with canvas.style():
        from matplotlib.ticker import FuncFormatter, NullLocator

        made = canvas.figure(canvas.WIDTH, 1.7 + 0.36 * len(shown))
        axes = made.add_subplot()
        axes.set_xscale("log")
        if margin:
            axes.axvspan(1 / (1 + margin), 1 + margin, color="#E8E8E8", linewidth=0)
        axes.axvline(1.0, color=canvas.INK, linewidth=1.0)
        for row, verdict in enumerate(shown):
            _interval(axes, row, verdict)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        pairs = [f"{canvas.label(verdict.a, 18)} / {canvas.label(verdict.b, 18)}" for verdict in shown]
        axes.set_yticks(range(len(shown)), pairs, fontsize=9)
        low, high = _bounds(shown, margin)
        axes.set_xlim(low, high)
        axes.set_xticks(_ticks(low, high))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:.6g}"))
        axes.grid(visible=True, axis="x")
        side = "left" if metric.better is Better.LOWER else "right"
        axes.set_xlabel(
            f"ratio a/b (log scale); a is better to the {side} of 1"
            + ("; grey: the margin stated in advance" if margin else ""),
            fontsize=9,
        )
        right = axes.secondary_yaxis("right")
        right.set_yticks(range(len(shown)), [_short(verdict) for verdict in shown], fontsize=8.5)
        right.tick_params(length=0)
        right.spines["right"].set_visible(False)
        ranked = sum(isinstance(verdict.outcome, Ranked) for verdict in verdicts)
        made.suptitle(
            f"{canvas.label(metric.name, 40)}: {ranked} of {len(verdicts)} pairs ranked", x=0.01, ha="left",
            fontsize=11, fontweight="bold",
        )  # fmt: skip
        canvas.save(made, path)
    return True


def _interval(axes: Axes, row: int, verdict: PairVerdict) -> None:
    colour, marker = _look(verdict)
    interval = known_interval(verdict)
    if interval is not None and interval[0] > 0:
        axes.hlines(row, *interval, colors=colour, linewidth=2.4)
        axes.plot(interval, [row, row], "|", color=colour, markersize=9, markeredgewidth=1.8)
    filled = "white" if isinstance(verdict.outcome, Refused) else colour
    axes.plot(
        [known_ratio(verdict) or 1.0], [row], marker, color=colour, markerfacecolor=filled, markersize=7.5,
        markeredgewidth=1.5,
    )  # fmt: skip


def _look(verdict: PairVerdict) -> tuple[str, str]:
    if isinstance(verdict.outcome, Ranked):
        return _RANKED, "o"
    return (_EQUAL, "D") if isinstance(verdict.outcome, Equivalent) else (_REFUSED, "s")


def _short(verdict: PairVerdict) -> str:
    if isinstance(verdict.outcome, Ranked):
        return f"{canvas.label(verdict.outcome.better, 20)} better"
    if isinstance(verdict.outcome, Equivalent):
        return headline(verdict)
    first, *others = dict.fromkeys(CODE_WORDS[reason.code] for reason in verdict.outcome.reasons)
    return f"not ranked: {first}" + (f" (+{len(others)})" if others else "")


def _bounds(shown: Sequence[PairVerdict], margin: float | None) -> tuple[float, float]:
    """Limits of the axis: everything shown, 1 included, with room beside it; never narrower than 1 %."""
    ends = [1.0, 1 + (margin or 0.0), 1 / (1 + (margin or 0.0))]
    for verdict in shown:
        ends.append(known_ratio(verdict) or 1.0)
        ends += [end for end in known_interval(verdict) or () if end > 0]
    low, high = min(ends), max(ends)
    room = max((high / low) ** 0.06, 1.005)
    return low / room, high * room


def _ticks(low: float, high: float) -> list[float]:
    """Five to eight round ratios between the ends: even steps while the axis is short, 1-2-5 steps on a long one."""
    import math

    if high / low > 12:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**decade for decade in decades for step in ((1, 2, 5) if high / low < 1000 else (1,))]
    else:
        rough = (high - low) / 6
        base = 10.0 ** math.floor(math.log10(rough))
        step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= rough)
        ticks = [round(place * step, 12) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [tick for tick in ticks if low <= tick <= high]


def draw_matrix(metric: Metric, verdicts: Sequence[PairVerdict], names: Sequence[str], path: Path) -> bool:
    """Draw arms against arms: how the row's arm fares against the column's. False (and no file) with fewer than three
    arms: of one pair the interval plot says all.
    """
    if len(verdicts) < 2:
        return False
    pairs = {(verdict.a, verdict.b): verdict for verdict in verdicts}
    size = len(names)
    with canvas.style():
        from matplotlib.patches import Rectangle

        cell = max(0.85, min(1.45, 7.4 / size))
        made = canvas.figure(max(7.2, 1.7 + cell * size), 1.1 + 0.56 * cell * size)
        axes = made.add_subplot()
        for row, first in enumerate(names):
            for column, second in enumerate(names):
                if row == column:
                    continue
                kind, words = _cell(pairs.get((first, second)) or pairs.get((second, first)), first)
                fill, ink, _ = _CELLS[kind]
                axes.add_patch(Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=fill, edgecolor="none"))
                points = 8.5 if cell > 1.1 else 6.5
                axes.text(column, row, words, ha="center", va="center", fontsize=points, color=ink, linespacing=1.45)
        labels = [canvas.label(name, 16) for name in names]
        turned: dict[str, Any] = {"rotation": 30, "ha": "left"} if max(map(len, labels)) > 11 * cell else {}
        axes.set_xticks(range(size), labels, fontsize=9, **turned)
        axes.set_yticks(range(size), labels, fontsize=9)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xlim(-0.5, size - 0.5)
        axes.set_ylim(size - 0.5, -0.5)
        for spine in axes.spines.values():
            spine.set_visible(False)
        title = f"{canvas.label(metric.name, 40)}: the row against the column, with the ratio row/column"
        made.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        canvas.save(made, path)
    return True


def _cell(verdict: PairVerdict | None, row: str) -> tuple[str, str]:
    """Kind of cell and its text: symbol and word first, so that colour is never alone."""
    if verdict is None:
        return "none", _CELLS["none"][2]
    ratio, _ = oriented(verdict, row)
    below = f"\n{significant(ratio)}x" if ratio is not None else ""
    if isinstance(verdict.outcome, Ranked):
        kind = "better" if verdict.outcome.better == row else "worse"
        return kind, _CELLS[kind][2] + below
    if isinstance(verdict.outcome, Equivalent):
        return "equal", _CELLS["equal"][2] + below
    words = list(dict.fromkeys(CODE_WORDS[reason.code] for reason in verdict.outcome.reasons))
    more = f" (+{len(words) - 1})" if len(words) > 1 else ""
    return (
        "refused",
        f"{_CELLS['refused'][2]}\n{words[0].replace(' ', chr(10), 1) if len(words[0]) > 16 else words[0]}{more}",
    )
