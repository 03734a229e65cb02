"""What the memory meter recorded of one trial, as read back from its samples file. Pure; nothing here is judged.

The samples file is text, one record a line, the kind first; numbers are KiB as /proc gives them, times are
CLOCK_MONOTONIC nanoseconds. A process is named by its index of discovery. `V` is written only when a value changed: at
50 Hz most readings repeat, and writing all of them cost more than reading them.

    H json                            how it was measured: `MeterHost`
    P index,t,pid,start,ppid,parent,forked,origin,born,name   parent is an index; forked: not yet exec'd; born or -1
    T t                               a tick begins; the lines up to the next T are its readings
    V index,hwm,anon,file,shmem,swap  a reading that differs from the one before
    W index,anon,rest                 the same at a glance: anonymous memory and the rest of what is resident
    M index,threads                   more threads than before; kernels before 6.2 only, whose counters err by thread
    G index,state                     no reading: zombie, gone, denied, field_missing
    X index,t,name                    the process exec'd, and its name since
    D index,t,status,hwm              it ended: wait status and mark at its exit, -1 where nobody told
    B t,event_t,begin|end,name        a phase boundary; marks are reset after it
    R index                           a mark that could not be reset at that boundary
    C t,usage,mark,anon,file,shmem[,huge],reset   the cgroup's own figures in bytes, -1 where it has none
    S t,pss_anon,huge,unknown         sums over the tree from smaps_rollup, at settled
    U count                           pids given out since the last tick that nobody could account for
    O index                           a process that is not in the trial's cgroup
    L text                            something was lost
    E json                            the end: `MeterCost`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from harness.units import KIB

#: Version of the samples file. 1 (2026-12-01): first.
SAMPLES_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class MeterHost:
    """How a trial was measured. `backend`: `cgroup_v2`, `cgroup_v1` or `none`, `backend_why` the probe's reason.

    `events`: fork, exec and exit came from the kernel, so that no process can be missed; `exit_marks`: high-water marks
    at exit came from the kernel. `why_no_events`: the reason where either is False. `mark_resets`: the cgroup's mark
    can be reset. `behind_launcher`: the root process was still the launcher when metering began, so what it held before
    its exec is not the arm's. `stride`: a mark may be read up to that many ticks after it rose.
    """

    backend: str
    backend_why: str = ""
    kernel: tuple[int, int] = (0, 0)
    cpus: int = 1
    page: int = 4096
    events: bool = False
    exit_marks: bool = False
    why_no_events: str = ""
    mark_resets: bool = False
    behind_launcher: bool = False
    nice: int = 0
    stride: int = 1


@dataclass(frozen=True, kw_only=True)
class MeterProcess:
    """One process of the tree. Times are CLOCK_MONOTONIC seconds.

    `forked`: when found it had not exec'd since its fork. `origin`: how it was found (`root`, `child`, `session`,
    `token`, `cgroup`, `event`). `born`: when it was forked, None if only found later. `exit_status`: as wait gives it.
    `exit_mark`: high-water mark of its resident memory at exit, since the last reset, in bytes. `max_rss`: ru_maxrss of
    its reaping, in bytes, over its whole life and its own reaped children's: an upper bound only. `index`: its number
    in this log; `parent`: that of its parent, None if the parent is none of ours. `threads`: most threads
    seen, where it matters.
    """

    index: int
    pid: int
    start_ticks: int
    ppid: int
    parent: int | None
    name: str
    found: float
    forked: bool = False
    origin: str = ""
    born: float | None = None
    execs: tuple[float, ...] = ()
    ended: float | None = None
    exit_status: int | None = None
    exit_mark: int | None = None
    max_rss: int | None = None
    threads: int = 1


class Change(NamedTuple):
    """A reading that differs from the one before, bytes. `state`: `ok`, `zombie`, `gone`, `denied`, `field_missing`;
    numbers mean something only for `ok`. `full`: read in full; else `hwm` and `swap` are those of the reading before.
    """

    tick: int
    process: int
    state: str
    hwm: int = 0
    anon: int = 0
    file: int = 0
    shmem: int = 0
    swap: int = 0
    full: bool = True


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A phase boundary. `tick`: the last tick before the marks were reset. `t`: when the meter acted on it, `lag_s`
    after the driver's own time `event_t`. `not_reset`: processes whose mark could not be reset.
    """

    tick: int
    t: float
    event_t: float
    lag_s: float
    name: str
    begin: bool
    not_reset: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CgroupReading:
    """The cgroup's own figures, bytes, None where it has none. `mark`: high-water mark since the last reading with
    `reset`. `huge`: anonymous memory in huge pages, None in files written before it was read.
    """

    t: float
    tick: int
    usage: int | None
    mark: int | None
    anon: int | None
    file: int | None
    shmem: int | None
    reset: bool
    huge: int | None = None


