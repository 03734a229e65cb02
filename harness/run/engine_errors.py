"""The engine's own exception, from the log of the process that raised it, else from the driver's error event."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from harness.events import Events
from harness.records import RootException


def root_exception(log: Path, events: Events) -> RootException | None:
    """The first cause of a failure as far as the arm told it; None if it told none.

    The log comes first: the engine process writes its traceback there, while the driver, in the process that waits
    for the engine, can only report that the engine failed.
    """
    return _of_log(log) or _of_events(events)


def _of_log(log: Path) -> RootException | None:
    if find_spec("harness.run.engine_log") is None:
        return None
    try:
        text = log.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    found = import_module("harness.run.engine_log").root_exception(text)
    return found if isinstance(found, RootException) else None


def _of_events(events: Events) -> RootException | None:
    for event in events.errors:
        name = event.get("exception")
        if isinstance(name, str) and name:
            frame, process = event.get("frame"), event.get("process")
            return RootException(
                exception=name,
                message=str(event.get("message", "")),
                frame=frame if isinstance(frame, str) else None,
                process=process if isinstance(process, str) else None,
            )
    return None
