"""The plan: which trial runs when. Ordered trials in balanced passes, priming first, from one recorded seed. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial to run. `ordinal`: from 1, in order. `pass_number`: from 1, 0 for priming. `position`: within its pass,
    from 1.
    """

    ordinal: int
    arm: str
    pass_number: int
    position: int
    priming: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All trials in order. `seed`: what the order was drawn from. `notes`: what the reader should know of the order,
    such as positions that cannot be balanced.
    """

    seed: int
    trials: tuple[PlannedTrial, ...]
    notes: tuple[str, ...] = ()
