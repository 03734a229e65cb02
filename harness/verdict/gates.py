"""Why a pair is not ranked: the gates that each kind of metric has to pass. All are asked, always.

A gate is one function (evidence.py, separation.py) that gives its reasons to refuse, or none.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.verdict.evidence import (
    failures,
    hidden_memory,
    metric_missing,
    not_comparable,
    unequal_work,
    unit_mismatch,
)
from harness.verdict.separation import brackets_overlap, interval, order_confounded, spreads_overlap, too_few_passes
from harness.verdict.sides import Gate, Pair
from harness.verdict.types import Refusal

_EVIDENCE: tuple[Gate, ...] = (metric_missing, failures, unit_mismatch, not_comparable, unequal_work)
#: The gates of each kind of metric, in the order their reasons are given.
GATES: Mapping[str, tuple[Gate, ...]] = {
    "sampled": (*_EVIDENCE, hidden_memory, too_few_passes, spreads_overlap, interval, order_confounded),
    "peak": (*_EVIDENCE, hidden_memory, too_few_passes, spreads_overlap, interval, order_confounded, brackets_overlap),
    "exact": _EVIDENCE,
    "windowed": (*_EVIDENCE, spreads_overlap, interval),
}


def reasons(pair: Pair) -> tuple[Refusal, ...]:
    """Every reason not to rank this pair; empty if there is none."""
    return tuple(reason for gate in GATES[pair.metric.kind.value] for reason in gate(pair))
