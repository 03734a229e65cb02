"""The event protocol: what a driver tells the harness, one JSON line at a time (docs/protocol.md). Pure.

A stream may be cut at any byte and may hold lines that are no events: those are counted, never fatal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: No host runs for 30 years, so no time since boot is longer than this, in seconds; time since 1970 is.
UPTIME_MAX_S = 1e9
#: Kinds of event that are results: none counts after `done`.
_RESULTS = frozenset({"metric", "iteration", "quality"})
#: Events that are kept though they cannot be used: enough to say what was wrong.
_UNUSABLE_KEPT = 100
#: Levels of nesting of an event: the protocol has two, records are written by a recursive converter.
_MAX_DEPTH = 12


@dataclass(frozen=True)
class Phase:
    """A named part of a trial. `begin`, `end`: CLOCK_MONOTONIC seconds; `end` is None if the trial ended inside it."""

    name: str
    begin: float
    end: float | None


@dataclass(frozen=True)
class Iteration:
    """One repetition inside a phase. `tokens_in`, `tokens_out`: counts of the request. `seconds`: from and to
    where the metric that reads it says (metrics.py).
    """

    phase: str
    tokens_in: int
    tokens_out: int
    seconds: float


@dataclass(frozen=True)
class Reported:
    """A metric as the driver reported it. `value` is None where it was no finite number; `text` is what was written."""

    name: str
    value: float | None
    text: str


@dataclass(frozen=True)
class Engagement:
    """Evidence from inside the engine process: which code ran. `modules`: how many of each kind; `calls`: per path."""

    name: str
    modules: Mapping[str, Any]
    calls: Mapping[str, Any]


@dataclass(frozen=True)
class Events:
    """Everything one trial reported, in order within each kind.

    `errors`, `qualities`, `facts`: the event objects as written. `done`: the stream held a `done` event. `malformed`:
    lines that were no events of the protocol (a torn last line counts). `unusable`: those of them that were events but
    lacked a field or held one that cannot be used, the first hundred. `open_phase`: name of the phase the stream
    ended in, None outside any. `last_t`: largest `t` seen, CLOCK_MONOTONIC seconds. `late`: results after `done`, which
    are not used.
    """

    phases: tuple[Phase, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    reported: tuple[Reported, ...] = ()
    engagements: tuple[Engagement, ...] = ()
    qualities: tuple[Mapping[str, Any], ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()
    facts: tuple[Mapping[str, Any], ...] = ()
    done: bool = False
    malformed: int = 0
    last_t: float | None = None
    unusable: tuple[Mapping[str, Any], ...] = ()
    late: int = 0

    @property
    def open_phase(self) -> str | None:
        """Name of the innermost phase that began and did not end."""
        return next((phase.name for phase in reversed(self.phases) if phase.end is None), None)


def parse_line(line: str) -> dict[str, Any] | None:
    """One event object, or None for a line that is none. Bare NaN and Infinity are read as floats (json's default)."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _whole_text(event) if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _whole_text(value: Any, depth: int = 0) -> Any:
    """The value with half surrogate pairs replaced, which no file can hold, and nothing deeper than a record goes."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if depth >= _MAX_DEPTH and isinstance(value, dict | list):
        return "(nested too deeply)"
    if isinstance(value, dict):
        return {_whole_text(key): _whole_text(item, depth + 1) for key, item in value.items()}
    return [_whole_text(item, depth + 1) for item in value] if isinstance(value, list) else value


def storable(value: Any) -> Any:
    """The value as strict JSON can hold it: NaN and infinities become the text that says so."""
    if isinstance(value, dict):
        return {key: storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [storable(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def finite(value: object) -> float | None:
    """`value` as a float if it is a finite number (no bool, no text), else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def clock(value: object) -> float | None:
    """`value` as a time of CLOCK_MONOTONIC in seconds, which counts from boot; None for what cannot be one."""
    t = finite(value)
    return t if t is not None and 0 <= t <= UPTIME_MAX_S else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse(lines: Iterable[str]) -> Events:
    """Read a whole stream. Unknown event kinds are kept in `facts`; unusable lines are counted in `malformed`."""
    reader = _Reader()
    for line in lines:
        if line.strip():
            reader.feed(line)
    return reader.events()


class _Reader:
    """Collects one stream; each `_on_...` returns whether the event had the fields it needs."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.iterations: list[Iteration] = []
        self.reported: list[Reported] = []
        self.engagements: list[Engagement] = []
        self.qualities: list[Mapping[str, Any]] = []
        self.errors: list[Mapping[str, Any]] = []
        self.facts: list[Mapping[str, Any]] = []
        self.done = False
        self.malformed = 0
        self.late = 0
        self.unusable: list[Mapping[str, Any]] = []
        self.last_t: float | None = None

    def feed(self, line: str) -> None:
        event = parse_line(line)
        handler = getattr(self, f"_on_{event['event']}", None) if event is not None else None
        if event is None:
            self.malformed += 1
        elif self.done and event["event"] in _RESULTS:
            self.late += 1
        elif handler is None:
            self.facts.append(storable(event))
        elif not handler(event):
            self.malformed += 1
            self.unusable += [event] if len(self.unusable) < _UNUSABLE_KEPT else []
        t = clock(event.get("t")) if event is not None else None
        if t is not None:
            self.last_t = t if self.last_t is None else max(self.last_t, t)

    def _on_phase(self, event: Mapping[str, Any]) -> bool:
        name, state, t = event.get("name"), event.get("state"), clock(event.get("t"))
        if not isinstance(name, str) or t is None:
            return False
        if state == "begin":
            self.phases.append(Phase(name, t, None))
            return True
        for index in range(len(self.phases) - 1, -1, -1):
            phase = self.phases[index]
            if state == "end" and phase.name == name and phase.end is None:
                self.phases[index] = Phase(name, phase.begin, t)
                return True
        return False

    def _on_iteration(self, event: Mapping[str, Any]) -> bool:
        phase, seconds = event.get("phase"), finite(event.get("seconds"))
        tokens_in, tokens_out = _count(event.get("tokens_in")), _count(event.get("tokens_out"))
        if not isinstance(phase, str) or seconds is None or tokens_in is None or tokens_out is None:
            return False
        self.iterations.append(Iteration(phase, tokens_in, tokens_out, seconds))
        return True

    def _on_metric(self, event: Mapping[str, Any]) -> bool:
        name = event.get("name")
        if not isinstance(name, str):
            return False
        self.reported.append(Reported(name, finite(event.get("value")), repr(event.get("value", "no value"))[:200]))
        return True

    def _on_engagement(self, event: Mapping[str, Any]) -> bool:
        name, modules, calls = event.get("name"), event.get("modules", {}), event.get("calls", {})
        if not isinstance(name, str) or not isinstance(modules, dict) or not isinstance(calls, dict):
            return False
        self.engagements.append(Engagement(name, storable(modules), storable(calls)))
        return True

    def _on_quality(self, event: Mapping[str, Any]) -> bool:
        self.qualities.append(event)
        return True

    def _on_error(self, event: Mapping[str, Any]) -> bool:
        self.errors.append(event)
        return True

    def _on_done(self, _event: Mapping[str, Any]) -> bool:
        self.done = True
        return True

    def events(self) -> Events:
        return Events(
            phases=tuple(self.phases),
            iterations=tuple(self.iterations),
            reported=tuple(self.reported),
            engagements=tuple(self.engagements),
            qualities=tuple(self.qualities),
            errors=tuple(self.errors),
            facts=tuple(self.facts),
            done=self.done,
            malformed=self.malformed,
            last_t=self.last_t,
            unusable=tuple(self.unusable),
            late=self.late,
        )
