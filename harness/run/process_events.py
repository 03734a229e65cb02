"""The owner's ear on the process connector: how processes ended that their own parents reaped.

It is the one source that tells of an engine's SIGILL behind a parent that exits with 1. Where the kernel refuses it,
`open_events` says why and the other sources stand.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from harness.run import process_connector
from harness.run.process_connector import Exec, Exit, Fork

__all__ = ["Exec", "Exit", "Fork", "ProcessEvents", "Unavailable", "open_events"]


class Unavailable(NamedTuple):
    """The kernel does not tell. `reason`: one clause."""

    reason: str


class ProcessEvents:
    """An open subscription. `lost`: the kernel dropped events because they were not read in time."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.lost = False

    def fileno(self) -> int:
        """For poll: readable when events wait."""
        return self._link.fileno()

    def read(self) -> list[Fork | Exec | Exit]:
        """All events that wait, in the kernel's order; threads are left out."""
        messages, lost = process_connector.waiting(self._link)
        self.lost = self.lost or lost
        return [event for event in map(process_connector.parse, messages) if event is not None]

    def close(self) -> None:
        """End the subscription."""
        process_connector.unsubscribe(self._link)


def open_events() -> ProcessEvents | Unavailable:
    """Subscribe, or say why that cannot be done here."""
    try:
        return ProcessEvents(process_connector.subscribe())
    except process_connector.RefusedError as refused:
        return Unavailable(str(refused))
