"""A meter's log -> the memory of a trial: a bracket for each phase, steady levels, and what sampling cost. Pure.

S is the sum of RssAnon over the processes, U the unique anonymous memory; both have their own bracket. The lower end is
the largest reading, the upper end the least bound that is valid (timeline.py says which), and None with a reason where
there is none. A phase begins and ends for the meter when it reset the marks, some 0.2 ms after the driver said so; what
rises and falls within that lag is in the trial's bracket and in the phase before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from harness.events import Events
from harness.measure.counter_error import counter_error
from harness.measure.settling import NeverSettled, settle
from harness.measure.timeline import Timeline, timeline
from harness.meterlog import MeterLog
from harness.records import MemoryRecord, PhaseMemory, SamplerCost

#: Name of the record over all phases.
TRIAL: Final = "trial"
#: A boundary that the meter noticed later than this leaves its phase without an upper bound.
_LATE_S: Final = 0.25
#: Processes listed by name; beyond them only their number is kept.
_LISTED: Final = 50


@dataclass(frozen=True)
class Span:
    """Ticks and intervals of one phase. `after`: last tick before it (-1: none); `last`: its last tick. `problem`: why
    its marks do not bound it.
    """

    after: int
    last: int
    problem: str = ""

    @property
    def ticks(self) -> range:
        """Its samples."""
        return range(self.after + 1, self.last + 1)

    @property
    def intervals(self) -> range:
        """Intervals wholly inside; if there is none, the one around it."""
        inside = range(self.after + 1, self.last)
        return inside or range(max(self.after, 0), max(self.after, 0) + 1)


def memory_record(meter: MeterLog, events: Events) -> MemoryRecord:
    """The memory of one trial. A log that is cut short raises nothing: what cannot be told is None, with its reason."""
    line = timeline(meter)
    names = list(dict.fromkeys(phase.name for phase in events.phases))
    spans = _spans(meter)
    phases = [_phase(meter, line, name, spans.get(name, [])) for name in names]
    phases.append(_phase(meter, line, TRIAL, [Span(-1, len(meter.ticks) - 1)], whole=True))
    levels, missing = _levels(meter, line, spans)
    return MemoryRecord(
        backend=meter.host.backend,
        phases=tuple(phases),
        levels=levels,
        levels_missing=missing,
        processes=_processes(meter, line),
        cost=_cost(meter, line),
        samples_path=meter.samples_path,
        lost=meter.lost,
    )


def _spans(meter: MeterLog) -> dict[str, list[Span]]:
    """Where each phase lies among the ticks; a phase that comes again has several spans."""
    found: dict[str, list[Span]] = {}
    opened: dict[str, tuple[int, str]] = {}
    for boundary in meter.boundaries:
        late = f"the meter saw a boundary of the phase {boundary.lag_s:.2f} s late" if boundary.lag_s > _LATE_S else ""
        if boundary.begin:
            opened[boundary.name] = (boundary.tick, late)
        elif boundary.name in opened:
            begin, problem = opened.pop(boundary.name)
            found.setdefault(boundary.name, []).append(Span(begin, boundary.tick, problem or late))
    for name, (begin, problem) in opened.items():
        found.setdefault(name, []).append(Span(begin, len(meter.ticks) - 1, problem))
    return found


def _phase(meter: MeterLog, line: Timeline, name: str, spans: Sequence[Span], *, whole: bool = False) -> PhaseMemory:
    ticks = [tick for span in spans for tick in span.ticks]
    intervals = [each for span in spans for each in span.intervals if each < len(line.ticks) - 1]
    if not ticks or not intervals:
        why = "no sample lies in this phase"
        upper, why_not = _s_upper(line, intervals, spans) if intervals else (None, why)
        return PhaseMemory(
            phase=name,
            samples=len(ticks),
            s_upper=upper,
            s_upper_missing=why_not,
            u_upper=upper,
            u_upper_missing=why_not,
        )
    s_lower, peak = _largest(line.sums, ticks)
    u_lower, _ = _largest(line.unique, ticks)
    if s_lower is not None and peak is not None:
        threads = max((process.threads for process in meter.processes), default=1)
        error = counter_error(meter.host.kernel, meter.host.cpus, meter.host.page, threads).reading * line.counts[peak]
        s_lower = max(0, s_lower - error)
        u_lower = max(0, u_lower - error) if u_lower is not None else None
    s_upper, s_why = _s_upper(line, intervals, spans)
    mark, mark_why = _cgroup_mark(meter, spans, whole=whole)
    if mark is not None and _unshared(meter, line, intervals) and (s_upper is None or mark < s_upper):
        s_upper, s_why = mark, None
    u_upper, u_why = _least((s_upper, s_why), (mark, mark_why))
    return PhaseMemory(
        phase=name,
        samples=len(ticks),
        s_lower=s_lower,
        s_upper=None if s_upper is None else max(s_upper, s_lower or 0),
        s_upper_missing=s_why,
        u_lower=u_lower,
        u_upper=None if u_upper is None else max(u_upper, u_lower or 0),
        u_upper_missing=u_why,
        peak_t=None if peak is None else line.ticks[peak],
        peak_process=None if peak is None else _name(meter, line.largest[peak][1]),
        max_rss_shmem=max(line.shmem[tick] for tick in ticks),
        max_rss_file=max(line.file[tick] for tick in ticks),
        max_vm_swap=max(line.swap[tick] for tick in ticks),
        max_anon_huge=_huge(meter, line, ticks),
    )


def _largest(series: Sequence[int | None], ticks: Sequence[int]) -> tuple[int | None, int | None]:
    """Largest known value and its tick. Ticks at which a process could not be read are left out: never a part-sum."""
    best: tuple[int | None, int | None] = (None, None)
    for tick in ticks:
        value = series[tick]
        if value is not None and (best[0] is None or value > best[0]):
            best = (value, tick)
    return best


def _s_upper(line: Timeline, intervals: Sequence[int], spans: Sequence[Span]) -> tuple[int | None, str | None]:
    problem = next((span.problem for span in spans if span.problem), None)
    if problem:
        return None, problem
    most = 0
    for interval in intervals:
        part = line.bound(interval)
        if part.bound is None:
            return None, part.why
        most = max(most, part.bound)
    return most, None


def _cgroup_mark(meter: MeterLog, spans: Sequence[Span], *, whole: bool) -> tuple[int | None, str | None]:
    """The cgroup's own high-water mark over the spans: page cache and kernel memory charged to it are in it."""
    if meter.host.backend == "none":
        return None, "no cgroup"
    if meter.outside:
        return None, f"{len(meter.outside)} processes were outside the trial's cgroup"
    if not meter.host.mark_resets:
        whole = True  # one mark for all: valid for each phase, and as wide as the trial
    marks = [
        reading.mark
        for reading in meter.cgroup
        if whole or any(span.after < reading.tick <= span.last for span in spans)
    ]
    known = [mark for mark in marks if mark is not None]
    if not known or len(known) < len(marks):
        return None, "the cgroup tells no high-water mark here"
    return max(known), None


