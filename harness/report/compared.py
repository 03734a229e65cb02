"""Which arms are compared on a metric, and why the others are not, in one line an arm. Pure.

The JSON keeps one verdict for every pair. For people, an arm without a single value would repeat the same refusal for
each other arm and metric: of five arms with one that is meant to fail, four pairs of ten.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.metrics import Metric
from harness.report.text import count, listed, named
from harness.verdict.types import FailureRow, Judgement, PairVerdict


def compared(judgement: Judgement, metric: Metric) -> tuple[PairVerdict, ...]:
    """The metric's pairs in which both arms have a value."""
    return tuple(
        verdict
        for verdict in judgement.verdicts
        if verdict.metric.name == metric.name and not {verdict.a, verdict.b} & set(without(judgement, metric))
    )


def without(judgement: Judgement, metric: Metric) -> tuple[str, ...]:
    """The arms that have no usable value of the metric, in the experiment's order."""
    return tuple(name for name, arm in judgement.arms.items() if metric.name not in arm.metrics)


def nowhere(judgement: Judgement, metrics: Iterable[Metric]) -> tuple[str, ...]:
    """The arms that have no usable value of any metric, in the experiment's order."""
    asked = tuple(metrics)
    return tuple(name for name in judgement.arms if all(name in without(judgement, metric) for metric in asked))


def absence(judgement: Judgement, name: str, sweeps: int, sweep: str = "pass") -> str:
    """`beyond_context: failed as expected in 4 of 4 passes (config_rejected); not compared`. `sweep`: `scoring` for
    what was taken in trials of their own.
    """
    mine = [row for row in judgement.failures if row.arm == name and not row.replaced]
    rows = [row for row in mine if (row.scoring if sweep == "scoring" else row.pass_number > 0)]
    of = count(sweeps, sweep, "passes" if sweep == "pass" else "")
    parts = [
        f"{words} in {len(found)} of {of} ({listed(list(dict.fromkeys(row.reason for row in found)))})"
        for words, found in (
            ("failed as expected", [row for row in rows if row.expected]),
            ("failed", [row for row in rows if not row.expected]),
        )
        if found
    ]
    return f"{named(name)}: {'; '.join(parts) or f'no value in any of {of}'}; not compared"


def grouped(failures: Iterable[FailureRow]) -> tuple[tuple[FailureRow, ...], ...]:
    """Failures that differ in nothing but their pass, together; in the order of their first."""
    groups: dict[tuple[object, ...], list[FailureRow]] = {}
    for row in failures:
        groups.setdefault((row.arm, row.reason, row.evidence, row.expected, row.replaced), []).append(row)
    return tuple(tuple(group) for group in groups.values())


def places(rows: Iterable[FailureRow]) -> str:
    """`pass 4`, `passes 1, 2 and 3`, `priming, scoring and pass 1`."""
    rows = tuple(rows)
    numbers = sorted({row.pass_number for row in rows})
    before = {"scoring" if row.scoring else "priming": None for row in rows if row.pass_number == 0}
    counted = [str(number) for number in numbers if number > 0]
    words = [f"{'pass' if len(counted) == 1 else 'passes'} {listed(counted)}"] if counted else []
    return listed([*sorted(before), *words])
