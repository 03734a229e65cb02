"""Claims made in advance, judged on the simultaneous interval: supported if it lies wholly inside what was expected,
contradicted if wholly outside, undecided otherwise.

A contradiction never comes from an interval that the run could not support: a pair refused for failed trials, unequal
work, a missing metric, too few passes or a control that separates leaves its claim undecided, with that reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import exp, inf
from typing import Any

from harness.experiment.types import Claim, ClaimKind
from harness.records import TrialRecord
from harness.units import format_quantity
from harness.verdict.types import (
    ClaimVerdict,
    Code,
    Interval,
    JudgedClaim,
    PairVerdict,
    Ranked,
    Refusal,
    Refused,
    Unknown,
)

#: Refusals that leave an interval standing: it is wide, or the ranking rule asks for more, but what it says holds.
HARMLESS = frozenset({Code.SPREADS_OVERLAP, Code.INTERVAL_CONTAINS_ONE, Code.WITHIN_MARGIN})


def judge_claim(claim: Claim, verdicts: Sequence[PairVerdict], host: Mapping[str, Any]) -> JudgedClaim:
    """Judge one claim against the verdict of its pair."""
    absent = lacking(claim.host, host)
    if absent is not None:
        return JudgedClaim(id=claim.id, verdict=ClaimVerdict.NOT_COMPARABLE, why=absent)
    names = {claim.arm, claim.versus}
    verdict = next((v for v in verdicts if v.metric.name == claim.metric and {v.a, v.b} == names), None)
    if verdict is None:
        why = f"no verdict on {claim.arm} and {claim.versus} for {claim.metric}: the experiment does not measure it"
        return JudgedClaim(id=claim.id, verdict=ClaimVerdict.UNDECIDED, why=why)
    found, why = _judge(claim, verdict)
    return JudgedClaim(id=claim.id, verdict=found, why=f"{claim.text}: {why}" if claim.text else why)


def _judge(claim: Claim, verdict: PairVerdict) -> tuple[ClaimVerdict, str]:
    void = _void(claim, verdict)
    if void:
        return ClaimVerdict.UNDECIDED, "; ".join(f"{reason.code.value}: {reason.sentence}" for reason in void)
    if claim.kind is ClaimKind.NOT_RANKED:
        if isinstance(verdict.outcome, Ranked):
            return ClaimVerdict.CONTRADICTED, f"{verdict.outcome.better} is ranked better"
        return ClaimVerdict.SUPPORTED, "the pair is not ranked (which does not say that the arms are the same)"
    if claim.kind is ClaimKind.DIFFERENCE:
        return _place(claim, _turned_difference(verdict.difference, claim.arm == verdict.a), verdict.metric.unit)
    return _place(claim, _turned_ratio(verdict, claim.arm == verdict.a), "")


def _void(claim: Claim, verdict: PairVerdict) -> list[Refusal]:
    """Refusals that leave the claim without an interval to stand on. What places within a pass can contribute widens a
    ratio's interval instead; it cannot make a pair that is not ranked into one that is.
    """
    if not isinstance(verdict.outcome, Refused):
        return []
    bearable = HARMLESS if claim.kind is ClaimKind.DIFFERENCE else HARMLESS | {Code.ORDER_CONFOUNDED}
    return [reason for reason in verdict.outcome.reasons if reason.code not in bearable]


def _place(claim: Claim, interval: Interval | Unknown, unit: str) -> tuple[ClaimVerdict, str]:
    """Where the interval lies against what the claim allows."""
    if isinstance(interval, Unknown):
        return ClaimVerdict.UNDECIDED, interval.why
    low, high = _expected(claim)
    shown = f"{format_quantity(interval.low, unit)} to {format_quantity(interval.high, unit)}"
    strict = claim.op in {">", "<"}
    touching = strict and (interval.low == low or interval.high == high)
    if low <= interval.low and interval.high <= high and not touching:
        return ClaimVerdict.SUPPORTED, f"the whole interval, {shown}, lies inside what was expected"
    if interval.high < low or interval.low > high or (strict and (interval.high == low or interval.low == high)):
        return ClaimVerdict.CONTRADICTED, f"the whole interval, {shown}, lies outside what was expected"
    return ClaimVerdict.UNDECIDED, f"the interval, {shown}, holds values inside and outside what was expected"


def _expected(claim: Claim) -> tuple[float, float]:
    """What the claim allows, as [low, high]."""
    if claim.kind is ClaimKind.EQUIVALENT:
        return 1 / (1 + claim.value), 1 + claim.value
    return (claim.value, inf) if claim.op in {">=", ">"} else (-inf, claim.value)


def _turned_ratio(verdict: PairVerdict, forward: bool) -> Interval | Unknown:
    found = verdict.interval
    if isinstance(found, Unknown):  # an exact metric has no interval: its ratio is a point
        if isinstance(verdict.ratio, Unknown) or found.why != "exact":
            return found
        found = Interval(verdict.ratio, verdict.ratio, 1.0, "exact")
    room = exp(min(verdict.place, 700.0)) if Code.ORDER_CONFOUNDED in verdict.codes else 1.0
    low, high = found.low / room, found.high * room
    if not forward:
        low, high = (1 / end if end > 1e-308 else inf for end in (high, low))  # 1 / 5e-324 is no float
    return Interval(low, high, found.level, found.method)


def _turned_difference(found: Interval | Unknown, forward: bool) -> Interval | Unknown:
    if isinstance(found, Unknown) or forward:
        return found
    return Interval(-found.high, -found.low, found.level, found.method)


def as_used(host: Mapping[str, Any], arms: Sequence[str | None], records: Sequence[TrialRecord]) -> Mapping[str, Any]:
    """The host as these arms used it: a claim about 32 cores is not judged by arms bound to 2 of them, nor by arms
    bound to both threads of 16. An arm whose driver does not report its CPUs had all that the host has.
    """
    work = [record.work for record in records if record.usable and not record.priming and record.arm in arms]
    bound = [_cores(set(facts["cpus"]), host.get("one_thread_a_core")) for facts in work if facts.get("cpus")]
    known = [cores for cores in (host.get("cores"), min(bound, default=None)) if cores is not None]
    return {**host, "cores": min(known)} if known else host


def _cores(cpus: set[int], first: Sequence[int] | None) -> int:
    """Cores below these CPUs. `first`: one CPU of each core of the host; where none of them is among these, they are
    other threads of as many cores, and each counts.
    """
    return len(cpus & set(first or ())) or len(cpus)


def lacking(conditions: Mapping[str, Any], host: Mapping[str, Any]) -> str | None:
    """Why this host cannot judge a claim with these conditions; None if it can."""
    for key, wanted in conditions.items():
        if key in {"isa", "cpu_flags"}:
            flags = host.get("cpu_flags")
            if flags is None:
                return f"the claim needs {key}: {wanted}; what this host's CPU offers is not known"
            names = [wanted] if isinstance(wanted, str) else list(wanted)
            absent = [str(name) for name in names if not _has(str(name), flags)]
            if absent:
                return f"the claim needs {', '.join(absent)}, which this host's CPU lacks"
        elif key == "cores":
            cores = host.get("cores")
            if cores is None:
                return f"the claim needs cores: {wanted}; the number of this host's cores is not known"
            if not _enough(wanted, cores):
                return f"the claim needs cores: {wanted}; of this host's cores {cores} could take part"
        elif host.get(key) != wanted:
            return f"the claim needs {key}: {wanted}; this host has {host.get(key, 'nothing known of it')}"
    return None


def _flag(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _has(name: str, flags: Sequence[str]) -> bool:
    """Flags are spelt with or without `_` and `-` (avx512_bf16, avx512-bf16); plain `avx512` means its foundation."""
    wanted = {"avx512": "avx512f", "amx": "amxtile"}.get(_flag(name), _flag(name))
    return wanted in {_flag(flag) for flag in flags}


def _enough(wanted: Any, cores: int) -> bool:
    """A number means at least as many; `== 8`, `<= 8`, `> 8` say otherwise."""
    match = re.fullmatch(r"\s*(>=|<=|==|=|>|<)?\s*(\d+)\s*", str(wanted))
    if match is None:
        return False
    number = int(match.group(2))
    tests = {
        ">=": cores >= number,
        "<=": cores <= number,
        "==": cores == number,
        "=": cores == number,
        ">": cores > number,
        "<": cores < number,
    }
    return tests[match.group(1) or ">="]
