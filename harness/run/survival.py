"""The survival limit: the smallest memory limit under which a load survives, by bisection.

The one memory figure that needs no counter: an edge device either starts the program or it does not. Each probe is a
trial under a cgroup limit and stays on record; this module only says which limit to try next. It has no effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.plan import PlannedTrial
from harness.records import Reason, SurvivalLimit, TrialRecord
from harness.units import MIB

#: The bisection stops when the gap is at most this, or `RELATIVE` of the limit survived: kernels charge memory to a
#: cgroup in batches of 32 to 64 pages a CPU, so finer limits decide by chance.
ABSOLUTE = 4 * MIB
RELATIVE = 0.01
#: First limit for an arm of which nothing is on record.
FIRST = 512 * MIB


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
    sense on this host, bytes. Feels its way from `start` in steps that quadruple, up to a limit that is survived or
    down to one that is not, then halves the gap between the largest limit that was not survived and the smallest that
    was: two probes from the limit of the pass before, about eight from a peak plus 10 %. A larger limit that failed
    after a smaller one survived means that something else than memory decides: then there is no survival limit.
    """
    start = min(start, ceiling)
    survived = [outcome.limit for outcome in outcomes if outcome.survived]
    died = [outcome.limit for outcome in outcomes if not outcome.survived]
    if not survived:
        return _grow(died, start, ceiling)
    upper, lower = min(survived), max(died, default=0)
    if lower >= upper:
        return Hopeless(
            f"the load survived under {upper} bytes and not under {lower} bytes: something else than memory decides;"
            " look at the logs of the probes"
        )
    if upper - lower <= resolution(upper):
        return Found(lower, upper)
    if not died and (below := upper - resolution(upper) * 4 ** (len(survived) - 1)) > upper // 2:
        return Probe(below)
    return Probe((lower + upper) // 2)


def resolution(limit: int) -> int:
    """Width of the bracket at which the bisection stops near that limit, bytes."""
    return max(ABSOLUTE, int(RELATIVE * limit))


def _grow(died: Sequence[int], start: int, ceiling: int) -> Probe | Hopeless:
    if not died:
        return Probe(start)
    largest = max(died)
    if largest >= ceiling:
        return Hopeless(
            f"the load did not survive under {largest} bytes, all that this host can give; run it on a host with more"
        )
    return Probe(min(ceiling, largest + resolution(largest) * 4 ** (len(died) - 1)))


@dataclass(frozen=True)
class Limited:
    """This host can run a trial under a memory limit of up to `ceiling` bytes."""

    ceiling: int


@dataclass(frozen=True)
class Unlimited:
    """This host cannot; `why` names what it lacks."""

    why: str


@dataclass(frozen=True)
class NextProbe:
    """The probe to run: `limit` in bytes, `number` from 1 within its planned trial."""

    limit: int
    number: int


def next_probe(
    planned: PlannedTrial, records: Sequence[TrialRecord], room: Limited | Unlimited
) -> NextProbe | SurvivalLimit:
    """What must run before the next attempt at a counted trial, or what its probes have found. Everything is read from
    the records, so a run that goes on after a crash knows the probes of before.
    """
    if isinstance(room, Unlimited):
        return SurvivalLimit(missing=room.why, host_lacks=True)
    mine = [record for record in records if record.planned == planned.ordinal]
    answered = max((r.trial for r in mine if r.probe_limit_bytes is None and not _interrupted(r)), default=0)
    probes = [(record, record.probe_limit_bytes) for record in mine if record.probe_limit_bytes is not None]
    outcomes = [
        Outcome(limit, _survived(record))
        for record, limit in probes
        if record.trial > answered and not _says_nothing(record)
    ]
    step = next_step(outcomes, start=_start(planned.arm, records), ceiling=room.ceiling)
    match step:
        case Probe(limit):
            return NextProbe(limit, 1 + len(probes))
        case Found(lower, upper):
            return SurvivalLimit(lower=lower, upper=upper, probes=len(outcomes))
        case Hopeless(why):
            return SurvivalLimit(missing=why, probes=len(outcomes))


def _start(arm: str, records: Sequence[TrialRecord]) -> int:
    """The limit that this arm had last; else its largest peak without a limit, and a tenth; else `FIRST`."""
    own = [r for r in records if r.arm == arm and r.probe_limit_bytes is None and not r.scoring]
    limits = [record.survival.upper for record in own if record.survival and record.survival.upper]
    if limits:
        return limits[-1]
    phases = [record.memory.phase("trial") for record in own if record.memory is not None]
    peaks = [phase.s_lower for phase in phases if phase is not None and phase.s_lower]
    return max(ABSOLUTE, max(peaks) * 11 // 10) if peaks else FIRST


def _survived(record: TrialRecord) -> bool:
    """It ended well; a meter that was lost takes nothing from that."""
    return record.failure is None or record.failure.reason == Reason.METER_LOST


def _interrupted(record: TrialRecord) -> bool:
    return record.failure is not None and record.failure.reason == Reason.INTERRUPTED


def _says_nothing(record: TrialRecord) -> bool:
    """Ended by a person or by a fault of the harness, whatever its limit was."""
    return record.failure is not None and record.failure.reason in {Reason.INTERRUPTED, Reason.HARNESS_ERROR}