def _unshared(meter: MeterLog, line: Timeline, intervals: Sequence[int]) -> bool:
    """Whether every process had exec'd, so that no page was counted twice and U's bound holds for S too.

    Only the kernel's events can show that nobody was missed.
    """
    if not meter.host.events or meter.unaccounted:
        return False
    return not line.forks.intersection(intervals)


def _least(*bounds: tuple[int | None, str | None]) -> tuple[int | None, str | None]:
    known = [bound for bound, _ in bounds if bound is not None]
    if known:
        return min(known), None
    return None, "; ".join(dict.fromkeys(why for _, why in bounds if why))


def _huge(meter: MeterLog, line: Timeline, ticks: Sequence[int]) -> int | None:
    begin, end = line.ticks[ticks[0]], line.ticks[ticks[-1]]
    found = [reading.anon_huge for reading in meter.pss if begin <= reading.t <= end and not reading.unknown]
    # Between two looks at smaps_rollup, which is kept out of timed phases, the cgroup knows: at each boundary and look.
    found += [r.huge for r in meter.cgroup if r.huge is not None and begin <= r.t <= end]
    return max(found) if found else None


def _levels(
    meter: MeterLog, line: Timeline, spans: Mapping[str, Sequence[Span]]
) -> tuple[dict[str, int | None], dict[str, str]]:
    """`settled` from the phase `settle`, `trimmed` from `trim`, and `pss_anon_settled`."""
    levels: dict[str, int | None] = {}
    missing: dict[str, str] = {}
    for level, phase in (("settled", "settle"), ("trimmed", "trim")):
        levels[level], why = _level(meter, line, phase, spans.get(phase, []))
        if why:
            missing[level] = why
    reading = meter.pss[-1] if meter.pss else None
    levels["pss_anon_settled"] = None if reading is None or reading.unknown else reading.pss_anon
    if reading is None:
        missing["pss_anon_settled"] = "no phase settle ended, and it is read only there"
    elif reading.unknown:
        missing["pss_anon_settled"] = f"smaps_rollup of {reading.unknown} processes could not be read"
    return levels, missing


def _level(meter: MeterLog, line: Timeline, phase: str, spans: Sequence[Span]) -> tuple[int | None, str | None]:
    if not spans:
        return None, f"the trial had no phase {phase}"
    if meter.lost:
        return None, f"the meter's record is incomplete: {meter.lost}"
    ticks = list(spans[-1].ticks)
    if any(line.sums[tick] is None for tick in ticks):
        return None, "a process could not be read in this phase, and a part-sum is no level"
    found = settle([line.ticks[tick] for tick in ticks], [line.sums[tick] or 0 for tick in ticks])
    return (None, found.why) if isinstance(found, NeverSettled) else (found.level, None)


def _name(meter: MeterLog, index: int) -> str | None:
    if not 0 <= index < len(meter.processes):
        return None
    process = meter.processes[index]
    return f"{process.name} ({process.pid})"


def _processes(meter: MeterLog, line: Timeline) -> tuple[Mapping[str, Any], ...]:
    """Each process's name, pid, samples and largest RssAnon, the largest first; only as many as a reader can use."""
    ordered = sorted(meter.processes, key=lambda process: (-line.peaks.get(process.index, 0), process.index))
    return tuple(
        {
            "name": process.name,
            "pid": process.pid,
            "found_by": process.origin,
            "samples": line.seen.get(process.index, 0),
            "max_rss_anon": line.peaks.get(process.index),
            "exit_status": process.exit_status,
        }
        for process in ordered[:_LISTED]
    )


def _cost(meter: MeterLog, line: Timeline) -> SamplerCost:
    gaps = sorted(after - before for before, after in zip(meter.ticks, meter.ticks[1:], strict=False))
    return SamplerCost(
        samples=len(meter.ticks),
        cpu_s=meter.cost.cpu_s,
        wall_s=meter.cost.wall_s,
        period_s=meter.cost.period_s,
        gap_max_s=gaps[-1] if gaps else None,
        gap_p999_s=gaps[min(len(gaps) - 1, int(len(gaps) * 0.999))] if gaps else None,
        seen_once=sum(count == 1 for count in line.seen.values()),
        vanished=len(meter.processes) - len(line.seen),
        unknown=len(line.unknown),
    )
