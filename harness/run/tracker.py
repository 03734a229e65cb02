"""The processes of one trial, kept up to date at every tick, and their readings as lines of the samples file.

New processes come from the kernel's events where they can be had. Elsewhere the last pid given out tells whether
anything was started since the tick before, and only those pids are looked at. Standard library only.
"""

from __future__ import annotations

import os
import time
from typing import Final

from harness.run.kernel_events import Event, Exec, Exit, ExitMark, Fork, KernelEvents
from harness.run.procfs import (
    PF_KTHREAD,
    ProcessFiles,
    Reading,
    Stat,
    State,
    belongs,
    last_pid,
    pids,
    read_rollup,
    read_stat,
)

#: A process has its high-water mark read at every 4th tick: 1 us instead of 8 for the other three.
STRIDE: Final = 4
#: More new pids than this between two ticks are looked at by listing /proc instead.
_FEW: Final = 512
_PAGE_KIB: Final = os.sysconf("SC_PAGE_SIZE") // 1024
#: /proc is listed in full this often if anything was started, whatever the cheaper ways found.
_FULL_SCAN_S: Final = 1.0


class Member:
    """One process of the trial. `anon`: KiB, its share of the live sum; `waiting`: forked and not yet exec'd. `due`:
    the tick of each stride at which status is read. `plain`: statm, last seen as `resident`, will do at the others.
    """

    __slots__ = (
        "anon",
        "due",
        "files",
        "index",
        "live",
        "pid",
        "plain",
        "resident",
        "scanned",
        "state",
        "statm",
        "threads",
        "waiting",
    )

    def __init__(self, index: int, pid: int, *, waiting: bool) -> None:
        self.index = index
        self.pid = pid
        self.due = -index % STRIDE
        self.plain = False
        self.statm = -1
        self.threads = 1
        self.resident = b""
        self.waiting = waiting
        self.live = True
        self.scanned = False
        self.anon = 0
        self.state = State.OK
        self.files: ProcessFiles | None = None


