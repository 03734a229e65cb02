"""What a fake arm says and holds: events of the protocol, and memory. Standard library only."""

from __future__ import annotations

import json
import mmap
import os
import time
from pathlib import Path
from typing import Final

MB: Final = 1_000_000
PAGE: Final = 4096


def emit(event: str, **fields: object) -> None:
    """Append one event to the stream, if there is one."""
    path = os.environ.get("HARNESS_EVENTS")
    if path:
        line = json.dumps({"event": event, **fields}) + "\n"
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line)


def phase(name: str, state: str) -> None:
    """Report the begin or the end of a phase."""
    emit("phase", name=name, state=state, t=time.monotonic())


def report(value: object = 100.0, name: str = "score") -> None:
    """Report a good-looking metric, as an event and as a line of output."""
    emit("metric", name=name, value=value)
    print(f"{name}: {value}", flush=True)


def done() -> None:
    """Report that all was said."""
    emit("done", t=time.monotonic())


def touch(size: int) -> mmap.mmap:
    """Private anonymous memory of `size` bytes, every page written."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, size, PAGE):
        memory[offset] = 1
    return memory
