"""Pictures of the calibration study. matplotlib loads only when they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.verdict.calibration.scenarios import SCENARIOS
from harness.verdict.calibration.study import ARMS, CURVE_EFFECTS, EFFECT, PASSES, Row

_COLOURS = {"strict": "#1f4e79", "paired": "#2a9d8f"}
_OTHERS = "#9a9a9a"
#: Muted colours by which the curves of other tools' rules are told apart.
_OTHER_CURVES = {
    "hyperfine_sigma": "#b8860b",
    "pyperf_t": "#8a6fb0",
    "asv": "#6b6b6b",
    "criterion": "#b5651d",
    "min_max": "#7a9e3f",
    "welch_t": "#c27ba0",
    "mann_whitney": "#5f8fa8",
}
_SAVE = {"dpi": 110, "metadata": {"Software": None}}  # no version stamp: the same rows give the same bytes

Bound = Callable[[Row], float]


def draw_all(folder: Path, rows: Sequence[Row], *, holds: Sequence[str], bound: Bound) -> list[tuple[str, str]]:
    """Draw every picture into `folder`; names with their captions."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    drawn = (
        (_rules, "verdict_calibration_rules.png", "False rankings per experiment of every rule: each dot is one cell"),
        (_cells, "verdict_calibration_cells.png", "False rankings per experiment in every cell, in percent"),
        (_passes, "verdict_calibration_power.png", "Power against passes: one arm 3 % slower, plain 1 % noise"),
        (_effects, "verdict_calibration_effect.png", "Power against the size of the effect, plain 1 % noise"),
    )
    for picture, name, _ in drawn:
        figure = picture(rows, holds, bound)
        figure.savefig(folder / name, **_SAVE)
    return [(name, caption) for _, name, caption in drawn]


def _figure(*shape: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(*shape, squeeze=False)


def _colour(rule: str) -> str:
    return _COLOURS.get(rule, _OTHERS)


def _rules(rows: Sequence[Row], _holds: Sequence[str], bound: Bound) -> Any:
    """One line of dots a rule; the promise and the bound as vertical lines."""
    figure, axes = _figure(1, 1, size=(9, 4.2))
    axis = axes[0, 0]
    names = list(dict.fromkeys(row.rule for row in rows))[::-1]
    null = [row for row in rows if row.effect == 0]
    for height, rule in enumerate(names):
        found = [row.false_rankings * 100 for row in null if row.rule == rule]
        shift = [height + 0.28 * ((index * 0.618) % 1 - 0.5) for index in range(len(found))]
        axis.plot(found, shift, ".", color=_colour(rule), markersize=4, alpha=0.5)
        axis.plot([max(found)], [height], "|", color="black", markersize=14)
    axis.axvline(5, color="#c1121f", linewidth=1)
    axis.axvline(bound(null[0]) * 100, color="#c1121f", linewidth=1, linestyle="--")
    axis.annotate("promise", (5, len(names) - 0.45), color="#c1121f", ha="right", fontsize=8)
    axis.annotate(" bound", (bound(null[0]) * 100, len(names) - 0.45), color="#c1121f", fontsize=8)
    axis.set_xscale("symlog", linthresh=5)
    axis.set_xticks([0, 1, 2, 3, 4, 5, 10, 20, 50, 100], [str(x) for x in (0, 1, 2, 3, 4, 5, 10, 20, 50, 100)])
    axis.set_xlim(-0.2, 115)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("experiments with a false ranking, %  (linear to 5, then logarithmic; | marks the worst cell)")
    return figure


def _cells(rows: Sequence[Row], _holds: Sequence[str], bound: Bound) -> Any:
    """A small table of arms by passes for each scenario, one row of tables a rule; over the bound in a red frame."""
    from matplotlib.patches import Rectangle

    rules, names = ("strict", "paired"), list(SCENARIOS)
    figure, axes = _figure(len(rules), len(names), size=(2.05 * len(names), 5.4))
    image = None
    for line, rule in enumerate(rules):
        for column, scenario in enumerate(names):
            axis = axes[line, column]
            cells = {
                (row.arms, row.passes): row
                for row in rows
                if row.rule == rule and row.scenario == scenario and row.effect == 0
            }
            grid = [[cells[m, k].false_rankings * 100 for k in PASSES] for m in ARMS]
            image = axis.imshow(grid, vmin=0, vmax=10, cmap="BuPu", origin="lower", aspect="auto")
            for (m, k), row in cells.items():
                x, y = k - PASSES[0], m - ARMS[0]
                shade = "white" if row.false_rankings > 0.06 else "black"
                axis.text(x, y, f"{row.false_rankings * 100:.0f}", ha="center", va="center", fontsize=7, color=shade)
                if row.false_rankings > bound(row):
                    axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="red", linewidth=2))
            axis.set_xticks(range(len(PASSES)), [str(k) for k in PASSES])
            axis.set_yticks(range(len(ARMS)), [str(m) for m in ARMS])
            if line == 0:
                axis.set_title(scenario, fontsize=10)
            if line == len(rules) - 1:
                axis.set_xlabel("passes")
            if column == 0:
                axis.set_ylabel(f"{rule}\n\narms")
    figure.colorbar(image, ax=axes, label="false rankings, %", fraction=0.02, pad=0.01)
    return figure


