"""Kinds that hold others: lists, maps, records with known keys, and free values. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.experiment import source
from harness.experiment.kinds import Kind
from harness.experiment.problems import Path, near
from harness.experiment.reading import INVALID, Invalid, Reader, read_number, read_text, shape
from harness.experiment.source import Node, Scalar, Sequence, Written


@dataclass(frozen=True)
class Free:
    """Any value, typed as YAML 1.2 does it: engine arguments. What YAML 1.1 and 1.2 read differently is refused."""

    def read(self, node: Node, path: Path, reader: Reader) -> Any:
        """Text, number, bool, None, list or dict of such."""
        if isinstance(node, Scalar):
            return self._scalar(node, path, reader)
        reader.marks[path] = node.mark
        if isinstance(node, Sequence):
            items = [self.read(item, (*path, index), reader) for index, item in enumerate(node.items)]
            return INVALID if INVALID in items else items
        return MapOf(self).read(node, path, reader)

    def _scalar(self, node: Scalar, path: Path, reader: Reader) -> Any:
        reader.marks[path] = node.mark
        if node.written in {Written.TEXT, Written.DATE}:
            return node.text
        if node.written is Written.BOOL:
            return node.text.lower() == "true"
        if node.written is Written.NUMBER:
            whole = re.fullmatch(r"[-+]?[0-9]{1,40}", node.text)
            return int(node.text) if whole else read_number(node, path, reader)
        if node.written is Written.NULL and node.text:
            return None
        if node.written is Written.NULL:
            return reader.report(path, 'nothing stands here; write null, or "" for empty text', node.mark)
        remedy = "write true or false" if node.written is Written.ODD_BOOL else "write it in plain decimals"
        message = f'`{node.text}` is {node.written.value}; {remedy}, or quote it if text is meant: "{node.text}"'
        return reader.report(path, message, node.mark)

    def schema(self) -> dict[str, Any]:
        """Anything."""
        return {}


@dataclass(frozen=True)
class ListOf:
    """A list of values of one kind, at least `least` of them."""

    item: Kind
    least: int = 0
    what: str = "a list"
    example: str = ""

    def read(self, node: Node, path: Path, reader: Reader) -> list[Any] | Invalid:
        """The items that could be read, in order; `INVALID` where none is left that is needed."""
        reader.marks[path] = node.mark
        if not isinstance(node, Sequence):
            return reader.report(path, f"{self.what} is wanted{self._hint()}, not {shape(node)}", node.mark)
        if len(node.items) < self.least:
            return reader.report(path, f"{self.what} with at least {self.least} is wanted{self._hint()}", node.mark)
        found = []
        for index, item in enumerate(node.items):
            reader.marks[*path, index] = item.mark
            found.append(self.item.read(item, (*path, index), reader))
        return found

    def _hint(self) -> str:
        return f": {self.example}" if self.example else ""

    def schema(self) -> dict[str, Any]:
        """An array."""
        bound = {"minItems": self.least} if self.least else {}
        return {"type": "array", "items": self.item.schema(), **bound}


@dataclass(frozen=True)
class MapOf:
    """A map whose keys the author chooses. `key`: what a key must be, returns what is wrong or the empty text.
    `by_key`: the kind of a value may depend on its key.
    """

    item: Kind
    what: str = "a map"
    key: Callable[[str], str] | None = None
    least: int = 0
    by_key: Callable[[str], Kind | None] | None = None
    names: tuple[str, ...] = ()

    def read(self, node: Node, path: Path, reader: Reader) -> dict[str, Any] | Invalid:
        """The entries that could be read; an entry whose key or value could not is `INVALID` or left out."""
        reader.marks[path] = node.mark
        if isinstance(node, Scalar) and not node.quoted and not node.text and not self.least:
            return {}
        if not isinstance(node, source.Mapping):
            return reader.report(path, f"{self.what} is wanted, not {shape(node)}", node.mark)
        if len(node.entries) < self.least:
            return reader.report(path, f"{self.what} with at least {self.least} is wanted", node.mark)
        found = {}
        for entry in node.entries:
            where = (*path, entry.key.text)
            reader.marks[where] = entry.key.mark
            if isinstance(read_text(entry.key, where, reader, what="text as a key"), Invalid):
                continue
            wrong = self.key(entry.key.text) if self.key else ""
            if wrong:
                reader.report(where, wrong, entry.key.mark)
                continue
            kind = (self.by_key(entry.key.text) if self.by_key else None) or self.item
            found[entry.key.text] = kind.read(entry.value, where, reader)
        return found

    def schema(self) -> dict[str, Any]:
        """An object with free keys."""
        value: dict[str, Any] = {"type": "object", "additionalProperties": self.item.schema()}
        if self.names:
            value["properties"] = {
                name: ((self.by_key(name) if self.by_key else None) or self.item).schema() for name in self.names
            }
        if self.least:
            value["minProperties"] = self.least
        return value


@dataclass(frozen=True)
class Key:
    """One key of a record. `default`: in words, for people; `value`: what stands if it is left out."""

    name: str
    kind: Kind
    doc: str
    required: bool = False
    default: str = ""
    value: Any = None


@dataclass(frozen=True)
class Record:
    """A map with known keys."""

    what: str
    keys: tuple[Key, ...]
    extra: str = ""  # keys that begin so are left alone: a place for anchors

    def read(self, node: Node, path: Path, reader: Reader) -> dict[str, Any] | Invalid:
        """The keys that could be read; unknown and missing ones are reported."""
        reader.marks[path] = node.mark
        if isinstance(node, Scalar) and not node.quoted and not node.text:
            node = source.Mapping((), node.mark)  # a key with nothing behind it has no keys of its own
        if not isinstance(node, source.Mapping):
            return reader.report(path, f"{self.what} is wanted, a map, not {shape(node)}", node.mark)
        known = {key.name: key for key in self.keys}
        found: dict[str, Any] = {}
        for entry in node.entries:
            where = (*path, entry.key.text)
            reader.marks[where] = entry.key.mark
            if entry.key.text in known:
                found[entry.key.text] = known[entry.key.text].kind.read(entry.value, where, reader)
            elif not self.extra or not entry.key.text.startswith(self.extra):
                reader.report(where, f"no such key in {self.what}; {near(entry.key.text, known)}", entry.key.mark)
        for key in self.keys:
            if key.required and key.name not in found:
                reader.report(path, f"`{key.name}` is missing: {key.doc}", node.mark)
        return {name: value for name, value in found.items() if value is not INVALID}

    def schema(self) -> dict[str, Any]:
        """An object with its properties, their words and defaults."""
        properties = {}
        for key in self.keys:
            default = f" Default: {key.default}." if key.default else ""
            properties[key.name] = {**key.kind.schema(), "description": key.doc + default}
            if key.value is not None:
                properties[key.name]["default"] = key.value
        value: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        required = [key.name for key in self.keys if key.required]
        if required:
            value["required"] = required
        if self.extra:
            value["patternProperties"] = {f"^{self.extra}": {}}
        return value


@dataclass(frozen=True)
class ByShape:
    """A short form and a map: which it is, the shape says."""

    scalar: Kind
    mapping: Kind

    def read(self, node: Node, path: Path, reader: Reader) -> Any:
        """What the one or the other reads."""
        return (self.mapping if isinstance(node, source.Mapping) else self.scalar).read(node, path, reader)

    def schema(self) -> dict[str, Any]:
        """Either."""
        return {"anyOf": [self.scalar.schema(), self.mapping.schema()]}
