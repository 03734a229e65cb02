"""How far a command is, on standard error: a line every few seconds, or one line that is redrawn on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Final, TextIO

_TERMINAL_SECONDS: Final = 0.2
_LOG_SECONDS: Final = 5.0


class Progress:
    """Counts tensors and values. `values`: how many there are, over all tensors."""

    def __init__(self, verb: str, *, tensors: int, values: int, stream: TextIO | None = None) -> None:
        self._verb, self._tensors, self._values = verb, tensors, max(values, 1)
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._start = self._shown = time.monotonic()
        self._done_tensors = self._done_values = 0

    def advance(self, values: int) -> None:
        """So many values more are done."""
        self._done_values += values
        now = time.monotonic()
        if now - self._shown >= (_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS):
            self._shown = now
            self._show(f", about {self._remaining(now):.0f} s left")

    def tensor_done(self) -> None:
        """One tensor more is done."""
        self._done_tensors += 1

    def finish(self) -> None:
        """All is done."""
        self._show(f" in {time.monotonic() - self._start:.0f} s", last=True)

    def _remaining(self, now: float) -> float:
        return (now - self._start) * (self._values - self._done_values) / max(self._done_values, 1)

    def _show(self, tail: str, *, last: bool = False) -> None:
        share = 100 * self._done_values / self._values
        line = f"{self._verb}: {self._done_tensors} of {self._tensors} tensors, {share:.0f} %{tail}"
        self._stream.write(f"\r{line:<78}{chr(10) if last else ''}" if self._terminal else f"{line}\n")
        self._stream.flush()
