"""Small words: numbers with enough digits, names that need quotes, Markdown that shows what was meant. Pure."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from harness.units import scale_for

_PLAIN_NAME: Final = re.compile(r"[\w./+-]+\Z", re.ASCII)
#: Letters that Markdown reads as markup anywhere. An underscore inside a word is none, and names are full of them.
_MARKUP: Final = re.compile(r"[\\`*\[\]<>|~#&]|(?<![^\W_])_|_(?![^\W_])")


def named(name: str) -> str:
    """A name inside a sentence: as it is if it is one plain word, else in double quotes."""
    return name if _PLAIN_NAME.match(name) else f'"{visible(name)}"'


def visible(text: str) -> str:
    """Text on one line: line ends become blanks; control and direction characters become their number."""
    flat = re.sub(r"\s+", " ", text).strip()
    return "".join(char if unicodedata.category(char)[0] != "C" else f"\\u{ord(char):04x}" for char in flat)


def escape(text: str) -> str:
    """Text that Markdown (a table's cell included) shows letter by letter; what stands in backticks stays code."""
    parts = re.split(r"(`[^`]+`)", visible(text))
    return "".join(
        part.replace("|", "\\|") if place % 2 else _MARKUP.sub(lambda match: "\\" + match.group(), part)
        for place, part in enumerate(parts)
    )


def quoted(text: str) -> str:
    """Text of several lines as an indented Markdown block: nothing in it is markup, not even a fence."""
    return "\n".join(f"    {visible(line)}" for line in text.splitlines() if line.strip())


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """A Markdown table. Cells are Markdown already (`escape` what is not); `right`: columns of numbers."""
    numbers = frozenset(right)
    rule = ["---:" if column in numbers else "---" for column in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 pass`, `2 passes`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def plural(sweep: str) -> str:
    """`passes` of `pass`, `scorings` of `scoring`."""
    return "passes" if sweep == "pass" else f"{sweep}s"


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def finite(value: object) -> float | None:
    """`value` if it is a finite number, else None: JSON and sentences have no word for the others."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def span(low: float, high: float, suffix: str = "", *, digits: int = 3) -> str:
    """`1.84x to 1.92x`: both ends with `digits` significant digits, more (up to 7) where the two would look alike."""
    for places in range(digits, 8):
        ends = significant(low, places), significant(high, places)
        if ends[0] != ends[1] or low == high:
            break
    return ends[0] + suffix if ends[0] == ends[1] else f"{ends[0]}{suffix} to {ends[1]}{suffix}"


def significant(value: float, digits: int = 4) -> str:
    """A number with that many significant digits and no exponent where a person would write none."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # rounded first: 9.99999 is a number of two places before the point once it has four digits
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if magnitude >= 15 or magnitude < -6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"


def percent(fraction: float, digits: int = 2) -> str:
    """`0.0213 -> "2.1 %"`, `0.02 -> "2 %"`."""
    text = significant(100 * fraction, digits)
    return f"{text.rstrip('0').rstrip('.') if '.' in text and 'e' not in text else text} %"


def alike(values: Sequence[float], unit: str) -> tuple[list[str], str]:
    """Numbers to stand side by side, and their unit: one unit for all, and digits enough to see them differ.

    `[2.96e9, 2.97e9], "B" -> ["2.757", "2.766"], "GiB"`. At least 4 significant digits, at most 7. A
    plain number's unit, 1, is said as none.
    """
    divisor, shown = scale_for(unit, max(values, key=abs, default=0.0))
    scaled = [value / divisor for value in values]
    for digits in range(4, 8):
        texts = [significant(value, digits) for value in scaled]
        if len(set(texts)) == len(set(scaled)):
            break
    return texts, "" if shown == "1" else shown


def quantity(value: float, unit: str) -> str:
    """One number with its unit: `2.96e9, "B" -> "2.757 GiB"`."""
    (text,), shown = alike([value], unit)
    return f"{text} {shown}".rstrip()


def printable(text: str) -> str:
    """A line of somebody else's without what steers a terminal: what is shown is what stands there."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
