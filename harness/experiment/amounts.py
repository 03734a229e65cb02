"""Amounts that several keys of an experiment file share: times, shares, bytes, counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harness import units
from harness.experiment.kinds import Kind, Quantity, Whole

SECONDS = Quantity("a time", units.SECOND_FACTORS, above=0, example="90 s or 2 min")
FRACTION = Quantity("a share", {"%": 0.01}, above=0, below=1, example="2%")
AMOUNT: Mapping[str, Quantity] = {
    "_s": Quantity("a time", units.SECOND_FACTORS, at_least=0, example="0.5 s"),
    "_bytes": Quantity("a number of bytes", units.BYTE_FACTORS, at_least=0, example="64 MiB"),
    "_fraction": Quantity("a share", {"%": 0.01}, at_least=0, example="1%"),
}
COUNT = Quantity("a number", {}, at_least=0)


def threshold(counter: str) -> Kind:
    """What a disturbance counter's threshold must be, by the unit in its name's end."""
    return next((kind for end, kind in AMOUNT.items() if counter.endswith(end)), COUNT)


def whole(low: int = 1, high: int = 10**7) -> Whole:
    """A count, 1 or more unless told otherwise."""
    return Whole(low, high)
