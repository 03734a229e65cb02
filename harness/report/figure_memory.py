"""Figure: memory over time, one panel an arm: all trials faint, one in full with its phases and its peak bracket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.records import PhaseMemory, TrialRecord
from harness.report import canvas
from harness.report.data import Curve, RunData
from harness.report.text import significant, span
from harness.units import scale_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Points kept per curve, two (lowest, highest) a bin: a panel is about 400 pixels wide, and no peak may be lost.
_BINS: Final = 500
#: Phases narrower than this share of the axis get a band but no name.
_NARROW: Final = 0.022
_BANDS: Final = ("#E8F1F7", "#FAF5EA")
_UPPER: Final = "#D55E00"


def draw_memory(data: RunData, path: Path) -> bool:
    """Draw and save the figure; False (and no file) if no trial has samples."""
    curves = {id(record): thin(data.samples(record)) for record in data.latest}
    panels = [
        (name, [record for record in data.latest if record.arm == name and len(curves[id(record)]) > 1])
        for name in data.experiment.names
    ]
    if not any(records for _, records in panels):
        return False
    largest = max(bytes_ for curve in curves.values() for _, bytes_ in curve)
    longest = max(curve[-1][0] - record.began for record in data.latest if (curve := curves[id(record)]))
    tops = [whole.s_upper or 0 for _, records in panels for record in records if (whole := _whole(record)) is not None]
    with canvas.style():
        divisor, unit = scale_for("B", largest)
        columns = 1 if len(panels) == 1 else 2
        rows = math.ceil(len(panels) / columns)
        made = canvas.figure(canvas.WIDTH, 0.7 + 2.5 * rows)
        grid = made.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        places = [axes for line in grid for axes in line]
        # a bound far above every sample (a mapped checkpoint) must not press the curves to the floor
        ceiling = max(largest, min(max(tops, default=0), 1.6 * largest))
        places[0].set_ylim(0, 1.4 * ceiling / divisor)
        places[0].set_xlim(0, longest * 1.02)
        for axes, (name, records) in zip(places, panels, strict=False):
            axes.tick_params(labelbottom=True)
            _panel(axes, name, records, curves, scale=(divisor, unit))
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        made.supxlabel("seconds from the start of the trial", fontsize=9)
        made.supylabel(f"sum of RssAnon over the arm's processes, {unit}", fontsize=9)
        made.suptitle(
            "Memory over time: one trial in full with its phases, the others faint; orange: bracket of the peak",
            x=0.01, ha="left", fontsize=11, fontweight="bold",
        )  # fmt: skip
        canvas.save(made, path)
    return True


def _panel(
    axes: Axes, name: str, records: Sequence[TrialRecord], curves: dict[int, Curve], *, scale: tuple[float, str]
) -> None:
    divisor, unit = scale
    axes.set_title(canvas.label(name, 26), fontsize=10)
    axes.grid(visible=True, axis="y")
    if not records:
        axes.text(0.5, 0.5, "no samples", transform=axes.transAxes, ha="center", va="center", color="#555555")
        return
    chosen = _typical(records)
    _bands(axes, chosen)
    for record in records:
        xs = [t - record.began for t, _ in curves[id(record)]]
        ys = [bytes_ / divisor for _, bytes_ in curves[id(record)]]
        if record is chosen:
            axes.plot(xs, ys, color="#0B4F7D", linewidth=1.5, zorder=3)
        else:
            axes.plot(xs, ys, color="#555555", linewidth=0.7, alpha=0.4, zorder=2)
    _peak(axes, chosen, divisor, unit)
    failed = f", {chosen.failure.reason.value}" if chosen.failure is not None else ""
    axes.text(
        0.99, 1.02, f"in full: pass {chosen.pass_number}{failed}", transform=axes.transAxes, ha="right", va="bottom",
        fontsize=8, color="#555555",
    )  # fmt: skip


def _typical(records: Sequence[TrialRecord]) -> TrialRecord:
    """The usable trial with the median peak (lower one of two), else the first that there is."""
    peaks = [
        (whole.s_lower or 0, place)
        for place, record in enumerate(records)
        if record.usable and (whole := _whole(record)) is not None
    ]
    return records[sorted(peaks)[(len(peaks) - 1) // 2][1]] if peaks else records[0]


def _whole(record: TrialRecord) -> PhaseMemory | None:
    return record.memory.phase("trial") if record.memory is not None else None


def _bands(axes: Axes, record: TrialRecord) -> None:
    """Shade the phases; names stand at the top, those of narrow phases are left out."""
    length = axes.get_xlim()[1]
    for place, phase in enumerate(record.phases):
        # A driver's clock may be off by years: only what lies in the trial is drawn.
        begin = max(phase.begin, record.began) - record.began
        end = min(phase.end or record.ended, record.ended) - record.began
        if end <= begin:
            continue
        axes.axvspan(begin, end, color=_BANDS[place % 2], linewidth=0, zorder=0)
        begin, end = _own(record, place, begin, end)
        if length > 0 and (end - begin) / length >= _NARROW:
            tall = 90 if (end - begin) / length < 0.016 * len(phase.name) + 0.02 else 0
            axes.text(
                (begin + end) / 2, 0.985, phase.name, transform=axes.get_xaxis_transform(), ha="center", va="top",
                fontsize=7.5, rotation=tall, color="#444444",
            )  # fmt: skip


def _own(record: TrialRecord, place: int, begin: float, end: float) -> tuple[float, float]:
    """Where a phase's name stands: the longer end of it that no phase inside it (compile in load) covers."""
    inside = [
        (phase.begin - record.began, (phase.end or record.ended) - record.began)
        for phase in record.phases[place + 1 :]
        if begin <= phase.begin - record.began < end
    ]
    if not inside:
        return begin, end
    before, after = (begin, min(at for at, _ in inside)), (min(end, max(to for _, to in inside)), end)
    return max(before, after, key=lambda piece: piece[1] - piece[0])


