"""Units: one conversion and one way to print each. Records keep raw numbers in base units; only reports round.

Base units: bytes (`B`), seconds (`s`), tokens per second (`tokens/s`). /proc says `kB` and means KiB (1024 bytes);
`KIB` is the one constant that converts it.
"""

from __future__ import annotations

import math
import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

#: Factors to bytes. Decimal and binary prefixes are both accepted in experiment files, each for what it says.
BYTE_FACTORS: Final = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": KIB, "MiB": MIB, "GiB": GIB}
#: Factors to seconds.
SECOND_FACTORS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%/]*)\s*\Z")


class UnitError(ValueError):
    """A quantity that cannot be read; the message names the text and what is accepted."""


def parse_quantity(text: str) -> tuple[float, str]:
    """Split `"-550 MiB"` into `(-550.0, "MiB")`; the unit may be empty. Raise `UnitError` for anything else."""
    match = _QUANTITY.match(text)
    if match is None:
        raise UnitError(f"{text!r} is not a number with a unit, such as 550 MiB or 30 s")
    number = float(match.group(1))
    if not math.isfinite(number):
        raise UnitError(f"{text!r} is not a finite number")
    return number, match.group(2)


def parse_bytes(text: str) -> float:
    """Bytes of `"550 MiB"`; the sign is kept. Raise `UnitError` for an unknown unit."""
    number, unit = parse_quantity(text)
    if unit not in BYTE_FACTORS:
        raise UnitError(f"{text!r}: {unit or 'no unit'} is not a unit of bytes; use one of {', '.join(BYTE_FACTORS)}")
    return number * BYTE_FACTORS[unit]


def parse_seconds(text: str) -> float:
    """Seconds of `"2 min"`. Raise `UnitError` for an unknown unit."""
    number, unit = parse_quantity(text)
    if unit not in SECOND_FACTORS:
        raise UnitError(f"{text!r}: {unit or 'no unit'} is not a unit of time; use one of {', '.join(SECOND_FACTORS)}")
    return number * SECOND_FACTORS[unit]


def format_bytes(value: float) -> str:
    """`268435456 -> "256.0 MiB"`: always binary prefixes, always named so."""
    size = abs(value)
    if size >= GIB:
        return f"{value / GIB:.2f} GiB"
    if size >= MIB:
        return f"{value / MIB:.1f} MiB"
    if size >= KIB:
        return f"{value / KIB:.1f} KiB"
    return f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """`0.0123 -> "12.3 ms"`, `75 -> "1 min 15 s"`."""
    size = abs(value)
    if size == 0:
        return "0 s"
    if size >= 3600:
        return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"
    if size >= 60:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    if size >= 1:
        return f"{value:.2f} s"
    if size >= 1e-3:
        return f"{value * 1e3:.2f} ms"
    return f"{value * 1e6:.1f} us"


def format_quantity(value: float, unit: str) -> str:
    """Print a value in its metric's unit with four significant digits; bytes and seconds scale their unit."""
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    return f"{value:.4g}" if unit == "1" else f"{value:.4g} {unit}".rstrip()


def scale_for(unit: str, value: float) -> tuple[float, str]:
    """Divisor and unit to print `value` with, by itself or with others on one axis: `("B", 3e6) -> (MIB, "MiB")`.

    Minutes only from ten on: below, figures of about a minute compare better in seconds.
    """
    steps: tuple[tuple[float, str], ...] = ()
    if unit == "B":
        steps = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
    elif unit == "s":
        steps = ((60.0, "min"),) if abs(value) >= 600 else ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    return next(((size, name) for size, name in steps if abs(value) >= size), (1.0, unit))
