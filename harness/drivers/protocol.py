"""The writing side of the event protocol (docs/protocol.md): JSON lines appended to the file that HARNESS_EVENTS names.

Standard library only, and no import of the harness: a driver that runs in another interpreter imports this file from
the folder it lies in. One line is one `write` to a descriptor opened with O_APPEND, so that several processes of an
arm may report into one file without tearing each other's lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Longest message kept of an exception: pydantic reports can run to many pages.
_MESSAGE_CHARACTERS = 4000


class EventStream:
    """Appends events to `path`. `t` of an event is CLOCK_MONOTONIC seconds, one clock for all processes of a host."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._open_phases: list[str] = []

    @property
    def phase_name(self) -> str | None:
        """The innermost open phase."""
        return self._open_phases[-1] if self._open_phases else None

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event. Raise `TypeError` for a field that JSON cannot hold, `OSError` if the file cannot grow."""
        line = json.dumps({"event": event, **fields}, ensure_ascii=False) + "\n"
        os.write(self._descriptor, line.encode("utf-8", "backslashreplace"))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report the begin and the end of a phase. A phase left by an exception stays open: the trial ended inside."""
        self.emit("phase", name=name, state="begin", t=time.monotonic())
        self._open_phases.append(name)
        yield
        self._open_phases.pop()
        self.emit("phase", name=name, state="end", t=time.monotonic())

    def iteration(self, phase: str, *, tokens_in: int, tokens_out: int, seconds: float, **more: Any) -> None:
        """Report one repetition. `seconds`: as the metric that reads this phase defines it."""
        self.emit("iteration", phase=phase, tokens_in=tokens_in, tokens_out=tokens_out, seconds=seconds, **more)

    def engagement(self, name: str, modules: Mapping[str, int], calls: Mapping[str, int]) -> None:
        """Report evidence from inside the engine process of which code ran."""
        self.emit("engagement", name=name, modules=dict(modules), calls=dict(calls))

    def error(self, stage: str, error: BaseException) -> None:
        """Report an exception with its innermost frame and the phase it happened in."""
        frames = traceback.extract_tb(error.__traceback__)
        inner = frames[-1] if frames else None
        self.emit(
            "error",
            t=time.monotonic(),
            phase=self.phase_name,
            stage=stage,
            exception=type(error).__name__,
            message=str(error)[:_MESSAGE_CHARACTERS],
            frame=f"{inner.filename}:{inner.lineno} in {inner.name}" if inner else None,
            process=f"pid {os.getpid()}",
        )

    def done(self) -> None:
        """Report that the arm has said everything. A trial without this event has failed."""
        self.emit("done", t=time.monotonic())


def from_environment() -> EventStream:
    """The stream that the harness opened for this trial. Exit with a message if there is none."""
    path = os.environ.get("HARNESS_EVENTS")
    if not path:
        sys.exit("HARNESS_EVENTS is not set: set it to the path of a file to append events to")
    return EventStream(path)


def workload() -> dict[str, Any]:
    """The resolved arm and workload of this trial (docs/protocol.md). Exit with a message if there is none."""
    path = os.environ.get("HARNESS_WORKLOAD")
    if not path:
        sys.exit("HARNESS_WORKLOAD is not set: set it to the path of a trial's workload file")
    loaded: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return loaded
