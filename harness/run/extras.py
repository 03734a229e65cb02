"""Passes that were decided on while the run went on: repeated ones, and added ones. plan.json is never edited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.plan import PlannedTrial
from harness.records import converter


@dataclass(frozen=True, kw_only=True)
class Extra:
    """One line of plan-extra.jsonl: one decision, recorded before anything of it ran.

    A repeated pass names `repeat` (its number) and `attempt` (what its trials count from); an addition names `trials`.
    `why`: in words, as the rule that asked for it gave it. `after`: counted trials (no priming) on
    record when it was decided.
    """

    why: str
    after: int
    repeat: int | None = None
    attempt: int | None = None
    trials: tuple[PlannedTrial, ...] = ()


def extras_of(values: Iterable[Mapping[str, Any]]) -> tuple[Extra, ...]:
    """The decisions of a file's lines."""
    return tuple(converter().structure(dict(value), Extra) for value in values)
