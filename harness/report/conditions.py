"""What the numbers were taken under: the arms and what differs between them, and the order they ran in. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from harness.experiment.types import Arm
from harness.report.data import RunData
from harness.report.text import escape, named, significant, table
from harness.verdict.types import Judgement, Unknown

_POSITION = (
    "What a position within the pass did to a value: median over its trials of value divided by the median of that arm,"
    " so 1 at every place means no effect of the order."
)


def arms_section(data: RunData, judgement: Judgement) -> str:
    """Who ran, how often it went well, and every setting in which the arms are not all alike."""
    rows = []
    for arm in data.experiment.arms:
        judged = judgement.arms.get(arm.name)
        failures = [row for row in judgement.failures if row.arm == arm.name and not row.replaced]
        as_expected = sum(row.expected for row in failures)
        rows.append(
            [
                escape(arm.name),
                escape(_role(data, arm)),
                f"{judged.ok} of {data.passes}" if judged is not None else f"0 of {data.passes}",
                str(judged.failed) if judged is not None else "",
                str(as_expected),
            ]
        )
    flagged = [flag for arm in judgement.arms.values() for flag in arm.flags]
    flags = "\n".join(f"- {escape(flag)}." for flag in flagged) + "\n\n" if flagged else ""
    header = ["arm", "role", "ok", "failed", "failed as expected"]
    return f"## Arms\n\n{table(header, rows, right=[2, 3, 4])}\n\n{flags}{_differences(data)}"


def _role(data: RunData, arm: Arm) -> str:
    roles = ["baseline"] if data.experiment.baseline == arm.name else []
    if arm.control_of is not None:
        roles.append(f"control: {named(arm.control_of)} again")
    if arm.expect.failure is not None:
        roles.append(f"meant to fail: {arm.expect.signal or arm.expect.failure}")
    if arm.expect.may_fail is not None:
        roles.append(f"may fail: {arm.expect.signal or arm.expect.may_fail}")
    return ", ".join([arm.engine, *roles])


def _differences(data: RunData) -> str:
    arms = data.experiment.arms
    flat = {arm.name: dict(_flat("", arm.configuration())) for arm in arms}
    keys = sorted({key for settings in flat.values() for key in settings})
    rows = [
        [escape(key), *(escape(flat[arm.name].get(key, "(not set)")) for arm in arms)]
        for key in keys
        if len({flat[arm.name].get(key) for arm in arms}) > 1
    ]
    if not rows:
        return "All arms have the same configuration."
    table_text = table(["setting", *(escape(arm.name) for arm in arms)], rows)
    return f"What differs between the arms; every other setting is the same for all:\n\n{table_text}"


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every leaf of a JSON value with its path; empty maps have none."""
    if isinstance(value, Mapping):
        for key in value:
            yield from _flat(f"{path}.{key}" if path else str(key), value[key])
    elif value not in (None, [], ()):
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def order_section(data: RunData, judgement: Judgement) -> str:
    """The order in which the trials ran, and what the median trial lasted at each position."""
    records = data.counted
    if not records:
        return ""
    by_pass: dict[tuple[int, int], list[str]] = {}
    for record in records:
        by_pass.setdefault((record.pass_number, record.attempt), []).append(record.arm)
    rows = [
        [str(number), str(attempt), " ".join(escape(named(name)) for name in names)]
        for (number, attempt), names in by_pass.items()
    ]
    parts = ["## Order", table(["pass", "attempt", "order of the arms"], rows, right=[0, 1])]
    if data.plan is not None and data.plan.notes:
        parts.append("\n".join(f"- {escape(note)}" for note in data.plan.notes))
    if judgement.positions:
        parts.append(_effects_table(judgement))
    effects = [row for row in (_position_row(data, metric.name) for metric in data.experiment.metrics) if row]
    if effects:
        places = max(len(row) for row in effects) - 1
        header = ["metric", *(f"position {place}" for place in range(1, places + 1))]
        parts += [
            _POSITION,
            table(header, [row + [""] * (places + 1 - len(row)) for row in effects], right=range(1, places + 1)),
        ]
    return "\n\n".join(parts)


def _effects_table(judgement: Judgement) -> str:
    rows = []
    for metric, effect in judgement.positions.items():
        if isinstance(effect, Unknown):
            rows.append([escape(metric), "unknown", escape(effect.why)])
        else:
            per_place, low, high = (f"{100 * value:+.2f} %" for value in (effect.per_place, effect.low, effect.high))
            rows.append([escape(metric), per_place, f"{low} to {high}"])
    return table(["metric", "effect of one place later in the pass", "95 % interval"], rows, right=[1])


def _position_row(data: RunData, metric: str) -> list[str]:
    usable = [record for record in data.latest if record.usable and metric in record.values]
    values: dict[str, list[float]] = {}
    for record in usable:
        values.setdefault(record.arm, []).append(record.values[metric].value)
    middle = {name: median(found) for name, found in values.items()}
    at: dict[int, list[float]] = {}
    for record in usable:
        if middle[record.arm]:
            at.setdefault(record.position, []).append(record.values[metric].value / middle[record.arm])
    if len(at) < 2 or max(map(len, values.values())) < 2:  # one value is its own median: 1.000 everywhere
        return []
    cells = [significant(median(at[place])) if place in at else "" for place in range(1, max(at) + 1)]
    return [escape(metric), *cells]
