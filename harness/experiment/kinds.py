"""Kinds of values in an experiment file: each reads itself from the tree and describes itself as JSON Schema. Pure.

A kind returns `INVALID` after it has reported why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness import units
from harness.experiment.problems import Path, near
from harness.experiment.reading import Invalid, Reader, read_number, read_text
from harness.experiment.source import Node, Scalar, Written


class Kind(Protocol):
    """What a value must be."""

    def read(self, node: Node, path: Path, reader: Reader) -> Any:
        """The value, or `INVALID` after reporting why."""

    def schema(self) -> dict[str, Any]:
        """The same as JSON Schema (draft 2020-12), as far as that can say it."""


@dataclass(frozen=True)
class Text:
    """Text. `check`: returns what is wrong with it, or the empty text."""

    what: str = "text"
    check: Callable[[str], str] | None = None
    numbers: bool = False
    empty: bool = False

    def read(self, node: Node, path: Path, reader: Reader) -> str | Invalid:
        """The text as written."""
        text = read_text(node, path, reader, what=self.what, numbers=self.numbers)
        if isinstance(text, Invalid):
            return text
        wrong = "is empty" if not text.strip() and not self.empty else self.check(text) if self.check else ""
        return reader.report(path, wrong, node.mark) if wrong else text

    def schema(self) -> dict[str, Any]:
        """A string."""
        return {"type": ["string", "number"] if self.numbers else "string"}


@dataclass(frozen=True)
class Whole:
    """A whole number; `3.0` and `1e1` are the whole numbers they evidently are, `"3"` is text and refused."""

    low: int
    high: int

    def read(self, node: Node, path: Path, reader: Reader) -> int | Invalid:
        """The number as int."""
        value = read_number(node, path, reader, what="a whole number")
        if isinstance(value, Invalid):
            return value
        written = node.text if isinstance(node, Scalar) else ""
        if not value.is_integer():
            return reader.report(path, f"a whole number is wanted, and `{written}` is none", node.mark)
        number = int(written) if re.fullmatch(r"[-+]?[0-9]{1,40}", written) else int(value)
        if not self.low <= number <= self.high:
            message = f"`{written}` is out of range; from {self.low} to {self.high} is meant"
            return reader.report(path, message, node.mark)
        return number

    def schema(self) -> dict[str, Any]:
        """An integer with its bounds."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Quantity:
    """A number in base units, or text with a unit of `factors`. `above`: the value must exceed it; `at_least`: or be
    no less.
    """

    what: str
    factors: Mapping[str, float]
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    bare: bool = True
    example: str = ""

    def read(self, node: Node, path: Path, reader: Reader) -> float | Invalid:
        """The number in base units."""
        value = self._value(node, path, reader)
        if isinstance(value, Invalid):
            return value
        bounds = (
            (self.above is not None and value <= self.above, f"more than {self.above}"),
            (self.at_least is not None and value < (self.at_least or 0), f"{self.at_least} or more"),
            (self.below is not None and value >= (self.below or 0), f"less than {self.below}"),
        )
        for broken, meant in bounds:
            if broken:
                shown = node.text if isinstance(node, Scalar) else ""
                hint = f", such as {self.example}" if self.example else ""
                return reader.report(path, f"`{shown}` is out of range; {meant} is meant{hint}", node.mark)
        return value

    def _value(self, node: Node, path: Path, reader: Reader) -> float | Invalid:
        if not isinstance(node, Scalar) or node.written is not Written.TEXT:
            return read_number(node, path, reader, what=self.what)
        try:
            number, unit = units.parse_quantity(node.text)
        except units.UnitError:
            number, unit = math.nan, ""
        if unit in self.factors and math.isfinite(number * self.factors[unit]):
            return number * self.factors[unit]
        if not unit and math.isfinite(number):
            return read_number(node, path, reader, what=self.what)  # a quoted number: says to take the quotes off
        allowed = f"; units: {', '.join(self.factors)}" if self.factors else ""
        hint = f", such as {self.example}" if self.example else ""
        return reader.report(path, f"{self.what} is wanted{hint}, and `{node.text}` is none{allowed}", node.mark)

    def schema(self) -> dict[str, Any]:
        """A number, or text with a unit."""
        bounds = {"exclusiveMinimum": self.above, "minimum": self.at_least, "exclusiveMaximum": self.below}
        number = {"type": "number", **{key: bound for key, bound in bounds.items() if bound is not None}}
        if not self.factors:
            return number
        pattern = rf"^\s*[+-]?[0-9.]+([eE][+-]?[0-9]+)?\s*({'|'.join(map(re.escape, self.factors))})\s*$"
        return {"anyOf": [number, {"type": "string", "pattern": pattern}]}


@dataclass(frozen=True)
class Choice:
    """One of some words. `options` is called when needed: the failure reasons live in a module that imports this."""

    what: str
    options: Callable[[], Iterable[str]]

    def read(self, node: Node, path: Path, reader: Reader) -> str | Invalid:
        """The word."""
        text = read_text(node, path, reader, what=self.what)
        if isinstance(text, Invalid):
            return text
        known = tuple(self.options())
        return (
            text if text in known else reader.report(path, f"no {self.what} `{text}`; {near(text, known)}", node.mark)
        )

    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"enum": list(self.options())}
