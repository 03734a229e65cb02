"""Asking a run to stop: signals become a flag that every wait of the run looks at.

Nothing is raised out of a signal handler: an exception could land between an arm's start and the line that remembers
its pid, and that arm would outlive the run.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

#: What a terminal, a service manager and a closed session send. SIGQUIT keeps its meaning (a core dump on demand).
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopFlag:
    """Whether, and how urgently, the run was asked to stop. Safe to set from a signal handler and from any thread."""

    def __init__(self) -> None:
        # A pipe rather than threading.Event: an Event set by a handler while the main thread is inside its `wait`
        # can deadlock on the event's own lock, and a pipe can be waited for together with child processes.
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._names: list[str] = []

    def request(self, name: str) -> None:
        """Ask to stop. `name`: who asks (`SIGINT`, ...). A second request asks for the same, faster."""
        self._names.append(name)
        with suppress(OSError):  # a full pipe wakes its reader all the same; a closed one has no reader left
            os.write(self._write, b"!")

    @property
    def requested(self) -> bool:
        """Somebody asked to stop."""
        return bool(self._names)

    @property
    def urgent(self) -> bool:
        """Somebody asked twice: cut every grace short, but clean up all the same."""
        return len(self._names) > 1

    @property
    def name(self) -> str:
        """Who asked first; empty while nobody did."""
        return self._names[0] if self._names else ""

    def fileno(self) -> int:
        """Readable from the first request on: for `select` beside other descriptors."""
        return self._read

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`, or until a stop is requested. Returns whether one is."""
        if not self.requested:
            select.select([self._read], [], [], max(0.0, seconds))
        return self.requested

    def close(self) -> None:
        """Give the pipe back; requests are still counted."""
        os.close(self._read)
        os.close(self._write)


@contextmanager
def stopped_by_signals() -> Iterator[StopFlag]:
    """SIGINT, SIGTERM and SIGHUP set the flag for as long as this lasts; the former handlers come back afterwards.

    SIGHUP that was ignored at the start stays ignored: `nohup harness run ...` means that. SIGINT is heeded even then:
    a shell ignores it for what a script starts with `&`, and a run that nobody can stop gently gets killed.
    """
    flag = StopFlag()

    def handler(number: int, _frame: FrameType | None) -> None:
        flag.request(signal.Signals(number).name)

    former = {number: signal.getsignal(number) for number in SIGNALS}
    heeded = [number for number in SIGNALS if number != signal.SIGHUP or former[number] != signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield flag
    finally:
        for number in heeded:
            signal.signal(number, former[number])
        flag.close()
