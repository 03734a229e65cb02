"""Writes the page of a kernel benchmark: `python report.py RUN ANALYSIS_DIR`; the same run gives the same bytes.

Reads RUN/bench.json, writes ANALYSIS_DIR/bench_kernel.md and bench_kernel.svg beside it. Needs matplotlib.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KERNELS = {"native": "C0", "tinygemm": "C1", "bf16": "C2"}  # and the colour of each


@dataclass(frozen=True)
class Cell:
    """One shape at one row count: median seconds of the three kernels, and the host's limit for it."""

    shape: str
    n: int
    k: int
    rows: int
    seconds: dict[str, float]  # median by kernel
    spread: tuple[float, float]  # of bf16 / native, round by round: its quartiles
    limit: float  # seconds of the roofline for the native kernel's bytes
    packed_bytes: int  # the native kernel's

    @property
    def over_limit(self) -> float:
        """Time of the native kernel over its roofline."""
        return self.seconds["native"] / self.limit

    def versus(self, kernel: str) -> float:
        """How many times faster than `kernel` the native kernel is."""
        return self.seconds[kernel] / self.seconds["native"]


@dataclass(frozen=True)
class Target:
    """What was to be reached, and by which cells."""

    text: str
    rows: tuple[int, int]  # first and last row count that it speaks of
    least: float
    measure: str  # over_limit, or the kernel compared with; `better` is the better of the two

    def value(self, cell: Cell) -> float:
        """The cell's value; larger is better (the time over the roofline is inverted)."""
        if self.measure == "over_limit":
            return 1 / cell.over_limit
        if self.measure == "better":
            return min(cell.versus("tinygemm"), cell.versus("bf16"))
        return cell.versus(self.measure)


TARGETS = (
    Target("every cell: time over the roofline at most 1.25", (1, 512), 1 / 1.25, "over_limit"),
    Target("1 row: at least 1.3 times tinygemm", (1, 1), 1.3, "tinygemm"),
    Target("2 to 16 rows: at least 1.4 times the better of tinygemm and bf16", (2, 16), 1.4, "better"),
    Target("17 to 64 rows: at least the better of tinygemm and bf16", (17, 64), 1.0, "better"),
    Target("512 rows: at least 0.97 of bf16", (512, 512), 0.97, "bf16"),
)


def cells_of(document: dict[str, Any]) -> list[Cell]:
    """The benchmark's rows, three kernels to a cell, in their order."""
    host = document["host"]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in document["rows"]:
        found.setdefault((row["shape"], row["rows"]), {})[row["kernel"]] = row
    cells = []
    for (shape, rows), kernels in found.items():
        native = kernels["native"]
        memory = native["packed_bytes"] / host["read_bytes_per_s"]
        arithmetic = 2 * rows * native["n"] * native["k"] / host["bf16_flops_per_s"]
        ratios = [b / a for a, b in zip(native["seconds"], kernels["bf16"]["seconds"], strict=True)]
        quartiles = statistics.quantiles(ratios, n=4)
        seconds = {name: statistics.median(kernels[name]["seconds"]) for name in KERNELS}
        limit, spread = max(memory, arithmetic), (quartiles[0], quartiles[2])
        cells.append(Cell(shape, native["n"], native["k"], rows, seconds, spread, limit, native["packed_bytes"]))
    return cells


def verdict(target: Target, cells: list[Cell]) -> str:
    """One line of the table of targets: how many cells reach it, and the worst."""
    meant = [c for c in cells if target.rows[0] <= c.rows <= target.rows[1]]
    if not meant:
        return f"| {target.text} | not measured | |"
    worst = min(meant, key=target.value)
    value = 1 / target.value(worst) if target.measure == "over_limit" else target.value(worst)
    reached = sum(target.value(c) >= target.least for c in meant)
    return f"| {target.text} | {reached} of {len(meant)} cells | {value:.2f} ({worst.shape}, {worst.rows} rows) |"


