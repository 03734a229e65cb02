"""The sampler: a program of its own that reads the memory of a trial's processes until its standard input is closed.

It is a child of the harness, outside the arm's tree, session and cgroup, and imports nothing beyond the standard
library, so that it starts in 40 ms and holds 12 MB. It writes to files in memory that the harness made: a full disk
loses nothing. It never ends because of anything a process does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from harness.run.cgroup_gauge import Gauge
from harness.run.kernel_events import KernelEvents
from harness.run.tracker import STRIDE, Tracker

#: What the harness may show live: time (ns), sum of RssAnon (KiB), processes, unknown processes, ticks.
LATEST: Final = struct.Struct("=QQIIQ")
#: The cgroup's own statistics are read at every 10th tick: they cost as much as a process.
_CGROUP_STRIDE: Final = 10
#: The reading for people is renewed at every 5th tick: they are shown four a second.
_LATEST_STRIDE: Final = 5
#: Lines are handed over once a second at 50 Hz.
_FLUSH_TICKS: Final = 50
#: Before this kernel each thread kept pages of a counter to itself (harness.measure.counter_error).
_PER_CPU_SINCE: Final = (6, 2)
_IN_MODIFY: Final = 0x2
#: As in harness.events, which is not imported here: it would double the sampler's start.
_UPTIME_MAX_S: Final = 1e9
#: A stream of events without a line end is dropped beyond this.
_LONGEST_LINE: Final = 1 << 20
#: After so many errors of its own the sampler gives up and says so.
_ERRORS: Final = 100


@dataclass(frozen=True)
class Config:
    """What to sample. Times in seconds; `samples_fd`, `latest_fd`: files made by the harness."""

    root: int
    session: int
    token: str
    events_path: str
    samples_fd: int
    latest_fd: int
    period: float
    serving_period: float
    proc: str
    kernel_events: bool
    cgroup: dict[str, Any] | None
    header: dict[str, Any]


class EventTail:
    """Phase boundaries from the events file, as soon as they are written where inotify is to be had.

    The file is opened once: what an arm puts in its place (a pipe that nobody writes to, say) is not waited for.
    """

    def __init__(self, path: str) -> None:
        self._offset = 0
        self._rest = b""
        self.fd = _watch(path)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def boundaries(self) -> list[tuple[float, str, str]]:
        """(t, `begin` or `end`, name) of each boundary written since the last call."""
        if self.fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self.fd, 65536)
        if os.fstat(self._file).st_size < self._offset:  # emptied and begun anew
            self._offset, self._rest = 0, b""
        data = os.pread(self._file, _LONGEST_LINE, self._offset)
        self._offset += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) < _LONGEST_LINE else b""
        return [found for line in lines if b"phase" in line and (found := _boundary(line)) is not None]


def _boundary(line: bytes) -> tuple[float, str, str] | None:
    try:
        event = json.loads(line)
        if event["event"] == "phase" and event["state"] in ("begin", "end") and 0 <= event["t"] <= _UPTIME_MAX_S:
            return float(event["t"]), str(event["state"]), str(event["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _watch(path: str) -> int | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if fd >= 0 and int(libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY)) >= 0:
            return fd
    except (OSError, AttributeError):
        pass
    return None


class Output:
    """Hands lines over; what cannot be written is kept and counted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._kept = b""
        self.failed = ""

    def write(self, lines: list[str]) -> None:
        """Write lines, those that failed before first."""
        data = self._kept + "".join(f"{line}\n" for line in lines).encode(errors="replace")
        self._kept = b""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError as error:
                self.failed = f"samples could not be handed over: {error.strerror}"
                self._kept = data[: 64 << 20]
                return


