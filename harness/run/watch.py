"""When a trial has to be cut: limits by phase, progress, the event stream as it grows. No processes here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness.events import parse_line
from harness.experiment.types import Limits
from harness.units import MIB, format_bytes, format_seconds

#: The event stream of one trial may grow to this; real ones stay under 100 KiB.
EVENTS_CAP: Final = 64 * MIB
#: Once a process of the arm died in native code, silence is no work in progress: its parent waits for a dead child.
CRASHED_STALL_S: Final = 15.0
#: A share of one core that waiting costs (polling a socket, say): more than this is work.
WAITING_SHARE: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """A limit that was passed. `kind`: `trial`, `phase`, `stall`, `exit` or `events`. `sentence`: for people."""

    kind: str
    sentence: str
    phase: str | None = None


class EventTail:
    """Reads what drivers append, as it grows: the open phases with their time of arrival, and `done`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._rest = b""
        self._offset = 0
        self.bytes = 0
        self.open: list[tuple[str, float]] = []
        self.done_at: float | None = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @property
    def phase(self) -> str | None:
        """Innermost open phase."""
        return self.open[-1][0] if self.open else None

    def read(self, now: float) -> None:
        """Take in the lines that are whole."""
        if os.fstat(self._fd).st_size < self._offset:  # emptied and begun anew
            self._offset, self._rest = 0, b""
        while self.bytes <= EVENTS_CAP and (block := os.pread(self._fd, MIB, self._offset)):
            self._offset += len(block)
            self.bytes += len(block)
            lines = (self._rest + block).split(b"\n") if b"\n" in block else [self._rest + block]
            self._rest = lines.pop()
            for line in lines:
                self._take(line, now)

    def content(self) -> bytes:
        """All that stands in the file now, up to the cap; of the file that was watched, whatever has its name now."""
        return b"".join(_blocks(self._fd))

    def fault(self) -> str | None:
        """What became of the file itself, if its name no longer leads to it: then others read another stream."""
        try:
            there = self._path.lstat()
        except OSError as error:
            return f"the file of events is gone ({error.strerror}): the arm removed it; lines are to be appended to it"
        if os.path.samestat(there, os.fstat(self._fd)):
            return None
        return "the file of events is another one: the arm replaced it; lines are to be appended to it"

    def _take(self, line: bytes, now: float) -> None:
        if b'"phase"' not in line and b'"done"' not in line:
            return
        event = parse_line(line.decode("utf-8", "replace"))
        if event is None:
            return
        if event["event"] == "done" and self.done_at is None:
            self.done_at = now
        elif event["event"] == "phase" and isinstance(event.get("name"), str):
            self._phase(event["name"], event.get("state"), now)

    def _phase(self, name: str, state: object, now: float) -> None:
        if state == "begin":
            self.open.append((name, now))
            return
        for index in range(len(self.open) - 1, -1, -1):
            if state == "end" and self.open[index][0] == name:
                del self.open[index]
                return


def _blocks(fd: int) -> Iterator[bytes]:
    offset = 0
    while offset < EVENTS_CAP and (block := os.pread(fd, min(MIB, EVENTS_CAP - offset), offset)):
        offset += len(block)
        yield block


@dataclass
class Watch:
    """Judges one moment after another of a running trial. Times are CLOCK_MONOTONIC seconds."""

    limits: Limits
    began: float
    _progress_at: float = field(init=False)
    _marks: tuple[int, int, float] = (0, 0, 0.0)

    def __post_init__(self) -> None:
        self._progress_at = self.began

    def check(
        self, now: float, *, tail: EventTail, log_bytes: int, cpu_s: float, crashed: bool, ended: bool = False
    ) -> Overrun | None:
        """The first limit that is passed now, None while all are kept. `ended`: the arm's own process has; what it
        left behind has its own grace, and says nothing of a hang.
        """
        self._note_progress(now, tail.bytes, log_bytes, cpu_s)
        bounds = self._events(tail) or self._phases(now, tail) or self._trial(now, tail)
        return bounds if ended else self._exit(now, tail) or bounds or self._stall(now, tail, crashed=crashed)

    def _note_progress(self, now: float, events: int, log_bytes: int, cpu_s: float) -> None:
        old_events, old_log, old_cpu = self._marks
        waiting = 0.05 + WAITING_SHARE * (now - self._progress_at)
        if events != old_events or log_bytes != old_log or cpu_s - old_cpu > waiting:
            self._marks = (events, log_bytes, cpu_s)
            self._progress_at = now

    def _events(self, tail: EventTail) -> Overrun | None:
        if tail.bytes <= EVENTS_CAP:
            return None
        return Overrun(
            kind="events", sentence=f"the event stream grew beyond {format_bytes(EVENTS_CAP)}", phase=tail.phase
        )

    def _exit(self, now: float, tail: EventTail) -> Overrun | None:
        if tail.done_at is None or now - tail.done_at <= self.limits.exit:
            return None
        sentence = f"said `done` and did not end within {format_seconds(self.limits.exit)} (limits: exit)"
        return Overrun(kind="exit", sentence=sentence, phase=tail.phase)

    def _phases(self, now: float, tail: EventTail) -> Overrun | None:
        for name, since in tail.open:
            limit = self.limits.phases.get(name)
            if limit is not None and now - since > limit:
                sentence = f"phase {name} did not end within {format_seconds(limit)} (limits: {name})"
                return Overrun(kind="phase", sentence=sentence, phase=name)
        return None

    def _trial(self, now: float, tail: EventTail) -> Overrun | None:
        if now - self.began <= self.limits.trial:
            return None
        sentence = f"the trial did not end within {format_seconds(self.limits.trial)} (limits: trial)"
        return Overrun(kind="trial", sentence=sentence, phase=tail.phase)

    def _stall(self, now: float, tail: EventTail, *, crashed: bool) -> Overrun | None:
        limit = min(self.limits.stall, CRASHED_STALL_S) if crashed else self.limits.stall
        if now - self._progress_at <= limit:
            return None
        sentence = f"no event, no output and no CPU time for {format_seconds(limit)} (limits: stall)"
        return Overrun(kind="stall", sentence=sentence, phase=tail.phase)
