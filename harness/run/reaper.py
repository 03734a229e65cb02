"""Owns the processes of one trial until each is reaped, and keeps every exit status from every source there is.

Sources, best first: `wait` (the arm's own process), `adopted` (an orphan that came back to the harness, which is child
subreaper), `process_events` (the kernel's exit events, with privilege), `zombie` (an ended process seen before its
parent reaped it), `engine` (the engine's own report in the event stream). A process without any is `unknown`, with why.
Only pids of the arm are waited for, so no other child of the harness loses its status.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from harness.records import ProcessEnd
from harness.run import process_tree
from harness.run.ending import CRASHES
from harness.run.process_events import Exec, Exit, Fork, ProcessEvents, Unavailable, open_events
from harness.run.process_tree import Identity, Stat, Tree
from harness.units import KIB

_PR_SET_CHILD_SUBREAPER: Final = 36
#: Seconds between looks at all of /proc while the arm runs: 3 ms a look with 150 processes, 0.3 % of a core.
LOOK_EVERY_S: Final = 1.0


class Cgroup(Protocol):
    """The cgroup of one trial, where there is one: see `harness.run.cgroup.TrialCgroup`."""

    @property
    def enter_paths(self) -> Sequence[str]:
        """Paths of the `cgroup.procs` files, one per hierarchy: a process that writes 0 there joins."""

    def pids(self) -> Iterable[int]:
        """Pids the kernel holds in it."""

    def kill(self) -> int:
        """End all of it at once; how many were hit."""

    def oom_kills(self) -> int | None:
        """Processes of it that the kernel ended for want of memory; None if it does not say."""


def become_subreaper() -> None:
    """Orphans of arms come back to this process instead of process 1. Raise `OSError` if the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become child subreaper")


