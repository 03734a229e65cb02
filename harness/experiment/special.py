"""Kinds of values that only one key of an experiment file has. Pure."""

from __future__ import annotations

import re
from typing import Any

from harness.experiment.kinds import Text, Whole
from harness.experiment.problems import Path
from harness.experiment.reading import INVALID, Invalid, Reader
from harness.experiment.shapes import ListOf
from harness.experiment.source import Node, Scalar, Written
from harness.experiment.vocabulary import bound


class CountOrBound:
    """A count, or a bound on one as text."""

    def read(self, node: Node, path: Path, reader: Reader) -> int | str | Invalid:
        """An int, or text such as `> 0`."""
        if isinstance(node, Scalar) and node.written is not Written.TEXT:
            return Whole(0, 10**15).read(node, path, reader)
        return Text('a count, or a bound such as "> 0"', check=bound).read(node, path, reader)

    def schema(self) -> dict[str, Any]:
        """An integer or a string."""
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^(==|>=|<=|>|<)\s*\d+$"}]}


class Cores:
    """`32`, or `">= 32"`: at least so many. `"<= 4"` and `"== 2"` say what a claim about a small host needs."""

    def read(self, node: Node, path: Path, reader: Reader) -> int | str | Invalid:
        """The least number of cores, or a bound of another kind as text."""
        if isinstance(node, Scalar) and node.written is Written.TEXT:
            match = re.fullmatch(r"(>=|<=|==)\s*([0-9]{1,6})", node.text.strip())
            if match:
                sign, number = match.groups()
                return int(number) if sign == ">=" else f"{sign} {number}"
            message = f'a number of cores is wanted, 32 or ">= 32", "<= 4", "== 2", and `{node.text}` is none'
            return reader.report(path, message, node.mark)
        return Whole(1, 10**6).read(node, path, reader)

    def schema(self) -> dict[str, Any]:
        """An integer or a string."""
        return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^(>=|<=|==)\s*\d+$"}]}


class Isa:
    """One instruction set or a list of them, as /proc/cpuinfo spells its flags."""

    def read(self, node: Node, path: Path, reader: Reader) -> list[str] | Invalid:
        """The names."""
        one = Text("an instruction set")
        if isinstance(node, Scalar):
            name = one.read(node, path, reader)
            return name if isinstance(name, Invalid) else [name]
        names = ListOf(one, least=1, what="a list of instruction sets", example="[amx_tile]").read(node, path, reader)
        return INVALID if isinstance(names, Invalid) or INVALID in names else names

    def schema(self) -> dict[str, Any]:
        """A string or an array of them."""
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
