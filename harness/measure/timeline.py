"""A meter's log as two series: the sampled sums at each tick, and what can bound them between two ticks. Pure.

Interval k lies between ticks k and k+1. What a process may have held in it:

- read at both ends: its high-water mark at k+1, less the least file and shared pages seen around the interval (the
  mark counts them too). The mark only rises until it is reset, and it is reset at phase boundaries alone;
- born in it: its mark at k+1, with nothing taken off: nobody saw how many file pages it had;
- ended in it: its mark at exit from the kernel, else ru_maxrss of its reaping (never less), else nothing valid;
- born and ended in it: the same;
- exec'd in it: what it held before the exec has only ru_maxrss as a bound.

A child that has not exec'd yet shows its parent's pages: until its exec it holds nothing here. One that never execs is
a worker, and counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from harness.measure.counter_error import counter_error
from harness.meterlog import Change, MeterLog, MeterProcess

#: Least file and shared pages are taken over this many more ticks on either side: a map that is dropped for a moment
#: between two ticks is then seen at a neighbour.
_AROUND: Final = 2
#: Without the kernel's events, a child that was gone sooner than this without an exec may have been on its way to one.
_WORKER_S: Final = 1.0
_FOREVER: Final = float("inf")
_MOMENT: Final = 1e-9


@dataclass(frozen=True)
class Part:
    """What one process may have held during part of an interval: bytes, or None with the reason."""

    begin: float
    end: float
    bound: int | None
    why: str = ""


@dataclass
class Timeline:
    """Series of one trial. `sums`, `unique`: sampled S and a lower bound of U at each tick, None where a process could
    not be read. `shmem`, `file`, `swap`: sampled sums. `largest`: what the largest process held at each
    tick, and its index. `parts`: by interval.
    `forks`: intervals in which a worker that never exec'd shared pages. `counts`: processes at each tick.
    """

    ticks: Sequence[float]
    sums: list[int | None]
    unique: list[int | None]
    shmem: list[int]
    file: list[int]
    swap: list[int]
    largest: list[tuple[int, int]]
    counts: list[int]
    parts: dict[int, list[Part]]
    forks: set[int] = field(default_factory=set)
    peaks: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)

    def bound(self, interval: int) -> Part:
        """The largest sum that the interval can have held, and why there is none."""
        parts = self.parts.get(interval, [])
        for part in parts:
            if part.bound is None:
                return part
        return Part(self.ticks[interval], self.ticks[interval + 1], largest_overlap(parts))


def largest_overlap(parts: Sequence[Part]) -> int:
    """Largest sum of bounds of parts that hold at one time; parts that touch count as one after the other."""
    steps = sorted(
        [(part.begin, 1, part.bound or 0) for part in parts] + [(part.end, 0, -(part.bound or 0)) for part in parts]
    )
    now = most = 0
    for _, _, step in steps:
        now += step
        most = max(most, now)
    return most


def timeline(meter: MeterLog) -> Timeline:
    """Both series of a log."""
    n = len(meter.ticks)
    made = Timeline(
        ticks=meter.ticks,
        sums=[0] * n,
        unique=[0] * n,
        shmem=[0] * n,
        file=[0] * n,
        swap=[0] * n,
        largest=[(-1, -1)] * n,
        counts=[0] * n,
        parts=defaultdict(list),
    )
    changes: dict[int, list[Change]] = defaultdict(list)
    for change in meter.changes:
        changes[change.process].append(change)
    families: list[dict[int, int]] = [{} for _ in range(n)]
    family = _families(meter.processes)
    for process in meter.processes:
        _Track(meter, process, changes.get(process.index, [])).add_to(made, families, family[process.index])
    for tick in range(n):
        if made.sums[tick] is None:
            made.unique[tick] = None
        else:
            made.unique[tick] = sum(families[tick].values())
    for tick, count in meter.unaccounted.items():
        if tick > 0:
            why = f"{count} pids were given out between two samples to processes that nobody saw"
            made.parts[tick - 1].append(Part(meter.ticks[tick - 1], meter.ticks[tick], None, why))
    return made


def _families(processes: Sequence[MeterProcess]) -> list[int]:
    """For each process, the one whose pages it may share: itself once it exec'd, else its parent's."""
    found: list[int] = []
    for process in processes:
        shares = process.forked and not process.execs and process.parent is not None and process.parent < process.index
        found.append(found[process.parent] if shares and process.parent is not None else process.index)
    return found


class _Track:
    """One process over the ticks."""

    def __init__(self, meter: MeterLog, process: MeterProcess, changes: list[Change]) -> None:
        self.meter = meter
        self.process = process
        self.ticks = meter.ticks
        self.rows = _last_of_each_tick(changes)
        self.resets = {boundary.tick for boundary in meter.boundaries}
        error = counter_error(meter.host.kernel, meter.host.cpus, meter.host.page, self.process.threads)
        self.error = error.mark + 2 * error.reading  # the mark's, and those of file and shared pages taken off it
        self.first = self.rows[0].tick if self.rows else len(self.ticks)
        self.gone = next((row.tick for row in self.rows if row.state in ("gone", "zombie")), None)
        self.begin = self._begin()
        self.end = self._end()
        self.execs = self._execs()
        self.counted_from = self._counted_from()

    def _begin(self) -> float:
        if self.process.born is not None:
            return self.process.born
        return self.ticks[self.first - 1] if 0 < self.first < len(self.ticks) else -_FOREVER

    def _end(self) -> float:
        ended = self.process.ended
        # The kernel tells when the main thread ends; the others may go on and hold everything.
        if ended is not None and not any(row.state == "ok" and self.ticks[row.tick] > ended for row in self.rows):
            return ended
        return self.ticks[self.gone] if self.gone is not None else _FOREVER

    def _execs(self) -> list[float]:
        """Execs told or seen; without events also those that a fallen mark betrays, at the tick before it was read."""
        found = list(self.process.execs)
        if self.meter.host.events:
            return found
        found = [max(self.ticks[max(_interval(self.ticks, time), 0)] - _MOMENT, self.begin) for time in found]
        read = [row for row in self.rows if row.full]
        for before, after in pairwise(read):
            fell = before.state == after.state == "ok" and after.hwm < before.hwm
            told = any(self.ticks[before.tick] <= time for time in found if time <= self.ticks[after.tick] + 0.5)
            if fell and not told and not any(before.tick <= tick < after.tick for tick in self.resets):
                found.append(self.ticks[after.tick] - _MOMENT)
        return sorted(found)

    def _counted_from(self) -> float:
        """When the process begins to count: at its exec if it was on the way to one."""
        launcher = self.process.index == 0 and self.meter.host.behind_launcher
        if launcher or self.process.forked:
            if self.execs:
                return self.execs[0]
            return _FOREVER if launcher else self.begin
        return self.begin

    @property
    def _perhaps_on_the_way(self) -> bool:
        """Gone so soon that, without events, it cannot be told from a child between fork and exec."""
        lived = self.end - self.begin
        return self.process.forked and not self.execs and not self.meter.host.events and lived < _WORKER_S

    def add_to(self, line: Timeline, families: list[dict[int, int]], family: int) -> None:
        self._sample(line, families, family)
        self._bound(line)

    def _sample(self, line: Timeline, families: list[dict[int, int]], family: int) -> None:
        index = self.process.index
        for row, end in self._runs():
            if row.state in ("denied", "field_missing"):
                line.unknown.add(index)
                for tick in range(row.tick, end):
                    line.sums[tick] = None
                continue
            if row.state != "ok" or self._perhaps_on_the_way:
                continue
            for tick in range(row.tick, end):
                if self.ticks[tick] < self.counted_from:
                    continue
                total = line.sums[tick]
                line.sums[tick] = None if total is None else total + row.anon
                line.shmem[tick] += row.shmem
                line.file[tick] += row.file
                line.swap[tick] += row.swap
                line.counts[tick] += 1
                families[tick][family] = max(families[tick].get(family, 0), row.anon)
                if row.anon > line.peaks.get(index, -1):
                    line.peaks[index] = row.anon
                line.seen[index] = line.seen.get(index, 0) + 1
                if row.anon > line.largest[tick][0]:
                    line.largest[tick] = (row.anon, index)

    def _runs(self) -> list[tuple[Change, int]]:
        """Each row with the tick at which the next begins."""
        ends = [row.tick for row in self.rows[1:]] + [len(self.ticks)] * bool(self.rows)
        return [(row, end) for row, end in zip(self.rows, ends, strict=True) if end > row.tick]

    # ---- bounds

    def _bound(self, line: Timeline) -> None:
        n = len(self.ticks)
        if n < 2 or self.end <= self.ticks[0]:
            return
        if self.counted_from == _FOREVER:
            # Not 0: the arm may have run unseen under the launcher's number.
            why = f"{self._who} was never seen to become the arm, so what the arm held is not known"
            for interval, (begin, end) in enumerate(pairwise(self.ticks)):
                line.parts[interval].append(Part(begin, end, None, why))
            return
        start = max(self.begin, self.counted_from)
        first = _interval(self.ticks, start)
        last = _interval(self.ticks, self.end) if self.end != _FOREVER else n - 2
        forked = self.process.forked and not self.execs
        marks, least = self._marks(), self._least_file()
        for interval in range(max(first, 0), min(last, n - 2) + 1):
            begin, end = self.ticks[interval], self.ticks[interval + 1]
            part = self._part(interval, max(begin, start), min(end, self.end), marks, least)
            line.parts[interval].append(part)
            if forked:
                line.forks.add(interval)

    def _part(self, interval: int, begin: float, end: float, marks: dict[int, int], least: dict[int, int]) -> Part:
        left, right = self._state(interval), self._state(interval + 1)
        if "unknown" in (left, right):
            return Part(begin, end, None, f"{self._who} could not be read")
        born = self.begin > self.ticks[interval] or left is None or self.counted_from > self.ticks[interval]
        off = 0 if born else least.get(interval, 0)
        if right == "ok":
            # Where marks are begun anew between the two ticks, the one before them still counts.
            before_reset = marks.get(interval, 0) if interval in self.resets else 0
            bound: int | None = max(marks[interval + 1], before_reset) - off
            why = ""
        else:
            bound, why = self._exit_bound(off)
        if bound is not None and any(
            self.ticks[interval] < time <= self.ticks[interval + 1] for time in self.execs[self._own_execs :]
        ):
            before = self.process.max_rss
            why = f"{self._who} exec'd between two samples, and what it held before is not known"
            bound = None if before is None else max(bound, before)
        return Part(begin, end, None if bound is None else max(bound, 0) + self.error, why)

    @property
    def _own_execs(self) -> int:
        """Execs that only end the life as a copy of the parent or as the launcher do not count."""
        return 1 if self.execs and self.counted_from == self.execs[0] else 0

    def _exit_bound(self, off: int) -> tuple[int | None, str]:
        told = [mark for mark in (self.process.exit_mark, self.process.max_rss) if mark is not None]
        if told:
            return min(told) - off, ""
        return None, f"{self._who} ended between two samples and no mark of its exit is known"

    @property
    def _who(self) -> str:
        return f"process {self.process.name or 'unnamed'} ({self.process.pid})"

    def _state(self, tick: int) -> str | None:
        """`ok`, `ended`, `unknown`, or None before the first reading."""
        row = self._row(tick)
        if row is None:
            return None
        if row.state == "ok":
            return "ok"
        return "ended" if row.state in ("gone", "zombie") else "unknown"

    def _row(self, tick: int) -> Change | None:
        low, high = 0, len(self.rows)
        while low < high:
            middle = (low + high) // 2
            if self.rows[middle].tick <= tick:
                low = middle + 1
            else:
                high = middle
        return self.rows[low - 1] if low else None

    def _marks(self) -> dict[int, int]:
        """High-water mark at each tick. It may have risen since it was last read, at most `stride` ticks ago."""
        found: dict[int, int] = {}
        for row, end in self._runs():
            if row.state == "ok":
                for tick in range(row.tick, end):
                    found[tick] = row.hwm
        read = [row for row in self.rows if row.full]
        for before, after in pairwise(read):
            if before.state == after.state == "ok" and after.hwm > before.hwm:
                for tick in range(max(before.tick, after.tick - self.meter.host.stride) + 1, after.tick):
                    found[tick] = max(found.get(tick, 0), after.hwm)
        return found

    def _least_file(self) -> dict[int, int]:
        """Least file and shared pages around each interval."""
        at: dict[int, int] = {}
        for row, end in self._runs():
            if row.state == "ok":
                for tick in range(row.tick, end):
                    at[tick] = row.file + row.shmem
        return {tick: min(at[near] for near in range(tick - _AROUND, tick + 2 + _AROUND) if near in at) for tick in at}


def _last_of_each_tick(changes: list[Change]) -> list[Change]:
    """One row a tick; a later reading at the same tick replaces the earlier, but a mark never falls within one."""
    rows: list[Change] = []
    for change in changes:
        if change.tick < 0:
            continue
        if rows and rows[-1].tick == change.tick:
            before = rows.pop()
            if before.state == change.state == "ok":
                kept = max(before.hwm, change.hwm)
                change = change._replace(hwm=kept, full=before.full or change.full)  # noqa: PLW2901  # the row to keep
        rows.append(change)
    return rows


def _interval(ticks: Sequence[float], t: float) -> int:
    """The interval that holds a time: the number of ticks before it, less one."""
    low, high = 0, len(ticks)
    while low < high:
        middle = (low + high) // 2
        if ticks[middle] < t:
            low = middle + 1
        else:
            high = middle
    return low - 1
