"""What the host did to a trial: counters read just before and just after it, and their difference.

Reading is one function, arithmetic another: `difference` gets two snapshots and computes; it never touches the host.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.metrics import DISTURBANCE_COUNTERS
from harness.records import Disturbance
from harness.run.counters import Counters, read_counters

__all__ = ["Counters", "difference", "exceeded", "read_counters", "unguarded"]

#: /proc/stat and the processes' own times are counted by different clocks (ticks there, nanoseconds here). That the
#: trial used up to this fraction more than the host saw is rounding and becomes 0; beyond it the figure is unknown.
_ROUNDING_FRACTION = 0.05
#: ... and so much per CPU on top: two ticks of 10 ms, one at each end.
_ROUNDING_S_PER_CPU = 0.02

#: Counters that only ever grow while a host runs: a decrease means a wrap, a reset or another host.
_GROWING = (
    "steal_s",
    "psi_cpu_some_s",
    "psi_memory_some_s",
    "psi_io_some_s",
    "context_switches",
    "faults",
    "major_faults",
    "swap_in_bytes",
    "swap_out_bytes",
    "thp_faults",
    "thp_collapses",
    "oom_kills",
    "throttle_events",
    "quota_throttled_s",
)


def difference(
    before: Counters, after: Counters, *, own_cpu_s: float | None, thresholds: Mapping[str, float] | None = None
) -> Disturbance:
    """What happened between two readings, by the names of `DISTURBANCE_COUNTERS`. Pure.

    `own_cpu_s`: CPU seconds of the trial's processes and of the sampler, as far as they were seen; None if nobody
    looked. All children that were reaped in between are ours too, so the larger of the two counts: looking misses
    short-lived processes, reaping those that somebody else reaped. The harness's own time is known from
    the readings. `thresholds`: by counter name; what is over its threshold is in `exceeded`. A counter that is gone,
    went backwards or was never there is None with its reason, never 0 and never negative.
    """
    result = _Differences(before, after)
    for name in _GROWING:
        result.grow(name)
    result.foreign(own_cpu_s)
    for name in ("steal", "foreign_cpu"):
        result.fraction(name)
    result.take("load_1min", before, "load_1min")
    result.take("frequency_before_hz", before, "frequency_hz")
    result.take("frequency_after_hz", after, "frequency_hz")
    counters = {name: result.counters[name] for name in DISTURBANCE_COUNTERS}
    return Disturbance(counters=counters, missing=result.missing, exceeded=exceeded(counters, thresholds or {}))


def exceeded(counters: Mapping[str, float | None], thresholds: Mapping[str, float]) -> tuple[str, ...]:
    """Names whose value is over its threshold, in the thresholds' order. An unknown value exceeds nothing: `unguarded`
    says so before the run.
    """
    known = ((name, counters.get(name), limit) for name, limit in thresholds.items())
    return tuple(name for name, value, limit in known if value is not None and value > limit)


def unguarded(thresholds: Mapping[str, float], sample: Disturbance) -> tuple[str, ...]:
    """A sentence for each threshold that can never be exceeded here, because this host hides its counter."""
    return tuple(
        f"disturbance.{name}: this host cannot show it ({sample.missing.get(name, 'no such counter')});"
        " the threshold has no effect here"
        for name in thresholds
        if sample.counters.get(name) is None
    )


class _Differences:
    """Collects the counters of one trial; each name ends up with a value or a reason, never both."""

    def __init__(self, before: Counters, after: Counters) -> None:
        self.before, self.after = before, after
        self.counters: dict[str, float | None] = {}
        self.missing: dict[str, str] = {}

    def grow(self, name: str) -> None:
        grown = self._grown(name)
        self._set(name, grown) if isinstance(grown, float) else self._unknown(name, grown)

    def _grown(self, name: str) -> float | str:
        """How much a total grew, or why that is unknown."""
        for when, reading in (("before", self.before), ("after", self.after)):
            if name not in reading.values:
                other = self.after if when == "before" else self.before
                gone = f" {when} the trial only" if name in other.values else ""
                return reading.missing.get(name, "it was not read") + gone
        grown = self.after.values[name] - self.before.values[name]
        if grown < 0:
            first, last = self.before.values[name], self.after.values[name]
            return f"it went backwards, from {first:g} to {last:g}: a reset or a wrap"
        return float(grown)

    def foreign(self, own_cpu_s: float | None) -> None:
        busy, ours, name = self._grown("busy_s"), self._grown("self_cpu_s"), "foreign_cpu_s"
        reaped = self._grown("children_cpu_s")
        own = reaped if own_cpu_s is None else max(own_cpu_s, reaped if isinstance(reaped, float) else 0.0)
        unknown = next((value for value in (busy, ours, own) if isinstance(value, str)), None)
        if unknown is not None or isinstance(busy, str) or isinstance(ours, str) or isinstance(own, str):
            self._unknown(name, unknown or "")
            return
        foreign, cpus = busy - ours - own, self.after.values.get("cpus", 1)
        if foreign < -(_ROUNDING_FRACTION * (own + ours) + _ROUNDING_S_PER_CPU * cpus):
            seen = f"the trial and the harness used {own + ours:.2f} s, but /proc/stat counted {busy:.2f} s"
            self._unknown(name, f"{seen}: it does not show the whole host")
            return
        self._set(name, max(0.0, foreign))

    def fraction(self, name: str) -> None:
        seconds, wall = self.counters.get(f"{name}_s"), self.after.at - self.before.at
        first, last = (reading.values.get("cpus") for reading in (self.before, self.after))
        if seconds is None:
            self._unknown(f"{name}_fraction", self.missing[f"{name}_s"])
        elif not first or first < 1:
            self._unknown(f"{name}_fraction", "the number of online CPUs is unknown")
        elif first != last:
            self._unknown(f"{name}_fraction", f"the number of online CPUs changed from {first} to {last}")
        elif wall <= 0:
            self._unknown(f"{name}_fraction", "no time passed between the two readings")
        else:
            self._set(f"{name}_fraction", seconds / (wall * first))

    def take(self, name: str, reading: Counters, source: str) -> None:
        value = reading.values.get(source)
        if value is None:
            self._unknown(name, reading.missing.get(source, "it was not read"))
        else:
            self._set(name, value)

    def _set(self, name: str, value: float) -> None:
        self.counters[name] = value

    def _unknown(self, name: str, reason: str) -> None:
        self.counters[name] = None
        self.missing[name] = reason
