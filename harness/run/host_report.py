"""What `harness host` says: what this host can measure, what it cannot and why, and what would make it quieter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.metrics import DISTURBANCE_COUNTERS
from harness.run.counters import Counters
from harness.run.disturbance import difference
from harness.run.host_advice import Advice, advice_for
from harness.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """`can`: what this host can measure; `cannot`: the rest with its reason; `advice`: what would make it quieter."""

    can: tuple[str, ...]
    cannot: Mapping[str, str]
    advice: tuple[Advice, ...]


def abilities(
    fingerprint: Mapping[str, Any], counters: Counters, probes: Mapping[str, str | None] | None = None
) -> Abilities:
    """Judge a host by its fingerprint, one reading of its counters, and probes of other parts.

    `probes`: by name of what was tried (a memory back end, a field of /proc/PID/status), None where it works, else the
    reason why not.
    """
    later = replace(counters, at=counters.at + 1)  # one reading is enough to see what is hidden
    sample = difference(counters, later, own_cpu_s=0.0)
    found: dict[str, str | None] = {name: sample.missing.get(name) for name in DISTURBANCE_COUNTERS}
    found |= probes or {}
    cannot = {name: reason for name, reason in found.items() if reason is not None}
    cannot |= dict(fingerprint["missing"])
    if fingerprint["kernel"]["virtual"] and counters.values.get("steal_s") == 0:
        cannot["steal (doubtful)"] = "0 since the start of a virtual machine: perhaps the hypervisor does not report it"
    can = tuple(name for name, reason in found.items() if reason is None)
    return Abilities(can=can, cannot=cannot, advice=tuple(advice_for(fingerprint, counters)))


def host_lines(fingerprint: Mapping[str, Any], found: Abilities) -> list[str]:
    """The text of `harness host`, line by line, without colour."""
    cpu, memory, kernel = fingerprint["cpu"], fingerprint["memory"], fingerprint["kernel"]
    total = memory["total_bytes"]
    kind = {True: "virtual machine", False: "no virtual machine", None: "virtual or not: unknown"}[kernel["virtual"]]
    counts = f"{_or(cpu['sockets'])} socket(s), {_or(cpu['cores'])} cores, {_or(cpu['threads'])} CPUs online"
    modes = f"huge pages {_or(memory['thp'])}, governor {_or(cpu['governor'])}"
    reasons: dict[str, list[str]] = {}  # what is hidden for one reason is said once
    for name, reason in found.cannot.items():
        reasons.setdefault(reason, []).append(name)
    lines = [
        f"Host {fingerprint['host_id']}: {_or(cpu['model'])}, {counts}, {format_bytes(total) if total else 'unknown'}",
        f"  Linux {_or(kernel['release'])}, {kind}, cgroup {_or(fingerprint['cgroup']['version'])}, {modes}",
        f"  instruction sets: {', '.join(cpu['isa'] or ['unknown'])}",
        "",
        "Can be measured here:",
        *(
            f"  {name}: {DISTURBANCE_COUNTERS[name]}" if name in DISTURBANCE_COUNTERS else f"  {name}"
            for name in found.can
        ),
        "",
        "Cannot be measured or is unknown here:",
        *(f"  {', '.join(names)}: {reason}" for reason, names in reasons.items()),
        "",
        "Would make it quieter (nothing was changed):",
    ]
    for advice in found.advice:
        lines += [f"  {advice.what}: {advice.why}", f"    {advice.do}"]
    return lines if found.advice else [*lines[:-1], "Nothing known would make it quieter."]


def _or(value: object) -> str:
    return "unknown" if value is None else str(value)


def host_json(fingerprint: Mapping[str, Any], found: Abilities, counters: Counters) -> dict[str, Any]:
    """What `harness host --json` prints: `{"host", "can", "cannot", "advice", "counters"}`."""
    return {
        "host": dict(fingerprint),
        "can": list(found.can),
        "cannot": dict(found.cannot),
        "advice": [asdict(advice) for advice in found.advice],
        "counters": {"values": dict(counters.values), "missing": dict(counters.missing)},
    }