@dataclass(frozen=True, kw_only=True)
class PssReading:
    """Sums over the tree from smaps_rollup, bytes; `unknown`: processes that could not be read."""

    t: float
    pss_anon: int
    anon_huge: int
    unknown: int


@dataclass(frozen=True, kw_only=True)
class MeterCost:
    """What sampling cost. Seconds. `cpu_s`: of the sampler's whole life, of which `startup_cpu_s` went before the first
    tick. `period_s`: of the load phase.
    """

    ticks: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    period_s: float = 0.0
    startup_cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MeterLog:
    """Everything the meter recorded of one trial. `ticks`: time of each sample, seconds. `lost`: why it is incomplete.
    `unaccounted`: ticks before which some process may have lived and died unseen, with the number of pids.
    `outside`: processes that were not in the trial's cgroup. `unwritten`: why there is no samples file.
    """

    host: MeterHost
    ticks: tuple[float, ...] = ()
    processes: tuple[MeterProcess, ...] = ()
    changes: tuple[Change, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    cgroup: tuple[CgroupReading, ...] = ()
    pss: tuple[PssReading, ...] = ()
    unaccounted: Mapping[int, int] = field(default_factory=dict)
    outside: frozenset[int] = frozenset()
    cost: MeterCost = MeterCost()
    lost: str | None = None
    samples_path: str | None = None
    unwritten: str = ""

    def with_max_rss(self, max_rss: Mapping[int, int]) -> MeterLog:
        """The log with ru_maxrss (bytes, by pid) of processes that were reaped with wait4."""
        joined = tuple(replace(each, max_rss=max_rss.get(each.pid, each.max_rss)) for each in self.processes)
        return replace(self, processes=joined)


def lost_log(backend: str, why: str) -> MeterLog:
    """The log of a meter that recorded nothing that can be used."""
    return MeterLog(host=MeterHost(backend=backend), lost=why)


def parse_samples(lines: Iterable[str]) -> MeterLog:
    """Read a samples file. A torn or strange line is a loss that the log states, never an exception."""
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        try:
            reader.feed(line.rstrip("\n"))
        except (ValueError, IndexError, KeyError, TypeError, AttributeError):
            reader.losses.append(f"line {number} of the samples cannot be read")
    return reader.log()


class _Reader:
    """Collects one samples file; each `_x` reads one kind of line."""

    def __init__(self) -> None:
        self.host = MeterHost(backend="none")
        self.ticks: list[float] = []
        self.processes: list[dict[str, Any]] = []
        self.changes: list[Change] = []
        self._full: dict[int, Change] = {}
        self.boundaries: list[Boundary] = []
        self.cgroup: list[CgroupReading] = []
        self.pss: list[PssReading] = []
        self.unaccounted: dict[int, int] = {}
        self.outside: set[int] = set()
        self.losses: list[str] = []
        self.cost: MeterCost | None = None

    def feed(self, line: str) -> None:
        if line:
            getattr(self, f"_{line[0].lower()}")(line[2:])

    def log(self) -> MeterLog:
        if self.cost is None:
            self.losses.append("the sampler ended before the trial did")
        return MeterLog(
            host=self.host,
            ticks=tuple(self.ticks),
            processes=tuple(MeterProcess(**each) for each in self.processes),
            changes=tuple(self.changes),
            boundaries=tuple(self.boundaries),
            cgroup=tuple(self.cgroup),
            pss=tuple(self.pss),
            unaccounted=self.unaccounted,
            outside=frozenset(self.outside),
            cost=self.cost or MeterCost(ticks=len(self.ticks)),
            lost="; ".join(dict.fromkeys(self.losses)) or None,
        )

    def _h(self, rest: str) -> None:
        value = json.loads(rest)
        value["kernel"] = tuple(value["kernel"])
        value.pop("format")
        self.host = MeterHost(**value)

    def _p(self, rest: str) -> None:
        index, t, pid, start, ppid, parent, forked, origin, born, name = rest.split(",", 9)
        if int(index) != len(self.processes):
            raise ValueError(index)
        self.processes.append({
            "index": int(index), "pid": int(pid), "start_ticks": int(start), "ppid": int(ppid), "name": name,
            "parent": None if parent == "-1" else int(parent), "found": int(t) / 1e9, "forked": forked == "1",
            "origin": origin, "born": None if born == "-1" else int(born) / 1e9,
        })  # fmt: skip

    def _t(self, rest: str) -> None:
        self.ticks.append(int(rest) / 1e9)

    def _v(self, rest: str) -> None:
        index, hwm, anon, file, shmem, swap = map(int, rest.split(","))
        change = Change(self._tick, index, "ok", hwm * KIB, anon * KIB, file * KIB, shmem * KIB, swap * KIB)
        self._full[index] = change
        self.changes.append(change)

    def _w(self, rest: str) -> None:
        index, anon, other = (int(word) for word in rest.split(","))
        before = self._full[index]
        shmem = min(before.shmem, other * KIB)
        file = other * KIB - shmem
        self.changes.append(before._replace(tick=self._tick, anon=anon * KIB, file=file, shmem=shmem, full=False))

    def _m(self, rest: str) -> None:
        index, threads = map(int, rest.split(","))
        process = self.processes[index]
        process["threads"] = max(threads, process.get("threads", 1))

    def _g(self, rest: str) -> None:
        index, state = rest.split(",")
        self.changes.append(Change(self._tick, int(index), state))

    def _x(self, rest: str) -> None:
        index, t, name = rest.split(",", 2)
        process = self.processes[int(index)]
        process["execs"] = (*process.get("execs", ()), int(t) / 1e9)
        process["name"] = name or process["name"]

    def _d(self, rest: str) -> None:
        index, t, status, mark = map(int, rest.split(","))
        told = {"ended": t / 1e9, "exit_status": status, "exit_mark": mark * KIB}
        self.processes[index].update({name: value for name, value in told.items() if value >= 0})

    def _b(self, rest: str) -> None:
        t, event_t, state, name = rest.split(",", 3)
        seconds, event_s = int(t) / 1e9, int(event_t) / 1e9
        self.boundaries.append(
            Boundary(
                tick=self._tick, t=seconds, event_t=event_s, lag_s=seconds - event_s, name=name, begin=state == "begin"
            )
        )

    def _r(self, rest: str) -> None:
        last = self.boundaries[-1]
        self.boundaries[-1] = replace(last, not_reset=(*last.not_reset, int(rest)))

    def _c(self, rest: str) -> None:
        t, *numbers, reset = map(int, rest.split(","))
        known = [None if number < 0 else number for number in numbers]
        usage, mark, anon, file, shmem, huge = known if len(known) == 6 else [*known, None]
        self.cgroup.append(
            CgroupReading(
                t=t / 1e9,
                tick=self._tick,
                usage=usage,
                mark=mark,
                anon=anon,
                file=file,
                shmem=shmem,
                reset=reset == 1,
                huge=huge,
            )
        )

    def _s(self, rest: str) -> None:
        t, pss, huge, unknown = map(int, rest.split(","))
        self.pss.append(PssReading(t=t / 1e9, pss_anon=pss * KIB, anon_huge=huge * KIB, unknown=unknown))

    def _u(self, rest: str) -> None:
        self.unaccounted[self._tick] = self.unaccounted.get(self._tick, 0) + int(rest)

    def _o(self, rest: str) -> None:
        self.outside.add(int(rest))

    def _l(self, rest: str) -> None:
        self.losses.append(rest)

    def _e(self, rest: str) -> None:
        self.cost = MeterCost(**json.loads(rest))

    @property
    def _tick(self) -> int:
        return len(self.ticks) - 1
