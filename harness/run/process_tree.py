"""Who belongs to an arm, and how all of it is ended. Standard library only: the keeper runs this file too.

A process belongs to the arm if any of these holds, and it is named by (pid, start time) from then on:
it is the arm's own process or descends from one that belongs; it is in the arm's session; its environment carries the
trial's token; it was orphaned and came back to the harness; the cgroup of the trial holds it. Names decide nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from harness.run import proc_stat
from harness.run.proc_stat import TOKEN, Identity, Stat, token_of

__all__ = [
    "KILL_GRACE_S", "KILL_LIMIT_S", "TICKS_PER_S", "TOKEN", "Ended", "Identity", "Stat", "Tree", "end", "living",
    "read_stat", "send", "table", "token_of",
]  # fmt: skip

#: Seconds between SIGTERM and SIGKILL.
KILL_GRACE_S: Final = 3.0
#: Seconds of repeated SIGKILL before a process counts as not to be ended (uninterruptible sleep, say).
KILL_LIMIT_S: Final = 15.0
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def read_stat(pid: int) -> Stat | None:
    """The process's state now; None if there is none of that pid (or it is hidden)."""
    try:
        return proc_stat.load_stat(pid)
    except (OSError, ValueError, IndexError):
        return None


def table() -> dict[int, Stat]:
    """Every process that can be seen, by pid. One that vanishes meanwhile is left out and hurts no other."""
    stats = map(read_stat, proc_stat.pids())
    return {stat.pid: stat for stat in stats if stat is not None}


