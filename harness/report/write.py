"""Write a run's report: the figures, then the Markdown that shows them. Same input, same bytes."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote

from harness.report.compared import compared, without
from harness.report.data import RunData
from harness.report.markdown import markdown
from harness.verdict.types import Judgement


def write_report(data: RunData, judgement: Judgement, out_dir: Path, *, stem: str | None = None) -> Path:
    """Write `<stem>.md` (default: the experiment's name) and its figures `<stem>-*.png` into `out_dir`.

    Figures that an earlier report of this name showed and this one does not are removed. Returns the Markdown's path.
    """
    name = stem if stem is not None else data.experiment.name
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / f"{name}.md"
    before = shown_figures(path, name)
    figures = _draw(data, judgement, out_dir, name)
    _replace(path, markdown(data, judgement, figures))
    for stale in before - set(figures.values()):
        (out_dir / stale).unlink(missing_ok=True)
    return path


def shown_figures(path: Path, name: str) -> set[str]:
    """File names of the figures that an existing report shows; empty if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return set()
    links = {unquote(link) for link in re.findall(r"\]\(([^()\s/]+\.png)\)", text)}
    return {link for link in links if link.startswith(f"{name}-")}


def _draw(data: RunData, judgement: Judgement, out_dir: Path, name: str) -> dict[str, str]:
    """Draw every figure that has something to show; file name by figure."""
    from harness.report.figure_memory import draw_memory
    from harness.report.figure_pairs import draw_intervals, draw_matrix
    from harness.report.figure_values import draw_values

    asked = data.experiment
    figures: dict[str, str] = {}

    def file(key: str) -> Path:
        figures[key] = f"{name}-{quote(key, safe=' ')}.png"
        return out_dir / figures[key]

    drawn = {"memory": draw_memory(data, file("memory"))}
    for metric in asked.metrics:
        verdicts = compared(judgement, metric)
        names = [name for name in asked.names if name not in without(judgement, metric)]
        values, intervals, matrix = (f"{kind}-{metric.name}" for kind in ("values", "intervals", "matrix"))
        drawn[values] = draw_values(data, metric, file(values))
        drawn[intervals] = draw_intervals(metric, verdicts, asked.margins.get(metric.name), file(intervals))
        drawn[matrix] = draw_matrix(metric, verdicts, names, file(matrix))
    return {key: figure for key, figure in figures.items() if drawn[key]}


def _replace(path: Path, text: str) -> None:
    """Write beside, then rename: a reader never sees half a report."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8", newline="\n")
    beside.replace(path)
