"""What a sample costs: this meter against the ways other tools take, on a tree of 8 processes, interleaved.

`python -m harness.testing.bench_meter [--seconds S] [--out DIR]`. Each way finds new processes at each tick, as it does
in its own project; the walks of psrecord and memory_profiler are written again from what they do (children(recursive),
memory_info of each). Samples of this comparison are 2 ms apart, so caches are warm for all alike.

Also: the sampler as it is used, 50 times a second, on a quiet host and with every core busy: its share of a core and
its gaps, steal beside them. On an idle host a tick costs several times what it costs in the comparison (0.93 % of a
core against 37 us a sample, 0.37 % beside busy cores: results/bench_meter/20261201T142354Z, 2-core virtual machine).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from harness.meterlog import MeterLog
from harness.run.kernel_events import KernelEvents
from harness.run.memory_meter import start_meter
from harness.run.tracker import Tracker

PROCESSES: Final = 8
#: Passes over all ways; each takes 20 samples of each way in turn, so that a slow moment hits all alike.
_PASSES: Final = 25
_SAMPLES: Final = 20
#: A child of the tree: 20 MiB, of which it rewrites some every 10 ms, so that readings do change.
_CHILD: Final = (
    "import time,sys\nheld=bytearray(20<<20)\nmore=[]\n"
    "while True:\n time.sleep(0.01)\n more.append(bytearray(1<<16))\n if len(more)>100: more.clear()\n"
)
_ROOT: Final = (
    "import subprocess,sys,time\nkids=[subprocess.Popen([sys.executable,'-S','-E','-c',sys.argv[1]])"
    " for _ in range(int(sys.argv[2]))]\nsys.stdin.read()\nfor kid in kids: kid.kill(); kid.wait()\n"
)


@contextmanager
def tree(processes: int = PROCESSES) -> Iterator[subprocess.Popen[bytes]]:
    """A process with children, `processes` in all, ended at the end."""
    root = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _ROOT, _CHILD, str(processes - 1)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        time.sleep(1.0)
        yield root
    finally:
        if root.stdin is not None:
            root.stdin.close()
        root.wait(10)


def ways(root: int) -> dict[str, Callable[[], object]]:  # noqa: C901  # four tools side by side
    """One sample of the whole tree, by each way."""
    import psutil

    events = KernelEvents()
    usable = None if events.problem else events
    found: dict[str, Callable[[], object]] = {
        "harness": _ours(root, usable),
        "harness_without_events": _ours(root, None),
    }
    top = psutil.Process(root)

    def psutil_rss() -> int:
        total = 0
        for process in [top, *top.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        return total

    def psutil_uss() -> int:
        total = 0
        for process in [top, *top.children(recursive=True)]:
            try:
                total += process.memory_full_info().uss
            except psutil.Error:
                continue
        return total

    def psrecord() -> tuple[float, float]:
        """As psrecord: CPU and memory of the top process, then of each child, found anew at each tick."""
        process = psutil.Process(root)
        cpu, memory = process.cpu_percent(), process.memory_info().rss / 1024**2
        for child in process.children(recursive=True):
            try:
                cpu += child.cpu_percent()
                memory += child.memory_info().rss / 1024**2
            except psutil.Error:
                continue
        return cpu, memory

    def memory_profiler() -> float:
        """As memory_profiler with include_children: a new process object at each tick, then a list over children."""
        process = psutil.Process(root)
        memory = process.memory_info()[0] / 1024**2
        try:
            memory += sum(child.memory_info()[0] / 1024**2 for child in process.children(recursive=True))
        except psutil.Error:
            return memory
        return memory

    found.update(
        {"psutil_rss": psutil_rss, "psutil_uss": psutil_uss, "psrecord": psrecord, "memory_profiler": memory_profiler}
    )
    return found


def _ours(root: int, events: KernelEvents | None) -> Callable[[], int]:
    tracker = Tracker(root, session=root, token="bench", proc="/proc", cgroup_procs=None, events=events)  # noqa: S106 - no secret

    def sample() -> int:
        tracker.tick()
        tracker.lines.clear()
        return tracker.total

    return sample


def compare(root: int) -> dict[str, dict[str, float]]:
    """Median CPU and wall time of one sample by each way, microseconds. Samples are 2 ms apart: caches are warm."""
    table = ways(root)
    cost: dict[str, list[float]] = {name: [] for name in table}
    wall: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(_PASSES):
        for name, sample in table.items():
            sample()
            for _ in range(_SAMPLES):
                time.sleep(0.002)
                began, cpu = time.perf_counter_ns(), time.thread_time_ns()
                sample()
                cost[name].append((time.thread_time_ns() - cpu) / 1e3)
                wall[name].append((time.perf_counter_ns() - began) / 1e3)
    return {
        name: {
            "cpu_us_median": median(cost[name]),
            "wall_us_median": median(wall[name]),
            "times_ours": median(cost[name]) / median(cost["harness"]),
            "samples": len(cost[name]),
        }
        for name in table
    }


def run_sampler(root: int, seconds: float, folder: Path, *, busy: bool) -> dict[str, Any]:
    """The sampler as it is used, at 50 Hz: its share of a core and its gaps."""
    events = folder / "bench.events.jsonl"
    loads = (
        [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        if busy
        else []
    )
    try:
        steal = _steal()
        meter = start_meter(root_pid=root, session=root, token="bench", events_path=events, samples_path=None)  # noqa: S106 - as above
        time.sleep(seconds)
        log = meter.stop()
        stolen = _steal() - steal
    finally:
        for load in loads:
            load.kill()
            load.wait()
        events.unlink(missing_ok=True)
    return gaps(log) | {"busy": busy, "steal_s": stolen, "nice": log.host.nice, "kernel_events": log.host.events}


def gaps(log: MeterLog) -> dict[str, Any]:
    """Rate, CPU share and gaps of a record."""
    between = sorted(after - before for before, after in zip(log.ticks, log.ticks[1:], strict=False))
    return {
        "samples": len(log.ticks),
        "rate_hz": len(log.ticks) / log.cost.wall_s,
        "cpu_share": (log.cost.cpu_s - log.cost.startup_cpu_s) / log.cost.wall_s,
        "startup_cpu_s": log.cost.startup_cpu_s,
        "gap_max_s": between[-1],
        "gap_p999_s": between[min(len(between) - 1, int(len(between) * 0.999))],
        "share_under_40_ms": sum(gap < 0.040 for gap in between) / len(between),
    }


def _steal() -> float:
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(words[8]) / os.sysconf("SC_CLK_TCK")


def bench(seconds: float, folder: Path) -> dict[str, Any]:
    """The whole comparison."""
    with tree() as root:
        ways_found = compare(root.pid)
        quiet = run_sampler(root.pid, seconds, folder, busy=False)
        busy = run_sampler(root.pid, seconds, folder, busy=True)
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "processes": PROCESSES,
        "ways": ways_found,
        "sampler_50_hz": quiet,
        "sampler_50_hz_all_cores_busy": busy,
        "reached": {
            "at_least_15_times_cheaper_than_psutil_rss": ways_found["psutil_rss"]["times_ours"] >= 15,
            "under_half_a_percent_of_a_core": quiet["cpu_share"] < 0.005,
            "999_of_1000_gaps_under_40_ms_when_busy": busy["share_under_40_ms"] >= 0.999,
        },
    }


def main(argv: list[str] | None = None) -> int:
    """Run, print a table and write bench.json."""
    parser = argparse.ArgumentParser(prog="bench-meter", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each run of the sampler (30)")
    parser.add_argument("--out", type=Path, help="folder (default: results/bench_meter/<time>)")
    arguments = parser.parse_args(argv)
    folder = arguments.out or Path("results/bench_meter", datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"one sample of {PROCESSES} processes, ways interleaved; then the sampler for 2 x {arguments.seconds:.0f} s")
    found = bench(arguments.seconds, folder)
    for name, row in found["ways"].items():
        print(f"  {name:<24} {row['cpu_us_median']:9.1f} us CPU  {row['times_ours']:7.1f} x ours")
    for name in ("sampler_50_hz", "sampler_50_hz_all_cores_busy"):
        row = found[name]
        print(
            f"  {name:<30} {row['rate_hz']:.1f} Hz, {100 * row['cpu_share']:.2f} % of a core, largest gap"
            f" {1e3 * row['gap_max_s']:.1f} ms, {100 * row['share_under_40_ms']:.2f} % under 40 ms,"
            f" steal {row['steal_s']:.2f} s"
        )
    for name, reached in found["reached"].items():
        print(f"  {'reached' if reached else 'MISSED '}  {name}")
    (folder / "bench.json").write_text(json.dumps(found, indent=1) + "\n")
    print(folder / "bench.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
