"""Kernel evidence that processes were killed for want of memory: the kernel's log, and its counter."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from harness.records import ProcessEnd

_KILLED = re.compile(rb"[Kk]illed process (\d+) ")


class KernelLog:
    """Watches from its making on. Reads nothing until asked; without privilege only the counter is left."""

    def __init__(self) -> None:
        self._count = _oom_kills()
        try:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self._fd = -1

    def close(self) -> None:
        """Close the kernel's log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def evidence(self, ends: Iterable[ProcessEnd], cgroup_kills: int | None) -> str | None:
        """A sentence if the kernel killed one of these processes for want of memory, else None.

        `cgroup_kills`: the trial's own cgroup's count. Without it the kernel's log has to name the pid, or its counter
        has to have risen while one of these processes died by a SIGKILL that was not the harness's.
        """
        if cgroup_kills:
            return f"the trial's cgroup counts {cgroup_kills} process(es) killed for want of memory (oom_kill)"
        killed = {end.pid: end for end in ends if end.signal == "SIGKILL" and end.killed_by is None}
        if not killed:
            return None
        for pid in self._named():
            if pid in killed:
                return f"the kernel's log says that process {pid} ({killed[pid].name}) was killed: out of memory"
        before, after = self._count, _oom_kills()
        if before is not None and after is not None and after > before and self._fd < 0:
            pids = ", ".join(map(str, killed))
            return f"the kernel's oom_kill counter rose by {after - before} while process(es) {pids} died by SIGKILL"
        return None

    def _named(self) -> list[int]:
        pids: list[int] = []
        while self._fd >= 0:
            try:
                line = os.read(self._fd, 8192)
            except BrokenPipeError:  # the ring ran over: go on with what is left
                continue
            except OSError:
                break
            pids += [int(found) for found in _KILLED.findall(line)]
        return pids


def _oom_kills() -> int | None:
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