def signal_name(number: int) -> str:
    """`4 -> "SIGILL"`; a real-time signal by its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


class Reaper:
    """Follows one arm from its first process to its last status.

    `cpu_s`: CPU time of the tree as seen by looks. `max_rss`: ru_maxrss in bytes, by pid, of what was reaped here.
    `main_ended_at`: CLOCK_MONOTONIC seconds.
    """

    def __init__(self, token: str, *, cgroup: Cgroup | None = None) -> None:
        become_subreaper()
        self.events = open_events()
        self._cgroup = cgroup
        self.tree = Tree(token, own=os.getpid(), cgroup=cgroup.pids if cgroup else tuple)
        self.exclude_children()
        self.main: Identity | None = None
        self.cpu_s = 0.0
        self.main_ended_at: float | None = None
        self.max_rss: dict[int, int] = {}
        self._cpu: dict[Identity, int] = {}
        self._live: dict[int, Identity] = {}
        self._ends: dict[Identity, ProcessEnd] = {}
        self._names: dict[Identity, str] = {}
        self._signalled: dict[Identity, str] = {}
        self._looked = 0.0
        self._ending = False

    def close(self) -> None:
        """End the subscription to process events."""
        if isinstance(self.events, ProcessEvents):
            self.events.close()

    def exclude_children(self) -> None:
        """Children of the harness as of now (launcher, keeper, sampler, whatever the caller runs) are not the arm's.

        Call when helpers have been started and the arm has not come back to the harness yet: from then on every new
        child of the harness is an orphan of the arm.
        """
        self.tree.strangers |= _children()

    def start(self, main: Identity) -> None:
        """The arm runs. Call before anything else of this trial is looked at."""
        self.main = main
        self.tree.root(main)
        self._live[main.pid] = main
        self._name(main)
        self.poll()

    def poll(self) -> None:
        """Cheap, call often: kernel events, and ended children that are the arm's."""
        if isinstance(self.events, ProcessEvents):
            for event in self.events.read():
                self._on_event(event)
        for identity in list(self._live.values()):
            self._try_wait(identity)

    def look(self, *, now: bool = False) -> None:
        """Read /proc for new members, zombies and CPU time; at most every `LOOK_EVERY_S` unless `now`."""
        self.poll()
        t = time.monotonic()
        if not now and t - self._looked < LOOK_EVERY_S:
            return
        self._looked = t
        members = self.tree.look()
        for identity, stat in members.items():
            self._see(identity, stat)
        self.poll()
        pids = {identity.pid for identity in members}
        for pid in [pid for pid, identity in self._live.items() if pid not in pids and self._known(identity)]:
            del self._live[pid]  # gone and reaped by its parent; `ends` still knows it

    @property
    def main_ended(self) -> bool:
        """The arm's first process has ended."""
        if self.main is None or self.main not in self._ends:
            return False
        if self.main_ended_at is None:
            self.main_ended_at = time.monotonic()
        return True

    def alive(self) -> dict[Identity, str]:
        """Members that run now, by name; reads /proc."""

        def reap() -> None:
            self.look(now=True)

        return {stat.identity: stat.name for stat in process_tree.living(self.tree, reap)}

    def crashed(self) -> bool:
        """Some process of the arm died by a signal that programs do not survive (an illegal instruction, say)."""
        return any(end.signal in CRASHES and end.killed_by is None for end in self._ends.values())

    def end(self, grace_s: float, hurry: Callable[[], bool] = bool) -> process_tree.Ended:
        """End everything that belongs to the arm and reap it; see `process_tree.end`."""

        def reap() -> None:
            self.look(now=True)

        reap()
        self._ending = True
        kill = self._cgroup.kill if self._cgroup else tuple
        ended = process_tree.end(self.tree, reap=reap, grace_s=grace_s, hurry=hurry, kill_cgroup=kill)
        self._signalled |= ended.signalled
        return ended

    def reap_rest(self) -> None:
        """Reap what came back to the harness and has ended; call when nothing of the arm runs any more."""
        for _ in range(100):
            self.look(now=True)
            if not any(stat.parent == os.getpid() for stat in self.tree.look().values()):
                return
            time.sleep(0.005)

    def ends(self, reported: Iterable[Mapping[str, Any]] = ()) -> tuple[ProcessEnd, ...]:
        """How every process seen ended, in the order of their start. `reported`: `process` events of the engine."""
        said = {fact["pid"]: fact for fact in reported if isinstance(fact.get("pid"), int)}
        found = dict(self._ends)
        ended = {(identity.pid, identity.start_ticks + shift) for identity in found for shift in (-1, 0, 1)}
        for identity in self.tree.known.keys() | set(self._live.values()):
            if identity not in ended:
                found[identity] = self._unseen(identity, said.get(identity.pid))
        return tuple(self._blame(end) for _, end in sorted(found.items(), key=lambda item: item[0].start_ticks))

    def _blame(self, end: ProcessEnd) -> ProcessEnd:
        ours = Identity(end.pid, end.start_ticks) in self._signalled and end.signal in ("SIGTERM", "SIGKILL")
        return replace(end, killed_by="harness") if ours else end

    def _unseen(self, identity: Identity, fact: Mapping[str, Any] | None) -> ProcessEnd:
        name = self._names.get(identity, "?")
        if fact is not None:
            code, number = fact.get("exit_code"), fact.get("signal")
            if isinstance(code, int) or isinstance(number, str):
                return ProcessEnd(
                    pid=identity.pid,
                    start_ticks=identity.start_ticks,
                    name=name,
                    exit_code=code if isinstance(code, int) and not isinstance(number, str) else None,
                    signal=number if isinstance(number, str) else None,
                    source="engine",
                )
        why = "reaped by its own parent before it was seen"
        if isinstance(self.events, Unavailable):
            why += f"; {self.events.reason}"
        elif self.events.lost:
            why += "; process events were lost"
        return ProcessEnd(pid=identity.pid, start_ticks=identity.start_ticks, name=name, unknown=why)

    def _on_event(self, event: Fork | Exec | Exit) -> None:
        if isinstance(event, Fork):
            parent = self._live.get(event.parent)
            if parent is not None and event.pid not in self._live:
                child = _identity(event)
                self._live[event.pid] = child
                self._name(child, self._names.get(parent, "?"))
        elif event.pid in self._live:
            identity = self._live[event.pid]
            if isinstance(event, Exec):
                self._name(identity)
            else:
                if identity == self.main:
                    self.main_ended_at = event.t_ns / 1e9
                self._record(identity, event.status, "process_events")
                if not _is_child(event.pid):
                    del self._live[event.pid]

    def _see(self, identity: Identity, stat: Stat) -> None:
        spent = stat.cpu_ticks - self._cpu.get(identity, 0)
        self._cpu[identity] = stat.cpu_ticks
        self.cpu_s += max(spent, 0) / process_tree.TICKS_PER_S
        self._names[identity] = stat.name
        known = self._live.get(identity.pid)
        if known is None or not same(known, identity):
            self._live[identity.pid] = identity
        if stat.ended and stat.parent != os.getpid() and stat.status:
            # A status of 0 is not taken: the kernel shows 0, too, to who may not know.
            self._record(known if known is not None and same(known, identity) else identity, stat.status, "zombie")

    def _known(self, identity: Identity) -> bool:
        return identity in self._ends or identity in self.tree.known

    def _name(self, identity: Identity, otherwise: str = "?") -> None:
        stat = process_tree.read_stat(identity.pid)
        there = stat is not None and same(stat.identity, identity)
        self._names[identity] = stat.name if stat is not None and there else otherwise

    def _try_wait(self, identity: Identity) -> None:
        try:
            found = os.waitid(os.P_PID, identity.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return  # somebody else's child: its parent will reap it
        if found is None:
            return
        stat = process_tree.read_stat(identity.pid)
        if stat is None or not same(stat.identity, identity):
            self._live.pop(identity.pid)  # the pid was given to another child of the harness: not ours to reap
            return
        self._names[identity] = stat.name
        _, status, usage = os.wait4(identity.pid, os.WNOHANG)
        self.max_rss[identity.pid] = usage.ru_maxrss * KIB
        self._record(identity, status, "wait" if identity == self.main else "adopted")
        self._live.pop(identity.pid, None)

    def _record(self, identity: Identity, status: int, source: str) -> None:
        """Keep the status; one from a better source replaces one from a lesser."""
        old = self._ends.get(identity)
        if old is not None and _RANK.index(old.source or "engine") <= _RANK.index(source):
            return
        signalled = os.WIFSIGNALED(status)
        if self._ending and signalled and os.WTERMSIG(status) in (signal.SIGTERM, signal.SIGKILL):
            self._signalled.setdefault(
                identity, self._names.get(identity, "?")
            )  # a whole group's kill hits unseen ones
        self._ends[identity] = ProcessEnd(
            pid=identity.pid,
            start_ticks=identity.start_ticks,
            name=self._names.get(identity, "?"),
            exit_code=None if signalled else os.WEXITSTATUS(status),
            signal=signal_name(os.WTERMSIG(status)) if signalled else None,
            source=source,
        )


_RANK: Final = ("wait", "adopted", "process_events", "zombie", "engine")


def same(one: Identity, other: Identity) -> bool:
    """One process, where a start time computed from a kernel event may be off by one tick."""
    return one.pid == other.pid and abs(one.start_ticks - other.start_ticks) <= 1


def _children() -> set[int]:
    own = os.getpid()
    return {pid for pid, stat in process_tree.table().items() if stat.parent == own}


def _is_child(pid: int) -> bool:
    stat = process_tree.read_stat(pid)
    return stat is not None and stat.parent == os.getpid()


def _identity(event: Fork) -> Identity:
    """By /proc if the child still exists, else computed from the event's time: start times count from boot."""
    stat = process_tree.read_stat(event.pid)
    since_boot = event.t_ns / 1e9 + time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    ticks = int(since_boot * process_tree.TICKS_PER_S)
    return stat.identity if stat is not None and abs(stat.start_ticks - ticks) <= 2 else Identity(event.pid, ticks)