def _passes(rows: Sequence[Row], holds: Sequence[str], _bound: Bound) -> Any:
    figure, axes = _figure(1, 3, size=(12, 3.8))
    for axis, arms in zip(axes[0], (2, 5, 8), strict=True):
        _curves(axis, [r for r in rows if r.effect == EFFECT and r.arms == arms and r.scenario == "lognormal"], holds)
        axis.set_title(f"{arms} arms")
        axis.set_xlabel("passes")
        axis.set_xticks(list(PASSES))
    return _finished(figure, axes, holds)


def _curves(axis: Any, rows: Sequence[Row], holds: Sequence[str], *, over: str = "passes") -> None:
    for rule in dict.fromkeys(row.rule for row in rows):
        if rule == "hyperfine_order":  # ranks every pair always: a line at 1 that says nothing
            continue
        found = sorted((getattr(row, over), row.power) for row in rows if row.rule == rule)
        axis.plot(
            [x for x, _ in found],
            [y for _, y in found],
            marker=_MARKS.get(rule, "o"),
            markersize=4,
            color=_COLOURS.get(rule) or _OTHER_CURVES.get(rule, _OTHERS),
            linewidth=2.2 if rule in _COLOURS else 1,
            linestyle="-" if rule in holds else ":",
            label=rule,
            zorder=3 if rule in _COLOURS else 2,
        )
    axis.set_ylim(-0.03, 1.03)


_MARKS = {
    "strict": "s",
    "paired": "o",
    "hyperfine_sigma": "v",
    "pyperf_t": "^",
    "asv": "x",
    "criterion": "D",
    "min_max": "+",
    "welch_t": "<",
    "mann_whitney": ">",
}


def _effects(rows: Sequence[Row], holds: Sequence[str], _bound: Bound) -> Any:
    figure, axes = _figure(1, 3, size=(12, 3.8))
    wanted = {*CURVE_EFFECTS, EFFECT}
    for axis, arms in zip(axes[0], (2, 5, 8), strict=True):
        chosen = [
            r for r in rows if r.effect in wanted and r.arms == arms and r.passes == 5 and r.scenario == "lognormal"
        ]
        _curves(axis, chosen, holds, over="effect")
        axis.set_title(f"{arms} arms, 5 passes")
        axis.set_xscale("log")
        ticks = sorted(wanted)
        axis.set_xticks(ticks, [f"{tick * 100:.0f}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("true difference, %")
    return _finished(figure, axes, holds)


def _finished(figure: Any, axes: Any, holds: Sequence[str]) -> Any:
    axes[0, 0].set_ylabel("true differences ranked, share")
    handles, labels = axes[0, -1].get_legend_handles_labels()
    shown = [label if label in holds else f"{label} (breaks 5 %)" for label in labels]
    figure.legend(handles, shown, loc="outside right center", fontsize=8, frameon=False)
    return figure
