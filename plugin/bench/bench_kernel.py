"""Times the native kernel, tinygemm and oneDNN bf16 side by side in one process, and the host's two limits with them.

    python bench_kernel.py RESULTS_DIR [--seconds 0.5] [--shapes out,down] [--rows 1,512]

Five matrix shapes, twelve row counts, three kernels. Each kernel rotates through copies of its own weights that
together exceed the last-level cache, so that every call finds its weights in memory, as a model's decode step does. In
each round every kernel runs once, in rotating order: what disturbs the host disturbs all three. Before each shape the
reading rate and the bf16 peak are measured anew. Writes RESULTS_DIR/<run>/bench.json and prints a table.

The baselines at their best: oneDNN's weights are reordered for the row count in advance (as vLLM does at load, outside
the timing); tinygemm gets its own packed form.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from cpu_int4 import native

# The fused linear layers of the Spark2_5 shape, and its head: N output channels, K inputs.
SHAPES = {
    "q_k_v": (3072, 2048),
    "out": (2048, 2048),
    "gate_up": (13312, 2048),
    "down": (2048, 6656),
    "head": (131072, 2048),
}
ROWS = (1, 2, 3, 4, 5, 8, 16, 17, 32, 64, 128, 512)
GROUP = 128
FEWEST = 7  # calls a cell; more while the cell's time lasts
READ_OF_CACHE = 8  # the read kernel's buffer, in last-level caches
COPIES_OF_CACHE = 4  # each kernel's copies together: three of four lines are evicted before they come round again

Call = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Kernel:
    """One way to multiply, with its copies of one matrix."""

    name: str  # native, tinygemm or bf16
    packed_bytes: int  # of one copy: weights, scales and zeros
    calls: tuple[Call, ...]  # one a copy


@dataclass(frozen=True)
class Row:
    """One cell of the result: a kernel on a shape at a row count."""

    shape: str
    n: int
    k: int
    rows: int
    kernel: str
    seconds: list[float]  # every call, in order, unrounded
    packed_bytes: int


def cache_bytes() -> int:
    """The largest cache of the first CPU."""
    sizes = [p.read_text().strip() for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    factor = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(s[:-1]) * factor[s[-1]] for s in sizes), default=32 * 2**20)


def cpu_model() -> str:
    """The CPU's name as the kernel gives it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Limits:
    """Readings of the host's reading rate and bf16 peak, taken between the shapes."""

    def __init__(self, llc: int) -> None:
        self.buffer = torch.ones(READ_OF_CACHE * llc, dtype=torch.uint8)
        self.read_bytes_per_s: list[float] = []
        self.bf16_flops_per_s: list[float] = []

    def read(self, times: int = 7) -> None:
        """Take `times` readings of both."""
        ops = torch.ops.cpu_int4
        for _ in range(times):
            self.read_bytes_per_s.append(self.buffer.numel() / timed(lambda: ops.native_read(self.buffer)))
            start = time.perf_counter()
            operations = ops.native_bf16_products(100_000)
            self.bf16_flops_per_s.append(operations / (time.perf_counter() - start))


def native_kernel(q: torch.Tensor, s: torch.Tensor, z: torch.Tensor, copies: int) -> Kernel:
    """The kernel under test."""
    op = torch.ops.cpu_int4.native_linear.default
    weights = [native.pack(q, s, z, group_size=GROUP) for _ in range(copies)]
    calls = tuple(lambda x, w=w: op(x, w.packed, None, w.n, w.k, GROUP) for w in weights)
    return Kernel("native", weights[0].packed.nbytes, calls)


def tinygemm_kernel(q: torch.Tensor, s: torch.Tensor, z: torch.Tensor, copies: int) -> Kernel:
    """PyTorch's kernel, packed block by block of channels so that the int32 expansion stays small."""
    op = torch.ops.aten._weight_int4pack_mm_for_cpu.default  # noqa: SLF001
    pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu  # noqa: SLF001
    parts = [pack(torch.stack((b & 15, b >> 4), -1).flatten(1).int(), 1) for b in q.split(1024)]
    packed, scales = torch.cat(parts), torch.stack((s.T, z.T), -1).contiguous()
    weights = [(packed.clone(), scales.clone()) for _ in range(copies)]
    calls = tuple(lambda x, w=w: op(x, w[0], GROUP, w[1]) for w in weights)
    return Kernel("tinygemm", packed.nbytes + scales.nbytes, calls)


def bf16_kernel(n: int, k: int, rows: int, copies: int) -> Kernel:
    """Product by oneDNN on bf16 weights that it has reordered for this row count."""
    reorder, op = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001
    dense = (torch.randn(n, k, dtype=torch.float32) * 0.02).bfloat16()
    weights = [reorder(dense, rows) for _ in range(copies)]
    calls = tuple(lambda x, w=w: op(x, w, None, "none", [], "") for w in weights)
    return Kernel("bf16", n * k * 2, calls)