class Tracker:
    """Who belongs to the trial, and what each holds. `lines`: for the samples file, taken by the caller."""

    def __init__(
        self, root: int, *, session: int, token: str, proc: str, cgroup_procs: str | None, events: KernelEvents | None
    ) -> None:
        self.session, self.token, self.proc, self.cgroup_procs = session, token, proc, cgroup_procs
        self.lines: list[str] = []
        self.live: list[Member] = []
        self.events = events
        self.count = 0
        self.ticks = 0
        self._by_pid: dict[int, Member] = {}
        self._others: set[int] = {os.getpid(), os.getppid()}
        self._last_pid = last_pid(proc)
        try:
            self._loadavg = os.open(f"{proc}/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._loadavg = -1
        self._next_full = 0.0
        self._moved = True
        self._events_lost = False
        self._add(root, "root")
        self._scan(pids(proc))

    @property
    def total(self) -> int:
        """Sum of RssAnon now, KiB, without children that have not exec'd yet."""
        return sum(member.anon for member in self.live if not member.waiting)

    @property
    def unknown(self) -> int:
        """Live processes whose memory cannot be told now."""
        return sum(member.state in (State.DENIED, State.FIELD_MISSING) for member in self.live)

    def tick(self, *, everything: bool = False) -> None:
        """Find what is new and read what may have changed."""
        self.lines.append(f"T {time.monotonic_ns()}")
        if self.events is not None:
            happened = self.events.drain()
            if happened:
                self._apply(happened)
        self._discover()
        self.ticks += 1
        ended = False
        say, pread, due = self.lines.append, os.pread, self.ticks % STRIDE
        for member in self.live:
            if not everything and member.plain and member.due != due:
                # The usual case, written out: a call a process would cost a fifth of the tick.
                try:
                    data = pread(member.statm, 128, 0)
                except OSError:
                    data = b""
                if data == member.resident:
                    continue
                words = data.split(None, 3)
                if len(words) > 2 and words[1] != b"0":
                    member.resident = data
                    rest = int(words[2])
                    member.anon = (int(words[1]) - rest) * _PAGE_KIB
                    say("W %d,%d,%d" % (member.index, member.anon, rest * _PAGE_KIB))  # noqa: UP031  # twice as fast
                    continue
            self._read(member)
            ended = ended or not member.live
        if ended:
            self.live = [member for member in self.live if member.live]

    def reset_marks(self) -> None:
        """Begin every process's high-water mark anew, each read just before: 3 us stay unwatched, not a whole tick."""
        for member in self.live:
            self._read(member)
            if not member.live:
                continue
            try:
                fd = os.open(f"{self.proc}/{member.pid}/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(fd, b"5")
                finally:
                    os.close(fd)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError:
                self.lines.append(f"R {member.index}")

    def read_pss(self) -> None:
        """Sums of smaps_rollup over the tree."""
        pss = huge = unknown = 0
        for member in self.live:
            found = read_rollup(member.pid, self.proc)
            if isinstance(found, State):
                unknown += found in (State.DENIED, State.FIELD_MISSING)
            else:
                pss += found["Pss_Anon"]
                huge += found.get("AnonHugePages", 0)
        self.lines.append(f"S {time.monotonic_ns()},{pss},{huge},{unknown}")

    def count_threads(self) -> None:
        """Say which processes have more threads than before; on old kernels each hides up to 64 pages of a counter."""
        for member in self.live:
            stat = read_stat(member.pid, self.proc)
            if isinstance(stat, Stat) and stat.threads > member.threads:
                member.threads = stat.threads
                self.lines.append(f"M {member.index},{stat.threads}")

    def check_cgroup(self) -> None:
        """Name every live process that is not in the trial's cgroup: its memory is not in the cgroup's figures."""
        if self.cgroup_procs is None:
            return
        inside = self._cgroup_pids()
        folder = os.path.basename(os.path.dirname(self.cgroup_procs))  # noqa: PTH119, PTH120  # as above
        for member in self.live:
            if member.pid not in inside and not self._is_below(member.pid, folder):
                self.lines.append(f"O {member.index}")

    def _is_below(self, pid: int, folder: str) -> bool:
        """Whether a process sits in a cgroup below the trial's, or is gone."""
        try:
            with open(f"{self.proc}/{pid}/cgroup", "rb", buffering=0) as file:  # noqa: PTH123  # Path costs 6 us a call
                return folder.encode() in file.read(8192)
        except OSError:
            return True

    def close(self) -> None:
        """Let go of every file."""
        for member in self.live:
            self._end(member)
        if self._loadavg >= 0:
            os.close(self._loadavg)

    # ---- readings

    def _read(self, member: Member) -> None:
        """A full reading; afterwards a look at statm will do for some ticks if the process is an ordinary one."""
        self._read_status(member)
        files = member.files
        member.plain = files is not None and files.statm >= 0 and not member.waiting and member.state is State.OK
        member.statm = files.statm if files is not None else -1

    def _read_status(self, member: Member) -> None:
        if member.waiting and (self.events is None or self._events_lost):
            self._look_for_exec(member)  # before the reading: what is read then is the new program's for certain
        if member.files is None:
            reading: Reading | None = self._open(member)
        else:
            reading = member.files.read_changed()
        if reading is None:
            return
        if reading.memory is not None:
            member.state = State.OK
            member.anon = reading.memory.anon
            self.lines.append("V %d,%d,%d,%d,%d,%d" % (member.index, *reading.memory))  # noqa: UP031  # twice as fast
            return
        member.anon = 0
        if reading.state is not member.state:
            self.lines.append(f"G {member.index},{reading.state}")
        member.state = reading.state
        if reading.state in (State.GONE, State.ZOMBIE):
            self._end(member)

    def _open(self, member: Member) -> Reading:
        try:
            member.files = ProcessFiles(member.pid, self.proc)
        except PermissionError:
            return Reading(State.DENIED)
        except (FileNotFoundError, ProcessLookupError):
            return Reading(State.GONE)
        except OSError as error:  # no file descriptor left, say
            self.lines.append(f"L process {member.pid} could not be opened: {error.strerror}")
            return Reading(State.FIELD_MISSING)
        return member.files.read()

    def _look_for_exec(self, member: Member) -> None:
        stat = read_stat(member.pid, self.proc)
        if isinstance(stat, Stat) and not stat.forked and not stat.leaving:
            self._exec(member, time.monotonic_ns(), stat.name)

    def _end(self, member: Member) -> None:
        member.live = False
        member.anon = 0
        if member.files is not None:
            member.files.close()
            member.files = None

    # ---- births and deaths

    def _apply(self, happened: list[Event]) -> None:
        for event in happened:
            if isinstance(event, Fork):
                known = self._by_pid.get(event.pid)
                if known is not None and known.live and known.scanned:
                    known.scanned = False  # a look at /proc was quicker than the kernel's word on the same birth
                elif event.parent in self._by_pid:
                    self._add(event.pid, "event", born=event.t_ns, parent=self._by_pid[event.parent].index)
                else:
                    self._by_pid.pop(event.pid, None)
                continue
            member = self._by_pid.get(event.pid)
            if member is None:
                continue
            if isinstance(event, Exec):
                stat = read_stat(event.pid, self.proc)
                self._exec(member, event.t_ns, stat.name if isinstance(stat, Stat) else "")
            elif isinstance(event, Exit):
                self.lines.append(f"D {member.index},{event.t_ns},{event.status},-1")
            elif isinstance(event, ExitMark):
                self.lines.append(f"D {member.index},-1,-1,{event.hwm}")
        if self.events is not None and self.events.lost and not self._events_lost:
            self._events_lost = True
            self.lines.append("U 1000000")

    def _exec(self, member: Member, t_ns: int, name: str) -> None:
        member.waiting = False
        self.lines.append(f"X {member.index},{t_ns},{_one_line(name)}")

    def _add(self, pid: int, origin: str, *, born: int = -1, parent: int = -1) -> None:
        stat = read_stat(pid, self.proc)
        known = isinstance(stat, Stat)
        # A birth told by the kernel is a fork, even if the exec came before this look: its event comes too.
        waiting = born >= 0 or (isinstance(stat, Stat) and stat.forked)
        member = Member(self.count, pid, waiting=waiting)
        self.count += 1
        self._by_pid[pid] = member
        self._others.discard(pid)
        ppid, start, name = (stat.parent, stat.start_ticks, stat.name) if isinstance(stat, Stat) else (0, 0, "")
        if parent < 0 and known and ppid in self._by_pid:
            parent = self._by_pid[ppid].index
        self.lines.append(
            f"P {member.index},{time.monotonic_ns()},{pid},{start},{ppid},{parent},{int(waiting)},{origin},{born},"
            f"{_one_line(name)}"
        )
        member.scanned = born < 0
        self.live.append(member)

    # ---- finding processes without events

    def _discover(self) -> None:
        told = self.events is not None and not self._events_lost
        now = time.monotonic()
        if told and now < self._next_full:
            return  # the kernel has told everything; once a second /proc is asked whether that is so
        newest = self._newest()
        before, self._last_pid = self._last_pid, newest
        if told:
            self._next_full = now + _FULL_SCAN_S
            if newest != before:
                self._full()
            return
        if newest is not None and newest == before:
            if self._moved and now >= self._next_full:
                self._full()
            return
        self._moved = True
        if newest is None or before is None or not 0 < newest - before <= _FEW:
            self._full()
            self.lines.append("U 1")
            return
        fresh = range(before + 1, newest + 1)
        alive = [pid for pid in fresh if os.path.exists(f"{self.proc}/{pid}")]  # noqa: PTH110  # Path costs 6 us a call
        self._scan(alive)
        if len(alive) < len(fresh):
            self.lines.append(f"U {len(fresh) - len(alive)}")

    def _newest(self) -> int | None:
        """The pid given out last; the file is kept open, which halves its cost."""
        try:
            return int(os.pread(self._loadavg, 128, 0).split()[4])
        except (OSError, ValueError, IndexError):
            return None

    def _full(self) -> None:
        self._next_full = time.monotonic() + _FULL_SCAN_S
        self._moved = False
        listed = pids(self.proc)
        self._others.intersection_update(listed)
        self._scan(listed)

    def _scan(self, candidates: list[int]) -> None:
        """Add those that belong; again while one was added, for the children of what was just found."""
        cgroup = self._cgroup_pids()
        told = self.events is not None and not self._events_lost
        new = [pid for pid in candidates if pid not in self._others and not self._is_live(pid)]
        while new:
            left = []
            for pid in new:
                stat = read_stat(pid, self.proc)
                if isinstance(stat, Stat) and stat.leaving and told:
                    continue  # the kernel has told of it, or will at the next tick: it is not to be counted twice
                if not isinstance(stat, Stat) or stat.flags & PF_KTHREAD or self._is_thread(pid):
                    self._others.add(pid)
                    continue
                how = belongs(
                    stat, parents=self._is_live, session=self.session, token=self.token, cgroup=cgroup, proc=self.proc
                )
                if how is None:
                    left.append(pid)
                else:
                    self._add(pid, how)
            if len(left) == len(new):
                self._others.update(left)
                return
            new = left

    def _is_live(self, pid: int) -> bool:
        member = self._by_pid.get(pid)
        return member is not None and member.live

    def _is_thread(self, pid: int) -> bool:
        """A thread's number has a folder in /proc too, though it is not listed."""
        try:
            with open(f"{self.proc}/{pid}/status", "rb", buffering=0) as file:  # noqa: PTH123  # Path costs 6 us a call
                head = file.read(512)
        except OSError:
            return True
        return f"Tgid:\t{pid}\n".encode() not in head

    def _cgroup_pids(self) -> frozenset[int]:
        if self.cgroup_procs is None:
            return frozenset()
        try:
            with open(self.cgroup_procs, "rb", buffering=0) as file:  # noqa: PTH123  # Path costs 6 us a call
                return frozenset(map(int, file.read(1 << 20).split()))
        except (OSError, ValueError):
            return frozenset()


def _one_line(name: str) -> str:
    return name.replace("\n", " ").replace("\r", " ")
