"""The host and what it did to the trials: facts and counters, the unknown ones with the reason. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

from harness.report.data import RunData
from harness.report.text import count, escape, named, percent, quantity, significant, table
from harness.units import format_seconds

#: Facts that a reader asks for first, by dotted path; all others stand folded below them.
_FIRST: Final[tuple[str, ...]] = (
    "cpu.model", "cpu.threads", "cpu.cores", "cpu.isa", "allowed_cpus", "cpu.governor", "cpu.turbo",
    "memory.total_bytes", "memory.swap_total_bytes", "memory.thp", "cgroup.version", "cgroup.memory_limit_bytes",
    "kernel.release", "kernel.virtual", "kernel.hypervisor", "software.python", "software.libc",
)  # fmt: skip
#: Longer values are cut: they stand in host.json in full.
_LONGEST: Final = 300


def disturbance_section(data: RunData) -> str:
    """What the host did to the trials: per counter the median and the worst trial; what is hidden, and why."""
    records = data.counted
    known: dict[str, list[tuple[float, str]]] = {}
    hidden: dict[str, str] = {}
    for record in records:
        for name, value in record.disturbance.counters.items():
            if value is not None:
                known.setdefault(name, []).append((value, f"trial {record.trial}, {named(record.arm)}"))
        hidden.update(record.disturbance.missing)
    over = [record for record in records if record.disturbance.exceeded]
    thresholds = data.experiment.disturbance
    if not known and not hidden:
        return "## Disturbance\n\nNo disturbance counters are on record."
    rows = [
        [
            escape(name),
            _counter(name, median(value for value, _ in found)),
            _worst(name, *max(found)),
            _counter(name, thresholds[name]) if name in thresholds else "recorded only",
        ]
        for name, found in sorted(known.items())
    ]
    parts = ["## Disturbance", _disturbed(len(over), len(records), bool(thresholds))]
    if rows:
        parts.append(table(["counter", "median trial", "worst trial", "threshold"], rows, right=[1]))
    parts += [f"- {escape(name)}: not readable: {escape(why)}" for name, why in sorted(hidden.items())]
    return "\n\n".join(parts[:3]) + ("\n\n" + "\n".join(parts[3:]) if parts[3:] else "")


def _disturbed(over: int, total: int, judged: bool) -> str:
    if not judged:
        return "The experiment states no thresholds: what the host did is on record and fails no trial."
    return f"{over} of {count(total, 'trial')} went over a threshold that the experiment states."


def _worst(name: str, value: float, trial: str) -> str:
    return f"{_counter(name, value)} ({escape(trial)})" if value else "0 in every trial"


def _counter(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return quantity(value, "B")
    if name.endswith("_fraction"):
        return percent(value)
    if name.endswith("_s"):
        return format_seconds(value)
    return f"{value:,.0f}" if value >= 1000 else significant(value)


def host_section(data: RunData) -> str:
    """The host's facts by dotted path, what is asked for first above the rest."""
    if not data.host:
        return "## Host\n\nNo host.json is on record: these numbers belong to an unknown host."
    missing = data.host.get("missing")
    facts = dict(_facts("", data.host, missing if isinstance(missing, Mapping) else {}))
    first = [path for path in _FIRST if path in facts] or list(facts)
    rest = [path for path in facts if path not in first]
    parts = ["## Host", _fact_table(facts, first)]
    if rest:
        parts.append(f"<details><summary>All other facts</summary>\n\n{_fact_table(facts, rest)}\n\n</details>")
    return "\n\n".join(parts)


def _fact_table(facts: Mapping[str, str], paths: list[str]) -> str:
    return table(["fact", "value"], [[escape(path), escape(facts[path])] for path in paths])


def _facts(path: str, value: Any, missing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every leaf with its dotted path. A null has its reason in `missing` under that path."""
    if isinstance(value, Mapping):
        for key in value:
            if path or key != "missing":
                yield from _facts(f"{path}.{key}" if path else str(key), value[key], missing)
    elif value is None:
        yield path, f"unknown: {missing.get(path, 'no reason on record')}"
    else:
        yield path, _fact(path, value)


def _fact(path: str, value: Any) -> str:
    if path.endswith("bytes") and isinstance(value, int):
        text = quantity(value, "B")
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        text = " ".join(value)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
