"""The engine's own exception, from the log of the process that raised it, else from the driver's error event."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from harness.events import Events
from harness.records import RootException
from harness.run import engine_log
from harness.units import MIB

_END: Final = MIB
#: A log without any of these holds no exception: most logs are done with that.
_WORDS: Final = (b"Traceback", b"Error", b"Exception", b"Interrupt", b"Exit", b"error:")


def root_exception(log: Path, events: Events) -> RootException | None:
    """The first cause of a failure as far as the arm told it; None if it told none.

    The log comes first: the engine process writes its traceback there, while the driver, in the process that waits
    for the engine, can only report that the engine failed.
    """
    return _of_log(log) or _of_events(events)


def _of_log(log: Path) -> RootException | None:
    try:
        content = _ends(log)
    except OSError:
        return None
    if not any(word in content for word in _WORDS):
        return None
    return engine_log.root_exception(content.decode("utf-8", "replace"))


def _ends(log: Path) -> bytes:
    """The log, or its first and last MiB where it is longer: 8 MiB of progress bars cost 3 s to read line by line."""
    with log.open("rb") as file:
        content = file.read(_END)
        rest = max(log.stat().st_size - _END, _END)
        file.seek(rest)
        return content + (file.read(_END) if rest == _END else b"\n" + file.read(_END))


def _of_events(events: Events) -> RootException | None:
    for event in events.errors:
        name = event.get("exception")
        if isinstance(name, str) and name:
            frame, process = event.get("frame"), event.get("process")
            return RootException(
                exception=name,
                message=str(event.get("message", "")),
                frame=engine_log.without_host(frame) if isinstance(frame, str) else None,
                process=process if isinstance(process, str) else None,
            )
    return None
