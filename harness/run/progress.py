"""What a run tells the person who waits for it: a live line in a terminal, plain lines elsewhere, nothing in tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from harness.records import TrialRecord, first_line
from harness.run.schedule import Task
from harness.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


class Moment(Protocol):
    """One moment of a running trial: `Now`, or `harness.run.trial.Now`."""

    @property
    def phase(self) -> str | None:
        """The open phase, None outside any."""

    @property
    def memory_bytes(self) -> int | None:
        """Last sampled sum of RssAnon, None before the first sample."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the trial's start."""


@dataclass(frozen=True, kw_only=True)
class Now:
    """A moment in plain values."""

    phase: str | None = None
    memory_bytes: int | None = None
    elapsed_s: float = 0.0


class Progress(Protocol):
    """Who shows how a run goes. No method may raise for a terminal that went away: showing is not measuring."""

    def began(self, run: str, total: int) -> None:
        """The run starts or goes on; `total` attempts are still to run."""

    def trial_began(self, task: Task, number: int, total: int, left_s: float | None) -> None:
        """Attempt `number` of `total` starts; about `left_s` seconds are left, None while nothing tells."""

    def now(self, moment: Moment) -> None:
        """A moment within a trial, several a second."""

    def trial_ended(self, record: TrialRecord) -> None:
        """The trial is on disk."""

    def note(self, text: str) -> None:
        """Something a person should know, now."""

    def ended(self, text: str) -> None:
        """The run is over; `text` says how."""


class PlainProgress:
    """One line when a trial starts and one when it ends, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def began(self, run: str, total: int) -> None:
        """Say what is ahead."""
        self._say(f"run {run}: {total} trials to run")

    def trial_began(self, task: Task, number: int, total: int, left_s: float | None) -> None:
        """Say which trial runs."""
        self._say(heading(task, number, total, left_s))

    def now(self, moment: Moment) -> None:
        """Several lines a second would drown a log."""

    def trial_ended(self, record: TrialRecord) -> None:
        """Say how it went."""
        self._say(outcome(record))

    def note(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def ended(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def _say(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            print(text, file=self._stream, flush=True)
        except (OSError, ValueError):  # the reader went away, or the stream is closed: from now on nobody is told
            self._stream = None


class LiveProgress(PlainProgress):
    """Plain lines, and below them one live line: pass, arm, phase, memory now, time left. Needs a terminal and rich."""

    #: Redraws a second. A redraw costs 1 to 2 ms of the core that the arms also use.
    REDRAWS: Final = 2

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        # no thread of its own: a redraw happens when a moment arrives, never while a phase is timed by somebody else
        self._live: Live | None = Live(console=self._console, auto_refresh=False, transient=True)
        self._heading, self._left_s, self._drawn = "", None, -1.0

    def began(self, run: str, total: int) -> None:
        """Start the live line."""
        super().began(run, total)
        if self._live is not None:
            self._live.start()

    def trial_began(self, task: Task, number: int, total: int, left_s: float | None) -> None:
        """Show it in the live line only; its end makes a lasting line."""
        self._heading, self._drawn = heading(task, number, total, left_s), -1.0
        self._draw("starting")

    def now(self, moment: Moment) -> None:
        """Redraw, at most twice a second."""
        if self._live is None or 0 <= moment.elapsed_s - self._drawn < 1 / self.REDRAWS:
            return
        self._drawn = moment.elapsed_s
        self._draw(describe(moment))

    def _draw(self, what: str) -> None:
        if self._live is None:
            return
        try:
            self._live.update(self._text(f"{self._heading} | {what}"), refresh=True)
        except (OSError, ValueError):
            self._live = None

    def ended(self, text: str) -> None:
        """Take the live line away and leave the last word."""
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            except (OSError, ValueError):
                return
        super().ended(text)

    def _say(self, text: str) -> None:
        try:
            self._console.print(text, markup=False, emoji=False)
        except (OSError, ValueError):
            self._live = None

    @staticmethod
    def _text(line: str) -> Text:
        from rich.text import Text

        return Text(line, no_wrap=True, overflow="ellipsis")


def progress_for(stream: TextIO = sys.stderr) -> Progress:
    """A live line if `stream` is a terminal that can move its cursor, else plain lines."""
    dumb = os.environ.get("TERM", "dumb") in {"", "dumb"}
    return LiveProgress(stream) if stream.isatty() and not dumb else PlainProgress(stream)


def heading(task: Task, number: int, total: int, left_s: float | None) -> str:
    """`[3/12] pass 1, arm direct (attempt 2), about 4 min 10 s left`."""
    planned = task.planned
    where = "priming" if planned.priming else f"pass {planned.pass_number}"
    if planned.scoring:
        where = f"scoring {planned.position}"
    if task.limit is not None:
        where += f", probe {task.probe} under {format_bytes(task.limit)}"
    again = f" (attempt {task.attempt})" if task.attempt > 1 else ""
    left = f", about {format_seconds(left_s)} left" if left_s is not None else ""
    return f"[{number}/{total}] {where}, arm {planned.arm}{again}{left}"


def describe(moment: Moment) -> str:
    """`load, 1.20 GiB, 12.00 s`."""
    memory = "memory unknown yet" if moment.memory_bytes is None else format_bytes(moment.memory_bytes)
    return f"{moment.phase or 'starting'}, {memory}, {format_seconds(moment.elapsed_s)}"


def outcome(record: TrialRecord) -> str:
    """`        direct: ok in 12.00 s` or `        direct: timeout in load: no end within 30.00 s`."""
    took = f"{record.arm}: ok in {format_seconds(record.ended - record.began)}"
    failure = record.failure
    if record.probe_limit_bytes is not None and (failure is None or record.expected):
        how = "survived" if failure is None else f"did not survive ({failure.reason.value})"
        return f"        {record.arm}: {how} under {format_bytes(record.probe_limit_bytes)}"
    if failure is None:
        return f"        {took}"
    expected = "failed as expected, " if record.expected else ""
    phase = f" in {failure.phase}" if failure.phase else ""
    return f"        {record.arm}: {expected}{failure.reason.value}{phase}: {first_line(failure.evidence)}"


def time_left(records: Sequence[TrialRecord], tasks: Sequence[Task]) -> float | None:
    """Seconds the open tasks will take, from the trials so far: each arm's median (of its scoring trials apart), else
    the median of all; None before the first trial has ended. An interrupted trial does not tell how long one takes.
    """
    took: dict[tuple[str, bool], list[float]] = {}
    for record in records:
        interrupted = record.failure is not None and record.failure.reason.value == "interrupted"
        if record.probe_limit_bytes is None and not interrupted:
            took.setdefault((record.arm, record.scoring), []).append(record.ended - record.began)
    typical = {kind: median(seconds) for kind, seconds in took.items()}
    if not typical:
        return None
    other = median(typical.values())
    return sum(typical.get((task.planned.arm, task.planned.scoring), other) for task in tasks)