class Sampler:
    """One trial's sampling, from the first look to the end."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.output = Output(config.samples_fd)
        events = KernelEvents() if config.kernel_events else None
        if events is not None and events.problem:
            events.close()
        usable = events if events is not None and not events.problem else None
        procs = str(config.cgroup["procs"]) if config.cgroup else None
        self.tail = EventTail(config.events_path)
        self.wake = select.poll()
        for fd in (0, self.tail.fd):
            if fd is not None:
                self.wake.register(fd, select.POLLIN)
        self.tracker = Tracker(
            config.root, session=config.session, token=config.token, proc=config.proc, cgroup_procs=procs, events=usable
        )
        self.gauge = Gauge(config.cgroup) if config.cgroup else None
        self.period = config.period
        self.by_thread = tuple(config.header["kernel"]) < _PER_CPU_SINCE
        self.began = time.monotonic()
        self.startup_cpu = time.process_time()
        header = {
            **config.header,
            "format": 1,
            "events": usable is not None,
            "exit_marks": usable is not None and not usable.marks_problem,
            "why_no_events": _why(config, events),
            "nice": _be_prompt(),
            "stride": STRIDE,
            "mark_resets": self.gauge is not None and self.gauge.resets,
        }
        self.output.write([f"H {json.dumps(header)}"])

    def run(self) -> None:
        """Sample until standard input is closed."""
        errors = 0
        deadline = time.monotonic()
        while errors < _ERRORS:
            try:
                self.sample()
                deadline = max(deadline + self.period, time.monotonic())
                if self.wait(deadline):
                    break
            except Exception as error:  # noqa: BLE001  # whatever a process does, the rest of the tree goes on being read
                errors += 1
                self.tracker.lines.append(f"L {type(error).__name__} while sampling: {error}".replace("\n", " "))
                time.sleep(self.period)
        self.finish()

    def sample(self) -> None:
        """One tick, and what falls due with it."""
        tracker = self.tracker
        tracker.tick()
        if self.gauge is not None and tracker.ticks % _CGROUP_STRIDE == 0:
            tracker.lines.append(self.gauge.line(reset=False))
        if tracker.ticks % _LATEST_STRIDE == 1:
            latest = LATEST.pack(time.monotonic_ns(), tracker.total, len(tracker.live), tracker.unknown, tracker.ticks)
            os.pwrite(self.config.latest_fd, latest, 0)
        if tracker.ticks % _FLUSH_TICKS == 0:
            tracker.check_cgroup()
            if self.by_thread:
                tracker.count_threads()
            self.flush()

    def wait(self, deadline: float) -> bool:
        """Sleep until the deadline; phase boundaries are acted on at once. True when sampling is to end."""
        while True:
            left = deadline - time.monotonic()
            ready = self.wake.poll(left * 1e3 if left > 0 else 0)
            if ready:
                woken = [fd for fd, _ in ready]
                if 0 in woken and not os.read(0, 4096):
                    return True
                if self.tail.fd in woken:
                    self.cross(self.tail.boundaries())
            if self.tail.fd is None:
                self.cross(self.tail.boundaries())
            if left <= 0 or not ready:
                return False

    def cross(self, boundaries: list[tuple[float, str, str]]) -> None:
        """Read everything before a boundary, begin the marks anew, and read everything after it."""
        tracker = self.tracker
        for event_t, state, name in boundaries:
            tracker.tick(everything=True)
            stamp = f"B {time.monotonic_ns()},{round(event_t * 1e9)},{state},{name}".replace("\n", " ")
            if self.gauge is not None:
                tracker.lines.append(self.gauge.line(reset=True))
            tracker.lines.append(stamp)
            tracker.reset_marks()
            tracker.check_cgroup()
            if self.by_thread:
                tracker.count_threads()
            if (state, name) == ("end", "settle"):
                tracker.read_pss()
            if (state, name) == ("end", "load"):
                self.period = self.config.serving_period
            tracker.tick(everything=True)

    def flush(self) -> None:
        """Hand the lines over."""
        self.output.write(self.tracker.lines)
        self.tracker.lines = []

    def finish(self) -> None:
        """The last reading and the cost."""
        self.cross(self.tail.boundaries())
        self.tracker.tick(everything=True)
        if self.gauge is not None:
            self.tracker.lines.append(self.gauge.line(reset=False))
        if self.output.failed:
            self.tracker.lines.append(f"L {self.output.failed}")
        cost = {
            "ticks": self.tracker.ticks,
            "cpu_s": time.process_time(),
            "startup_cpu_s": self.startup_cpu,
            "wall_s": time.monotonic() - self.began,
            "period_s": self.config.period,
        }
        self.tracker.lines.append(f"E {json.dumps(cost)}")
        self.flush()
        self.tracker.close()


def _why(config: Config, events: KernelEvents | None) -> str:
    if not config.kernel_events or events is None:
        return "kernel events: switched off"
    return "; ".join(problem for problem in (events.problem, events.marks_problem) if problem)


def _be_prompt() -> int:
    """Ask for a better place in the queue of a busy host; without privilege the sampler stays where it is."""
    wish: Callable[[int], int] = os.nice
    try:
        return wish(-5)
    except OSError:
        return wish(0)


def main(argv: list[str]) -> None:
    """`argv`: one JSON object, the configuration."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    Sampler(Config(**json.loads(argv[0]))).run()


if __name__ == "__main__":
    main(sys.argv[1:])
