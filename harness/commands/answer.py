"""What a command answers: text for the two streams and an exit code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command. Where several hold, the first in this order wins."""

    OK = 0
    HARNESS_FAILED = 1
    USAGE = 2
    CLAIM_CONTRADICTED = 4
    TRIALS_FAILED = 3
    INTERRUPTED = 5


def first_code(*codes: Exit) -> Exit:
    """The code that wins by the contract's order; 0 gives way to all others."""
    order = (Exit.HARNESS_FAILED, Exit.USAGE, Exit.CLAIM_CONTRADICTED, Exit.TRIALS_FAILED, Exit.INTERRUPTED, Exit.OK)
    return min(codes, key=order.index)


@dataclass(frozen=True)
class Answer:
    """`out` goes to standard output as it is, `err` to standard error; both without a final newline."""

    code: Exit = Exit.OK
    out: str = ""
    err: str = ""


class CommandError(Exception):
    """A command that cannot go on. The message says what is wrong and what to do next."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.code = code
