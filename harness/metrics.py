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
        definition="smallest cgroup memory limit under which the load survives, by bisection; the value is the"
        " smallest limit survived",
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
