"""Fake arms: small programs that misbehave in one stated way. `python -m harness.testing.arms NAME [ARGS]`.

Each speaks the event protocol where its story has an engine that does. Standard library only. `--list` prints the
names with what each does. An arm that reports a metric calls it `score` unless told otherwise. The programs stand in
arms_memory.py, arms_processes.py and arms_output.py, what they say in speech.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from harness.testing.arms_memory import churn, fork3, lastgasp, mapped, shm, spike
from harness.testing.arms_output import chatty, flood, ok, position, raises, show, silent, slow, value
from harness.testing.arms_processes import (
    chain,
    daemon,
    die,
    engine_dies,
    error_without_metric,
    good_end_with_error,
    leave,
    setsid,
    stopped,
    stubborn,
)

#: Every fake arm by its name on the command line.
ARMS: Final[dict[str, Callable[..., None]]] = {
    arm.__name__.replace("_", "-"): arm
    for arm in (
        ok,
        leave,
        setsid,
        daemon,
        stubborn,
        stopped,
        flood,
        chatty,
        spike,
        lastgasp,
        shm,
        mapped,
        fork3,
        churn,
        chain,
        die,
        engine_dies,
        good_end_with_error,
        error_without_metric,
        value,
        position,
        raises,
        slow,
        silent,
        show,
    )
}


def main(argv: list[str]) -> int:
    """Run one fake arm."""
    if argv == ["--list"]:
        for name, arm in ARMS.items():
            print(f"{name:22} {arm.__doc__}")
        return 0
    if not argv or argv[0] not in ARMS:
        print(f"usage: python -m harness.testing.arms NAME [ARGS]; NAME is one of {', '.join(ARMS)}", file=sys.stderr)
        return 2
    ARMS[argv[0]](*argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
