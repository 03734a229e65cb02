"""/proc/PID/stat and the trial's token: one reader for the owner, the keeper and the sampler. Standard library only.

Little is imported: the keeper and the sampler start with this file, and pathlib alone would double the keeper's start.
`proc` is the root to read, so that a test can show another kernel.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

PROC: Final = "/proc"
#: Variable that carries the trial's token to every process it starts.
TOKEN: Final = "HARNESS_TRIAL"  # noqa: S105 - a name, no secret
#: Flags of /proc/PID/stat, from the kernel's sched.h.
PF_EXITING: Final = 0x4
PF_FORKNOEXEC: Final = 0x40
PF_KTHREAD: Final = 0x200000


class Identity(NamedTuple):
    """A process, told apart from a later one that gets its pid. `start_ticks`: since boot, in clock ticks."""

    pid: int
    start_ticks: int


class Stat(NamedTuple):
    """What /proc/PID/stat says. `state`: its letter. `cpu_ticks`: user and system time. `start_ticks`: from boot to its
    start. `status`: wait status, meaningful in a zombie, 0 where the kernel hides it. `threads`: how many it has.
    """

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    flags: int
    cpu_ticks: int
    start_ticks: int
    status: int
    threads: int = 1

    @property
    def identity(self) -> Identity:
        """The process's identity."""
        return Identity(self.pid, self.start_ticks)

    @property
    def ended(self) -> bool:
        """It has ended and waits to be reaped."""
        return self.state in "ZXx"

    @property
    def leaving(self) -> bool:
        """It holds no memory any more: ended, or on the way there."""
        return self.ended or bool(self.flags & PF_EXITING)

    @property
    def forked(self) -> bool:
        """It has not exec'd since its fork, so it shows its parent's pages as its own."""
        return bool(self.flags & PF_FORKNOEXEC)


def parse_stat(data: bytes) -> Stat:
    """The fields of a stat file; the name may hold blanks, brackets and any byte: what follows the last `)` is regular.

    Raise ValueError or IndexError where the content is no such line.
    """
    head, _, tail = data.rpartition(b")")
    pid, _, name = head.partition(b" (")
    fields = tail.split()
    return Stat(
        pid=int(pid),
        name=name.decode("utf-8", "replace"),
        state=fields[0].decode("ascii", "replace"),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        flags=int(fields[6]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        status=int(fields[49]) if len(fields) > 49 else 0,
        threads=int(fields[17]),
    )


def load_stat(pid: int, proc: str = PROC) -> Stat:
    """The stat of a process now. Raise OSError where it cannot be read, ValueError or IndexError as `parse_stat`."""
    with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - pathlib costs 6 us more, per process
        return parse_stat(file.read(4096))


def token_of(pid: int, proc: str = PROC) -> str | None:
    """The trial token in the environment that the process was started with; None if it has none or it is hidden."""
    try:
        with open(f"{proc}/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - as in load_stat
            content = file.read()
    except OSError:
        return None
    prefix = f"{TOKEN}=".encode()
    found = next((entry for entry in content.split(b"\0") if entry.startswith(prefix)), None)
    return None if found is None else found[len(prefix) :].decode("utf-8", "replace")


def pids(proc: str = PROC) -> list[int]:
    """Every pid that the host shows."""
    return [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 - Path objects cost 4 times as much
