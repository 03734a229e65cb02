"""The registry of metrics: what each number is, in which unit, which direction is better, and where it comes from.

A metric is one number per trial. Iterations inside a trial collapse to their median: they are not replicates
(issues of pooled samples: see docs/measuring.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Better(StrEnum):
    """Which direction of a metric is better."""

    LOWER = "lower"
    HIGHER = "higher"


class Kind(StrEnum):
    """How a metric may be compared."""

    SAMPLED = "sampled"  # varies from trial to trial: block analysis
    PEAK = "peak"  # a largest reading, known as a bracket [lower, upper]: block analysis, and brackets must be disjoint
    EXACT = "exact"  # repeats to the last digit (bytes of a checkpoint): compared exactly, no statistics
    WINDOWED = "windowed"  # one value per text window (perplexity): paired over the same windows


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric's definition.

    `unit`: base unit of the recorded number. `resolution`: smallest difference the reading can show, in `unit`; None
    means one part in a million of the value. `needs`: parts of a trial that exist only for this metric (`settle`,
    `trim`, `prefill`, ...), so that nothing idle runs unless it was asked for. `positive`: a value of 0 or less is no
    reading at all. `source`: the convention or program that the definition follows.
    """

    name: str
    unit: str
    better: Better
    definition: str
    source: str
    kind: Kind = Kind.SAMPLED
    resolution: float | None = None
    needs: frozenset[str] = frozenset()
    positive: bool = True


_KERNEL = "Linux proc_pid_status(5)"

_ALL: Final = (
    Metric(
        name="prefill_tokens_per_s",
        unit="tokens/s",
        better=Better.HIGHER,
        needs=frozenset({"prefill"}),
        definition="prompt tokens divided by the time to the first token, for one request of exactly n tokens with one"
        " output token; median over the trial's iterations",
        source="llama-bench pp n",
    ),
    Metric(
        name="decode_tokens_per_s",
        unit="tokens/s",
        better=Better.HIGHER,
        needs=frozenset({"decode"}),
        definition="(output tokens - 1) divided by the time from the first to the last token of one request; median"
        " over the trial's iterations",
        source="llama-bench tg n",
    ),
    Metric(
        name="settled_rss_anon",
        unit="B",
        better=Better.LOWER,
        needs=frozenset({"settle"}),
        resolution=64 * 4096,
        definition="sum of RssAnon over the arm's processes: median of the first window of at least 3 s after the last"
        " measured phase whose slope is under 1 MiB/s",
        source=_KERNEL,
    ),
    Metric(
        name="trimmed_rss_anon",
        unit="B",
        better=Better.LOWER,
        needs=frozenset({"settle", "trim"}),
        resolution=64 * 4096,
        definition="sum of RssAnon after every process of the engine was asked for its arenas back (malloc_trim), by"
        " the same settling rule",
        source=_KERNEL + ", malloc_trim(3)",
    ),
    Metric(
        name="peak_rss_anon",
        unit="B",
        better=Better.LOWER,
        kind=Kind.PEAK,
        resolution=64 * 4096,
        definition="largest sum of RssAnon over the arm's processes in the trial, as a bracket; the value is its lower"
        " end, the largest sampled sum",
        source=_KERNEL,
    ),
    Metric(
        name="load_peak_rss_anon",
        unit="B",
        better=Better.LOWER,
        kind=Kind.PEAK,
        resolution=64 * 4096,
        definition="as peak_rss_anon, over the phase `load` only",
        source=_KERNEL,
    ),
    Metric(
        name="load_s",
        unit="s",
        better=Better.LOWER,
        definition="duration of the phase `load`: from asking for the engine to the engine ready for a request,"
        " compilation included",
        source="CLOCK_MONOTONIC of the driver",
    ),
    Metric(
        name="wall_s",
        unit="s",
        better=Better.LOWER,
        definition="from just before the arm's process is started to the exit of that process",
        source="CLOCK_MONOTONIC of the harness",
    ),
    Metric(
        name="survival_limit",
        unit="B",
        better=Better.LOWER,
        needs=frozenset({"survival"}),
        kind=Kind.PEAK,
        resolution=4 * 1024**2,
        definition="smallest cgroup memory limit under which the arm survives, by bisection with probes that are trials"
        " on record; the value is the smallest limit survived, the bracket begins at the largest one that was not",
        source="Linux memory cgroup",
    ),
    Metric(
        name="bits_per_weight",
        unit="bit/weight",
        better=Better.LOWER,
        kind=Kind.EXACT,
        definition="bits stored for the model's weights divided by their number",
        source="checkpoint files",
    ),
    Metric(
        name="checkpoint_bytes",
        unit="B",
        better=Better.LOWER,
        kind=Kind.EXACT,
        resolution=1.0,
        definition="bytes of the checkpoint's weight files",
        source="checkpoint files",
    ),
    Metric(
        name="perplexity",
        unit="1",
        better=Better.LOWER,
        kind=Kind.WINDOWED,
        needs=frozenset({"quality"}),
        definition="exp of the mean negative log-likelihood per token over fixed windows, first position skipped",
        source="llama-perplexity",
    ),
)

#: Built-in metrics by name. An experiment may define more in its own file.
REGISTRY: Final = {metric.name: metric for metric in _ALL}

#: What the host did to a trial, by counter name: what an experiment's `disturbance` may set a threshold for. A value
#: over its threshold is a disturbance. Fractions are of all CPU time that the host had: wall time x online CPUs.
DISTURBANCE_COUNTERS: Final = {
    "steal_s": "CPU seconds that the hypervisor gave to somebody else while this host wanted them",
    "steal_fraction": "steal_s / (wall time x online CPUs)",
    "foreign_cpu_s": "busy CPU seconds of the host less those of the trial's processes, the harness and its sampler",
    "foreign_cpu_fraction": "foreign_cpu_s / (wall time x online CPUs)",
    "psi_cpu_some_s": "seconds in which some task of the host waited for a CPU (PSI)",
    "psi_memory_some_s": "seconds in which some task of the host waited for memory (PSI)",
    "psi_io_some_s": "seconds in which some task of the host waited for input or output (PSI)",
    "context_switches": "context switches of the whole host",
    "faults": "page faults of the whole host, minor ones included",
    "major_faults": "page faults of the whole host that had to read from disk",
    "swap_in_bytes": "bytes read back from swap, whole host",
    "swap_out_bytes": "bytes written to swap, whole host",
    "thp_faults": "huge pages given at a page fault, whole host",
    "thp_collapses": "huge pages that khugepaged made of small ones, whole host: RssAnon grows without a fault",
    "oom_kills": "processes that the kernel killed for want of memory, whole host",
    "throttle_events": "thermal throttle events, cores and packages added up",
    "quota_throttled_s": "seconds for which a CPU quota of the harness's cgroup stopped its threads",
    "load_1min": "load average over one minute at the trial's start; the trial before it is in it",
    "frequency_before_hz": "mean current frequency of all CPUs at the trial's start",
    "frequency_after_hz": "mean current frequency of all CPUs at the trial's end",
}
