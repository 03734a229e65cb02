"""Reading values from the tree of an experiment file, and reporting what is wrong with them. Pure.

Reading never guesses: a number is taken where a number is wanted and refused where text is wanted, and the other way
round; the message says what to write instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from harness.experiment.problems import Mark, Path, Problem, path_text
from harness.experiment.source import Node, Scalar, Sequence, Written


class Invalid(Enum):
    """Stands for a value that could not be read; why has been reported."""

    INVALID = "invalid"


INVALID: Final = Invalid.INVALID


@dataclass
class Reader:
    """Collects the problems of one file and remembers where each value stands."""

    filename: str
    problems: list[Problem] = field(default_factory=list)
    marks: dict[Path, Mark] = field(default_factory=dict)

    def report(self, path: Path, message: str, mark: Mark | None = None) -> Invalid:
        """Add a problem at `mark`, or where `path` (or the nearest part above it) stands."""
        place = mark or next(self.marks[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.marks)
        self.problems.append(Problem(self.filename, place.line, place.column, path_text(path), message))
        return INVALID


def shape(node: Node) -> str:
    """What stands there, for a message."""
    if isinstance(node, Scalar):
        return f"`{node.text[:60]}`" if node.text else "nothing"
    return "a list" if isinstance(node, Sequence) else "a map"


def read_text(node: Node, path: Path, reader: Reader, *, what: str = "text", numbers: bool = False) -> str | Invalid:
    """Text as it was written. What YAML would turn into something else must be quoted; `numbers` may stand bare."""
    if not isinstance(node, Scalar):
        return reader.report(path, f"{what} is wanted, not {shape(node)}", node.mark)
    if node.written is Written.TEXT or (numbers and node.written is Written.NUMBER):
        return node.text
    if node.written is Written.NULL and not node.text:
        return reader.report(path, f'{what} is wanted, and nothing stands here; write "" for empty text', node.mark)
    message = f'{what} is wanted, and `{node.text}` is {node.written.value}; quote it: "{node.text}"'
    return reader.report(path, message, node.mark)


def read_number(node: Node, path: Path, reader: Reader, *, what: str = "a number") -> float | Invalid:
    """A finite number, with or without point and exponent; nothing else stands for one."""
    if not isinstance(node, Scalar):
        return reader.report(path, f"{what} is wanted, not {shape(node)}", node.mark)
    if node.written is Written.NUMBER:
        value = float(node.text)
        if math.isfinite(value):
            return value
        return reader.report(path, f"`{node.text}` is too large to be a finite number", node.mark)
    return reader.report(path, f"{what} is wanted, {_not_a_number(node)}", node.mark)


def _not_a_number(node: Scalar) -> str:
    if node.quoted:
        return f'and "{node.text}" is text; take the quotes off'
    if node.written is Written.NULL:
        return "and nothing stands here"
    if node.written is Written.NONFINITE or node.text.lower().lstrip("+-") in {"nan", "inf", "infinity"}:
        return f"and `{node.text}` is not finite"
    if node.written is Written.ODD_NUMBER:
        return f"and `{node.text}` is {node.written.value}; write it in plain decimals, without 0 in front, _ or :"
    if node.written in {Written.BOOL, Written.ODD_BOOL}:
        return f"and `{node.text}` is {node.written.value}, never a number"
    return f"and `{node.text}` is none"
