"""The grammar of a claim's `expect`. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from harness.experiment.types import ClaimKind
from harness.metrics import Metric
from harness.units import BYTE_FACTORS, SECOND_FACTORS

_NUMBER: Final = r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
_COMPARISON: Final = re.compile(rf"(ratio|difference)\s*(>=|<=|>|<)\s*{_NUMBER}\s*(\S.*)?\Z")
_EQUIVALENT: Final = re.compile(rf"equivalent\s+within\s+{_NUMBER}\s*%\Z")

FORMS: Final = "`ratio >= 1.8`, `difference <= -550 MiB`, `equivalent within 1%` or `not ranked`"


@dataclass(frozen=True)
class Expected:
    """What a claim says: see `Claim`."""

    kind: ClaimKind
    op: str = ""
    value: float = 0.0


class ClaimError(ValueError):
    """Text that is no claim, or one that does not fit its metric; the message says what was meant."""


def parse_expected(text: str, metric: Metric) -> Expected:
    """Read `ratio >= 1.8` and its like; a difference comes back in the metric's unit. Raise `ClaimError`."""
    words = text.strip()
    if re.fullmatch(r"not\s+ranked", words):
        return Expected(ClaimKind.NOT_RANKED)
    equivalent = _EQUIVALENT.match(words)
    if equivalent:
        share = float(equivalent.group(1)) / 100
        if not 0 < share < 1:
            raise ClaimError(f"`{text}`: the margin must be more than 0% and less than 100%")
        return Expected(ClaimKind.EQUIVALENT, value=share)
    comparison = _COMPARISON.match(words)
    if comparison is None:
        raise ClaimError(f"`{text}` is no expectation; write {FORMS}")
    kind, op, number, unit = comparison.groups()
    value = float(number)
    if not math.isfinite(value):
        raise ClaimError(f"`{text}`: {number} is too large to be a finite number")
    if kind == "ratio":
        return Expected(ClaimKind.RATIO, op, _ratio(text, value, unit))
    return Expected(ClaimKind.DIFFERENCE, op, value * _factor(text, unit or "", metric.unit))


def _ratio(text: str, value: float, unit: str | None) -> float:
    if unit:
        raise ClaimError(f"`{text}`: a ratio has no unit; take `{unit}` out")
    if value <= 0:
        raise ClaimError(f"`{text}`: a ratio of two readings is more than 0")
    return value


def _factor(text: str, unit: str, wanted: str) -> float:
    """What one `unit` is in the metric's unit."""
    for family in (BYTE_FACTORS, SECOND_FACTORS):
        if wanted in family:
            if unit in family:
                return family[unit] / family[wanted]
            raise ClaimError(f"`{text}`: {f'`{unit}`' if unit else 'no unit'} does not fit; use {', '.join(family)}")
    if unit in {"", wanted}:
        return 1.0
    raise ClaimError(f"`{text}`: `{unit}` does not fit; the metric is in {wanted}")