def cell_line(cell: Cell) -> str:
    """One line of the table of cells."""
    times = " | ".join(f"{1e6 * cell.seconds[name]:.1f}" for name in KERNELS)
    low, high = cell.spread
    return (
        f"| {cell.shape} | {cell.rows} | {times} | {cell.over_limit:.2f} | {cell.versus('tinygemm'):.2f} "
        f"| {cell.versus('bf16'):.2f} ({low:.2f} to {high:.2f}) |"
    )


def conditions(host: dict[str, Any], source: str) -> str:
    """Where the times come from and how they were taken, as paragraphs."""
    reads, peaks = host["read_bytes_per_s_readings"], host["bf16_flops_per_s_readings"]
    return f"""From `{source}`. {host["cpu"]}, {host["threads"]} threads, torch {host["torch"]},
groups of {host["group_size"]}, instruction set `{host["isa"]}`.

Read: {host["read_bytes_per_s"] / 1e9:.1f} GB/s ({host["read_kernel"]}; readings from {min(reads) / 1e9:.1f} to
{max(reads) / 1e9:.1f}). Peak: {host["bf16_flops_per_s"] / 1e9:.0f} GFLOP/s ({host["peak_kernel"]}; readings from
{min(peaks) / 1e9:.0f} to {max(peaks) / 1e9:.0f}). Both are medians of readings taken between the shapes.

Roofline of a cell: the larger of packed bytes / read and 2 x rows x N x K / peak. In one process, every kernel once a
round in rotating order, each rotating through copies of its weights four times the last-level cache. Times are medians.
The quartiles behind bf16 are of the ratio within a round."""


def page(document: dict[str, Any], cells: list[Cell], source: str) -> str:
    """The whole page."""
    lines = [
        "# The native kernel against tinygemm, oneDNN bf16 and the host's two limits",
        "",
        conditions(document["host"], source),
        "",
        "![Speed over arithmetic intensity, with the host's two limits](bench_kernel.svg)",
        "",
        "| target | reached | worst |",
        "|---|---|---|",
        *(verdict(target, cells) for target in TARGETS),
        "",
        "| shape | rows | native us | tinygemm us | bf16 us | native / roofline | tinygemm / native | bf16 / native |",
        "|---|---|---|---|---|---|---|---|",
        *(cell_line(cell) for cell in cells),
        "",
    ]
    return "\n".join(lines)


def picture(document: dict[str, Any], cells: list[Cell], path: Path) -> None:
    """The roofline: speed over operations per packed byte, one mark a cell and kernel."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "bench_kernel"  # the same run, the same bytes
    import matplotlib.pyplot as plt

    read, peak = document["host"]["read_bytes_per_s"], document["host"]["bf16_flops_per_s"]
    figure, axes = plt.subplots(figsize=(7, 4.5))
    intensity = [2.0**e for e in range(1, 13)]
    limits = [min(peak, read * i) / 1e9 for i in intensity]
    axes.plot(intensity, limits, color="0.4", label="limit: read, then bf16 peak")
    for kernel, colour in KERNELS.items():
        work = [2 * c.rows * c.n * c.k for c in cells]
        axes.plot(
            [w / c.packed_bytes for w, c in zip(work, cells, strict=True)],
            [w / c.seconds[kernel] / 1e9 for w, c in zip(work, cells, strict=True)],
            linestyle="", marker="o", markersize=4, alpha=0.7, color=colour, label=kernel,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="operations per byte of packed 4-bit weights", ylabel="GFLOP/s")
    axes.legend()
    axes.grid(which="both", color="0.9")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Read the run, write the page and its picture."""
    run, analysis = Path(sys.argv[1]), Path(sys.argv[2])
    document = json.loads((run / "bench.json").read_text(encoding="utf-8"))
    cells = cells_of(document)
    source = "/".join((run / "bench.json").resolve().parts[-4:])
    (analysis / "bench_kernel.md").write_text(page(document, cells, source), encoding="utf-8")
    picture(document, cells, analysis / "bench_kernel.svg")


if __name__ == "__main__":
    main()
