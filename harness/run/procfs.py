"""Cheap readers of /proc, and who belongs to a trial. Standard library only: the sampler has no site-packages.

A status file is opened once and read with pread: 8 us a process here, against 235 us with psutil's walk. Every reading
says in which of five states the process was; a missing field is unknown and never 0. `proc` is the root to read, so
that a test can show a kernel that lacks a field.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from harness.run import proc_stat
from harness.run.proc_stat import PF_EXITING, PF_FORKNOEXEC, PF_KTHREAD, PROC, Stat, parse_stat, pids

__all__ = [
    "NEEDED", "PF_EXITING", "PF_FORKNOEXEC", "PF_KTHREAD", "Memory", "ProcessFiles", "Reading", "Stat", "State",
    "belongs", "carries_token", "failure_state", "last_pid", "members", "parse_rollup", "parse_stat", "parse_status",
    "pids", "probe", "read_rollup", "read_stat",
]  # fmt: skip

#: What a status file must hold for memory to be measured here.
NEEDED: Final = ("VmHWM", "RssAnon", "RssFile", "RssShmem", "VmSwap")
_NEEDED_KEYS: Final = tuple(f"{name}:".encode() for name in NEEDED)
#: A status file is about 1.5 KiB; long supplementary group lists make it longer.
_STATUS_BYTES: Final = 8192


class State(StrEnum):
    """What a look at a process found. Zombie, gone, denied and a missing field are four different things."""

    OK = "ok"
    ZOMBIE = "zombie"  # it ended and holds no memory; its parent has not asked for it yet
    GONE = "gone"  # no such process any more
    DENIED = "denied"  # it lives and we may not look
    FIELD_MISSING = "field_missing"  # it lives and the kernel does not tell: unknown, never 0


class Memory(NamedTuple):
    """Memory of one process in KiB, as /proc/PID/status has it."""

    hwm: int
    anon: int
    file: int
    shmem: int
    swap: int


class Reading(NamedTuple):
    """One look at a process; `memory` only with the state `ok`. `missing`: names of fields that were not there."""

    state: State
    memory: Memory | None = None
    missing: tuple[str, ...] = ()


def parse_status(data: bytes) -> Reading:
    """The memory of a status file. A process without any memory lines is a zombie only if it says so."""
    fields = dict(line.split(b":", 1) for line in data.splitlines() if b":" in line)
    found: list[int] = []
    missing: list[str] = []
    for name in NEEDED:
        words = fields.get(name.encode(), b"").split()
        if len(words) == 2 and words[1] == b"kB" and words[0].isdigit():
            found.append(int(words[0]))
        else:
            missing.append(name)
    if not missing:
        return Reading(State.OK, Memory(*found))
    dead = fields.get(b"State", b"").strip()[:1] in (b"Z", b"X") and b"VmSize" not in fields
    # A main thread may end before the others: the process then looks like a zombie and holds all its memory.
    alone = fields.get(b"Threads", b"1").strip() in (b"0", b"1")
    return Reading(State.ZOMBIE) if dead and alone else Reading(State.FIELD_MISSING, None, (*missing,))


def failure_state(error: OSError) -> State:
    """What an errno on /proc means: no entry or no such process is gone, no permission is denied."""
    if isinstance(error, FileNotFoundError | ProcessLookupError | NotADirectoryError):
        return State.GONE
    return State.DENIED if isinstance(error, PermissionError) else State.FIELD_MISSING


def read_stat(pid: int, proc: str = PROC) -> Stat | State:
    """The stat of a process, or why there is none."""
    try:
        return proc_stat.load_stat(pid, proc)
    except OSError as error:
        return failure_state(error)
    except (ValueError, IndexError):
        return State.FIELD_MISSING


class ProcessFiles:
    """status and statm of one process, opened once. They stay bound to that process even if its pid is used again.

    statm costs 1 us and status 8, and both count the same pages: status is read for VmHWM and the kinds only.
    `statm` is the descriptor, -1 if there is none.
    """

    __slots__ = ("_last", "_status", "pid", "proc", "statm")

    def __init__(self, pid: int, proc: str = PROC) -> None:
        self.pid = pid
        self.proc = proc
        self._last = b""
        self._status = os.open(f"{proc}/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.statm = os.open(f"{proc}/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.statm = -1

    def read_changed(self) -> Reading | None:
        """A reading, or None if every number is the one of the call before."""
        try:
            data = os.pread(self._status, _STATUS_BYTES, 0)
        except OSError as error:
            return Reading(failure_state(error))
        begin = data.find(b"VmHWM:")
        lines = data[begin : data.find(b"\nHuge", begin)]
        if lines == self._last and begin > 0:
            return None
        self._last = lines
        words = lines.split()
        # Linux since 4.5 writes these lines in this order; anything else is read by name.
        if words[:13:6] == [b"VmHWM:", b"RssAnon:", b"RssShmem:"] and words[-3:-2] == [b"VmSwap:"]:
            return Reading(
                State.OK, Memory(int(words[1]), int(words[7]), int(words[10]), int(words[13]), int(words[-2]))
            )
        self._last = b""
        return self._settle(parse_status(data))

    def read(self) -> Reading:
        """A reading, whether it changed or not."""
        self._last = b""
        return self.read_changed() or Reading(State.GONE)

    def _settle(self, reading: Reading) -> Reading:
        """Without memory lines a process may be on its way out: its flags tell, the letter in status does not yet."""
        if reading.state is not State.FIELD_MISSING or len(reading.missing) < len(NEEDED):
            return reading
        stat = read_stat(self.pid, self.proc)
        if isinstance(stat, State):
            return Reading(State.GONE) if stat is State.GONE else reading
        return Reading(State.ZOMBIE) if stat.leaving else reading

    def close(self) -> None:
        """Let go of the files."""
        for fd in (self._status, self.statm):
            if fd >= 0:
                os.close(fd)


def parse_rollup(data: bytes) -> dict[str, int]:
    """Numbers of a smaps_rollup file by name, KiB."""
    lines = (line.split() for line in data.splitlines())
    return {words[0][:-1].decode(): int(words[1]) for words in lines if len(words) == 3 and words[2] == b"kB"}


def read_rollup(pid: int, proc: str = PROC) -> dict[str, int] | State:
    """smaps_rollup of a process; expensive (it walks the page tables). An ESRCH here does not say that it is dead."""
    try:
        numbers = parse_rollup(Path(f"{proc}/{pid}/smaps_rollup").read_bytes())
    except OSError as error:
        state = failure_state(error)
        alive = state is State.GONE and isinstance(read_stat(pid, proc), Stat)
        return State.FIELD_MISSING if alive else state
    except ValueError:
        return State.FIELD_MISSING
    return numbers if "Pss_Anon" in numbers else State.FIELD_MISSING


def carries_token(pid: int, token: str, proc: str = PROC) -> bool:
    """Whether the trial's token stands in the environment that the process was started with."""
    return bool(token) and proc_stat.token_of(pid, proc) == token


