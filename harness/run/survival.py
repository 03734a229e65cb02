"""The survival limit: the smallest memory limit under which a load survives, by bisection.

The one memory figure that needs no counter: an edge device either starts the program or it does not. Each probe is a
trial under a cgroup limit and stays on record; this module only says which limit to try next. It has no effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.units import MIB

#: The bisection stops when the gap is at most this, or `RELATIVE` of the limit survived: kernels charge memory to a
#: cgroup in batches of 32 to 64 pages a CPU, so finer limits decide by chance.
ABSOLUTE = 4 * MIB
RELATIVE = 0.01


@dataclass(frozen=True)
class Outcome:
    """One probe that ended. `limit`: bytes. `survived`: it ended well under that limit."""

    limit: int
    survived: bool


@dataclass(frozen=True)
class Probe:
    """Try this limit next, in bytes."""

    limit: int


@dataclass(frozen=True)
class Found:
    """Survived at `upper` bytes, did not at `lower` bytes (0 if the smallest limit tried was survived)."""

    lower: int
    upper: int


@dataclass(frozen=True)
class Hopeless:
    """No limit can be given; `why` is a sentence."""

    why: str


def next_step(outcomes: Sequence[Outcome], *, start: int, ceiling: int) -> Probe | Found | Hopeless:
    """What to do after `outcomes`.

    `start`: first limit to try, bytes, such as the peak of an unlimited trial; `ceiling`: largest limit that makes
    sense on this host, bytes. Doubles until a limit is survived, then halves the gap between the largest limit that
    was not survived and the smallest that was. A larger limit that failed after a smaller one survived means that
    something else than memory decides: then there is no survival limit.
    """
    survived = [outcome.limit for outcome in outcomes if outcome.survived]
    died = [outcome.limit for outcome in outcomes if not outcome.survived]
    if not survived:
        return _grow(max(died, default=0), start, ceiling)
    upper, lower = min(survived), max(died, default=0)
    if lower >= upper:
        return Hopeless(
            f"the load survived under {upper} bytes and not under {lower} bytes: something else than memory decides;"
            " look at the logs of the probes"
        )
    if upper - lower <= max(ABSOLUTE, RELATIVE * upper):
        return Found(lower, upper)
    return Probe((lower + upper) // 2)


def _grow(largest: int, start: int, ceiling: int) -> Probe | Hopeless:
    if largest >= ceiling:
        return Hopeless(
            f"the load did not survive under {largest} bytes, all that this host can give; run it on a host with more"
        )
    return Probe(min(ceiling, max(start, 2 * largest)))
