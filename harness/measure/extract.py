"""Where each metric of a trial is found: iterations, phases, memory, quality, or what the arm reported. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from harness.events import Events
from harness.experiment.types import Experiment
from harness.measure.quality import perplexity
from harness.measure.readings import Bad, Lost, NotReached, Reading, collapse, reported
from harness.measure.speed import decode, phase_seconds, prefill
from harness.metrics import Metric
from harness.records import MemoryRecord, TrialRecord, Value


@dataclass(frozen=True)
class _Trial:
    """What a metric may be read from."""

    workload: Mapping[str, Any]
    record: TrialRecord
    events: Events


def extract(metric: Metric, experiment: Experiment, record: TrialRecord, events: Events) -> Reading:
    """One metric of one trial that ended well: its value, or why there is none."""
    source = _SOURCES.get(metric.name)
    trial = _Trial(experiment.workload, record, events)
    if metric.name in _MEMORY and experiment.arm(record.arm).sampler_hz == 0:
        return NotReached(f"{metric.name}: the arm's sampler is off (`sampler: {{hz: 0}}`), so no memory was read")
    found = source(metric, trial) if source is not None else reported(metric, events)
    return replace(found, unit=metric.unit) if isinstance(found, Value) else found


def _perplexity(metric: Metric, trial: _Trial) -> Reading:
    if not trial.events.qualities:
        return reported(metric, trial.events)
    return perplexity(metric, trial.events.qualities, trial.workload.get("quality"))


def _level(metric: Metric, name: str, memory: MemoryRecord | None) -> Reading:
    if memory is None or memory.lost is not None:
        return Lost(f"{metric.name}: {memory.lost if memory else 'no memory was recorded'}")
    level = memory.levels.get(name)
    if level is None:
        return NotReached(f"{metric.name}: {memory.levels_missing.get(name, 'was not taken')}")
    return collapse(metric, [level])


def _peak(metric: Metric, phase: str, memory: MemoryRecord | None) -> Reading:
    if memory is None or memory.lost is not None:
        return Lost(f"{metric.name}: {memory.lost if memory else 'no memory was recorded'}")
    found = memory.phase(phase)
    if found is None:
        return Bad(f"{metric.name}: missing; the trial had no phase `{phase}`")
    if found.s_lower is None:
        return Lost(f"{metric.name}: no sample fell into it ({found.samples} samples)")
    value = collapse(metric, [found.s_lower])
    if isinstance(value, Bad):
        return value
    upper = None if found.s_upper is None else float(found.s_upper)
    return replace(value, lower=value.value, upper=upper, upper_missing=found.s_upper_missing, series=())


def _survival(metric: Metric, trial: _Trial) -> Reading:
    found = trial.record.survival
    if found is None or found.host_lacks:
        return Bad(f"{metric.name}: missing; {found.missing if found else 'no probe was run'}")
    if found.upper is None or found.lower is None:
        return NotReached(f"{metric.name}: {found.missing}")
    return Value(value=float(found.upper), lower=float(found.lower), upper=float(found.upper))


#: Read from the sampler's record.
_MEMORY: Final = frozenset({"settled_rss_anon", "trimmed_rss_anon", "peak_rss_anon", "load_peak_rss_anon"})
#: By metric name; every other metric is what the arm reported under its name.
_SOURCES: Final[Mapping[str, Callable[[Metric, _Trial], Reading]]] = {
    "prefill_tokens_per_s": lambda metric, trial: prefill(metric, trial.events, trial.workload.get("prefill")),
    "decode_tokens_per_s": lambda metric, trial: decode(metric, trial.events, trial.workload.get("decode")),
    "load_s": lambda metric, trial: phase_seconds(metric, "load", trial.events),
    "wall_s": lambda metric, trial: collapse(metric, [trial.record.ended - trial.record.began]),
    "perplexity": _perplexity,
    "settled_rss_anon": lambda metric, trial: _level(metric, "settled", trial.record.memory),
    "trimmed_rss_anon": lambda metric, trial: _level(metric, "trimmed", trial.record.memory),
    "peak_rss_anon": lambda metric, trial: _peak(metric, "trial", trial.record.memory),
    "survival_limit": _survival,
    "load_peak_rss_anon": lambda metric, trial: _peak(metric, "load", trial.record.memory),
}