class Tree:
    """The processes of one trial, found anew at each look and remembered by identity.

    `token`: the trial's. `own`: pid whose adopted children belong to the arm (the harness, as child subreaper), None if
    orphans do not come to this process. `strangers`: pids that never belong (the harness itself, its helpers).
    `cgroup`: pids that the kernel holds in the trial's cgroup; empty where there is none.
    """

    def __init__(
        self,
        token: str,
        *,
        own: int | None = None,
        strangers: Iterable[int] = (),
        cgroup: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self.token = token
        self.own = own
        self.strangers = {os.getpid(), *strangers}
        self.cgroup = cgroup
        self.session: int | None = None
        self.known: dict[Identity, Stat] = {}
        self._no_token: set[Identity] = set()

    def root(self, identity: Identity) -> None:
        """The arm's own process, leader of its session."""
        self.session = identity.pid
        stat = read_stat(identity.pid)
        if stat is not None and stat.identity == identity:
            self.known[identity] = stat

    def look(self) -> dict[Identity, Stat]:
        """Every member that exists now, ended ones not yet reaped included. Reads all of /proc once."""
        processes = table()
        members = self._closure(processes, self._seeds(processes))
        self.known.update(members)
        return members

    def _seeds(self, processes: Mapping[int, Stat]) -> set[int]:
        held = set(self.cgroup())
        return {pid for pid, stat in processes.items() if pid in held or self._belongs(stat)} - self.strangers

    def _belongs(self, stat: Stat) -> bool:
        if stat.pid in self.strangers:
            return False
        if stat.identity in self.known or stat.session == self.session:
            return True
        if self.own is not None and stat.parent == self.own:
            return True
        return self._carries_token(stat)

    def _carries_token(self, stat: Stat) -> bool:
        # A process gets the token by birth only, so each is asked once: 15 us saved per process and look.
        if stat.identity in self._no_token or stat.ended:
            return False
        if token_of(stat.pid) == self.token:
            return True
        self._no_token.add(stat.identity)
        return False

    def _closure(self, processes: Mapping[int, Stat], seeds: set[int]) -> dict[Identity, Stat]:
        children: dict[int, list[int]] = {}
        for stat in processes.values():
            children.setdefault(stat.parent, []).append(stat.pid)
        found, waiting = set(seeds), list(seeds)
        while waiting:
            born = [pid for pid in children.get(waiting.pop(), ()) if pid not in found and pid not in self.strangers]
            found.update(born)
            waiting.extend(born)
        return {processes[pid].identity: processes[pid] for pid in found}


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal exactly this process; False if it is gone. A pid that was given to another process is never hit.

    The pidfd pins the process: the start time is compared after it was opened, so no reuse can slip between.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    except OSError:  # kernel before 5.3 or a filtered system call: the start time is compared just before
        return _send_by_pid(identity, number)
    try:
        stat = read_stat(identity.pid)
        if stat is None or stat.identity != identity:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _send_by_pid(identity: Identity, number: signal.Signals) -> bool:
    stat = read_stat(identity.pid)
    if stat is None or stat.identity != identity:
        return False
    try:
        os.kill(identity.pid, number)
    except OSError:
        return False
    return True


class Ended(NamedTuple):
    """What ending a tree took. `signalled`: by us. `survivors`: members that SIGKILL did not end, with their names."""

    signalled: dict[Identity, str]
    survivors: dict[Identity, str]


def end(
    tree: Tree,
    *,
    reap: Callable[[], None],
    grace_s: float = KILL_GRACE_S,
    hurry: Callable[[], bool] = bool,
    kill_cgroup: Callable[[], object] = tuple,
) -> Ended:
    """End every member: SIGTERM to each, `grace_s` seconds, then SIGKILL again and again until a look finds none.

    `hurry` becoming true cuts the grace short.

    `reap` is called between looks, so that members that ended are not taken for living ones. SIGCONT follows SIGTERM:
    a stopped process would not see it before. New children born meanwhile are found by the next look; a process that
    forks faster than that is met by `kill_cgroup` where there is a cgroup, else by the pace of the loop.
    """
    signalled: dict[Identity, str] = {}

    def strike(members: Iterable[Stat], *numbers: signal.Signals) -> None:
        for stat in members:
            if send(stat.identity, numbers[0]):
                signalled.setdefault(stat.identity, stat.name)
            for number in numbers[1:]:
                send(stat.identity, number)

    def alive() -> list[Stat]:
        return living(tree, reap)

    members = alive()
    if grace_s > 0:
        strike(members, signal.SIGTERM, signal.SIGCONT)
        members = _wait(alive, time.monotonic() + grace_s, 0.02, hurry)
    deadline = time.monotonic() + KILL_LIMIT_S
    while members and time.monotonic() < deadline:
        _kill_groups(tree, members)
        strike(members, signal.SIGKILL)
        kill_cgroup()
        signalled.update({stat.identity: stat.name for stat in members})
        members = _wait(alive, time.monotonic() + 0.005, 0.002, bool)
    return Ended(signalled, {stat.identity: stat.name for stat in members})


def living(tree: Tree, reap: Callable[[], None]) -> list[Stat]:
    """Members that run. A look that finds only ended ones proves nothing: a process that forked and left is seen in
    place of its child, born while /proc was read. It is reaped and another look taken, until a look finds nothing, or
    nothing but what somebody else does not reap.
    """
    before: set[Identity] | None = None
    while True:
        reap()
        members = tree.look()
        running = [stat for stat in members.values() if not stat.ended]
        if running or not members or members.keys() == before:
            return running
        before = set(members)


def _kill_groups(tree: Tree, members: Iterable[Stat]) -> None:
    """SIGKILL to the process groups of members, as the kernel does it at once for all of a group: a chain of processes
    that each fork and leave within 2 ms is never caught one by one. Only groups in sessions that a member leads.
    """
    leaders = {identity.pid for identity in tree.known}
    for group in {stat.group for stat in members if stat.session in leaders and stat.group > 1}:
        if group != os.getpgrp():
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)


def _wait(alive: Callable[[], list[Stat]], deadline: float, pause_s: float, hurry: Callable[[], bool]) -> list[Stat]:
    members = alive()
    while members and time.monotonic() < deadline and not hurry():
        time.sleep(pause_s)
        members = alive()
    return members