def last_pid(proc: str = PROC) -> int | None:
    """The pid given out last in this pid namespace: unmoved means that nothing was started since. None if hidden."""
    try:
        with open(f"{proc}/loadavg", "rb", buffering=0) as file:  # noqa: PTH123 - as in load_stat
            return int(file.read(128).split()[4])
    except (OSError, ValueError, IndexError):
        return None


def belongs(
    stat: Stat, *, parents: Callable[[int], bool], session: int, token: str, cgroup: frozenset[int], proc: str = PROC
) -> str | None:
    """How a process belongs to a trial: `child`, `session`, `cgroup` or `token`; None if it does not."""
    if parents(stat.parent):
        return "child"
    if session > 0 and stat.session == session:
        return "session"
    if stat.pid in cgroup:
        return "cgroup"
    return "token" if carries_token(stat.pid, token, proc) else None


def members(
    root: int, *, session: int = 0, token: str = "", cgroup: Iterable[int] = (), proc: str = PROC
) -> dict[tuple[int, int], Stat]:
    """Every process of a trial by (pid, start ticks): descendants of `root`, its session, the token's bearers, and the
    cgroup's. The caller itself is never in it. One look: call again until nothing new comes when ending a tree.
    """
    found = {pid: stat for pid in pids(proc) if isinstance(stat := read_stat(pid, proc), Stat)}
    in_cgroup = frozenset(cgroup)
    inside = {root} & found.keys()
    waiting = {pid: stat for pid, stat in found.items() if pid not in inside and not stat.flags & PF_KTHREAD}
    while True:
        new = {
            pid
            for pid, stat in waiting.items()
            if belongs(stat, parents=inside.__contains__, session=session, token=token, cgroup=in_cgroup, proc=proc)
        } - {os.getpid()}
        if not new:
            return {(pid, found[pid].start_ticks): found[pid] for pid in sorted(inside)}
        inside |= new
        waiting = {pid: stat for pid, stat in waiting.items() if pid not in new}
        token = ""  # its bearers are all found by the first look; what is left can only be a child of theirs


def probe(proc: str = PROC) -> tuple[str, ...]:
    """What stands in the way of measuring memory on this host, a sentence each; empty if nothing does."""
    try:
        status = Path(f"{proc}/self/status").read_bytes()
    except OSError as error:
        return (f"this host cannot measure RssAnon: {proc}/self/status cannot be read ({error.strerror})",)
    reading = parse_status(status)
    problems = [
        f"this host cannot measure {name}: /proc/PID/status has no such field (Linux 4.5 or later has it; sandboxes"
        " such as gVisor do not); run on a Linux kernel directly"
        for name in reading.missing
    ]
    if reading.memory is not None and reading.memory.hwm == 0:
        problems.append("this host cannot measure RssAnon: /proc/PID/status says VmHWM 0 for a running process")
    if not isinstance(read_stat(_self_pid(proc), proc), Stat):
        problems.append("this host cannot tell who belongs to a trial: /proc/PID/stat cannot be read")
    return tuple(problems)


def _self_pid(proc: str) -> int:
    try:
        return int(Path(proc, "self").readlink().name)
    except (OSError, ValueError):
        return os.getpid()