def _peak(axes: Axes, record: TrialRecord, divisor: float, unit: str) -> None:
    whole = _whole(record)
    if whole is None or whole.s_lower is None or whole.peak_t is None:
        return
    x, low = whole.peak_t - record.began, whole.s_lower / divisor
    if whole.s_upper is None:
        axes.plot([x], [low], "^", color=_UPPER, markersize=7, zorder=4)
        words = f"peak at least {significant(low)} {unit}"
    else:
        high = max(low, whole.s_upper / divisor)
        axes.errorbar([x], [low], yerr=([0.0], [high - low]), color=_UPPER, capsize=5, linewidth=2, zorder=4)
        words = f"peak {span(low, high)} {unit}"
    left = x > 0.6 * axes.get_xlim()[1]
    top = low if whole.s_upper is None else max(low, whole.s_upper / divisor)
    ceiling = axes.get_ylim()[1]
    axes.annotate(  # above the bracket: beside it the curve itself would strike the words through
        words, (x, min(top, 0.8 * ceiling)), xytext=(2 if left else -2, 6), textcoords="offset points", fontsize=8,
        color=_UPPER, ha="right" if left else "left", va="bottom", zorder=5,
    )  # fmt: skip


def thin(curve: Curve, bins: int = _BINS) -> Curve:
    """Lowest and highest sample of each of `bins` equal times, in order: no peak and no dip is lost."""
    if len(curve) <= 2 * bins:
        return curve
    begin, end = curve[0][0], curve[-1][0]
    width = (end - begin) / bins or 1.0
    kept: list[tuple[float, int]] = []
    group: list[tuple[float, int]] = []
    current = 0
    for sample in curve:
        place = min(int((sample[0] - begin) / width), bins - 1)
        if place != current and group:
            kept += sorted({min(group, key=lambda item: item[1]), max(group, key=lambda item: item[1])})
            group = []
        current = place
        group.append(sample)
    kept += sorted({min(group, key=lambda item: item[1]), max(group, key=lambda item: item[1])}) if group else []
    return kept
