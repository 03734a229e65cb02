"""The clocks a run reads, as one thing that a test can replace."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Durations come from `monotonic` alone; `utc` is for people and for a run's name, and may step either way."""

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC seconds: the clock that drivers stamp their events with."""

    def utc(self) -> datetime:
        """The time of day, aware, in UTC: no hour occurs twice in it when summer time ends."""


class SystemClock:
    """The host's own clocks."""

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC seconds."""
        return time.monotonic()

    def utc(self) -> datetime:
        """Time of day in UTC."""
        return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """`2026-12-01T12:00:00Z`: how records name a time of day."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