def copies_for(packed_bytes: int, llc: int) -> int:
    """How many copies exceed the last-level cache COPIES_OF_CACHE times."""
    return max(1, -(-COPIES_OF_CACHE * llc // packed_bytes))


def interleaved(kernels: list[Kernel], x: torch.Tensor, seconds: float) -> dict[str, list[float]]:
    """Every kernel once a round, the order rotating by one each round, until `seconds` are over."""
    times: dict[str, list[float]] = {kernel.name: [] for kernel in kernels}
    copies: dict[str, Iterator[Call]] = {kernel.name: itertools.cycle(kernel.calls) for kernel in kernels}
    for kernel in kernels:
        next(copies[kernel.name])(x)  # buffers that live from the first call on
    end = time.perf_counter() + seconds
    for turn in itertools.count():
        if turn >= FEWEST and time.perf_counter() > end:
            return times
        for i in range(len(kernels)):
            kernel = kernels[(turn + i) % len(kernels)]
            call = next(copies[kernel.name])
            times[kernel.name].append(timed(partial(call, x)))
    raise AssertionError


def shape_cells(shape: str, row_counts: list[int], llc: int, seconds: float) -> Iterator[list[Row]]:
    """For each row count of one shape, a row of each kernel."""
    n, k = SHAPES[shape]
    q = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    s = (0.01 + 0.01 * torch.rand(n, k // GROUP)).bfloat16()
    copies = copies_for(q.nbytes, llc)
    narrow = [native_kernel(q, s, s, copies), tinygemm_kernel(q, s, s, copies)]
    for rows in row_counts:
        kernels = [*narrow, bf16_kernel(n, k, rows, copies_for(2 * n * k, llc))]
        times = interleaved(kernels, torch.randn(rows, k).bfloat16(), seconds)
        yield [Row(shape, n, k, rows, kernel.name, times[kernel.name], kernel.packed_bytes) for kernel in kernels]


def host_facts(limits: Limits, llc: int) -> dict[str, object]:
    """Where and with what the times were taken; the two limits are the medians of all readings."""
    return {
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "last_level_cache_bytes": llc,
        "isa": native.isa(),
        "torch": torch.__version__,
        "group_size": GROUP,
        "read_bytes_per_s": statistics.median(limits.read_bytes_per_s),
        "bf16_flops_per_s": statistics.median(limits.bf16_flops_per_s),
        "read_kernel": f"one pass of all threads over {limits.buffer.numel()} bytes: 64-byte loads, 8 KiB ahead",
        "peak_kernel": "16 independent chains of vdpbf16ps a thread",
        "read_bytes_per_s_readings": limits.read_bytes_per_s,
        "bf16_flops_per_s_readings": limits.bf16_flops_per_s,
    }


def table_line(cells: list[Row], limits: Limits) -> str:
    """One line of the printed table: a shape at a row count."""
    median = {cell.kernel: statistics.median(cell.seconds) for cell in cells}
    cell = cells[0]
    memory = cell.packed_bytes / statistics.median(limits.read_bytes_per_s)
    arithmetic = 2 * cell.rows * cell.n * cell.k / statistics.median(limits.bf16_flops_per_s)
    return (
        f"{cell.shape:8s}{cell.rows:5d}"
        f"{1e6 * median['native']:11.1f}{1e6 * median['tinygemm']:11.1f}{1e6 * median['bf16']:11.1f}"
        f"{median['native'] / max(memory, arithmetic):10.2f}{median['tinygemm'] / median['native']:10.2f}"
        f"{median['bf16'] / median['native']:10.2f}"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="native kernel, tinygemm and oneDNN bf16 against the host's limits")
    parser.add_argument("results", type=Path)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one cell, all kernels together")
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=list(SHAPES))
    parser.add_argument("--rows", type=lambda text: [int(r) for r in text.split(",")], default=list(ROWS))
    arguments = parser.parse_args()
    native.load()
    torch.manual_seed(0)
    llc = cache_bytes()
    limits = Limits(llc)
    print("shape    rows  native us   tinygemm       bf16 /roofline tinygemm/     bf16/")
    result: list[Row] = []
    for shape in arguments.shapes:
        limits.read()
        for cells in shape_cells(shape, arguments.rows, llc, arguments.seconds):
            result += cells
            print(table_line(cells, limits), flush=True)
    limits.read()
    run = arguments.results / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    run.mkdir(parents=True)
    document = {"host": host_facts(limits, llc), "rows": [asdict(row) for row in result]}
    (run / "bench.json").write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
    print(f"written: {run / 'bench.json'}")


if __name__ == "__main__":
    main()
