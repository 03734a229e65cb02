"""YAML text to a tree of scalars, lists and maps that remember line and column. Pure.

PyYAML composes; nothing of its typing is used, because it guesses: `on` becomes True, `010` becomes 8, `12:30` becomes
750, `1e-3` stays text, and of two equal keys the last one wins without a word. A scalar stays the text that was
written; what it may stand for is decided where it is read (kinds.py), by `Scalar.written`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from harness.experiment.problems import ExperimentError, Mark, Path, Problem, path_text

if TYPE_CHECKING:
    import yaml

#: The largest experiment file: PyYAML composes about 230 KiB of YAML a second here: a second at worst.
MAX_BYTES: Final = 256 * 1024
#: Values after aliases are followed, and levels of nesting. The design's example has 80 and 5.
MAX_NODES: Final = 20_000
MAX_DEPTH: Final = 32


class Written(Enum):
    """What an unquoted scalar looks like to the YAML versions in use."""

    TEXT = "text"
    NUMBER = "a number"
    ODD_NUMBER = "a number only to some YAML readers"  # 010, 1_000, 12:30, 0x10
    NONFINITE = "no finite number"
    BOOL = "true or false"
    ODD_BOOL = "true or false only to some YAML readers"  # on, off, yes, no
    NULL = "nothing"
    DATE = "a date"


@dataclass(frozen=True)
class Scalar:
    """One value as written. `written`: TEXT for anything quoted."""

    text: str
    written: Written
    quoted: bool
    mark: Mark


@dataclass(frozen=True)
class Sequence:
    """A list."""

    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True)
class Entry:
    """One key with its value. `key` is kept with its mark and the way it was written."""

    key: Scalar
    value: Node


@dataclass(frozen=True)
class Mapping:
    """A map, merge keys applied, in the order of the file; its keys differ from each other."""

    entries: tuple[Entry, ...]
    mark: Mark


Node = Scalar | Sequence | Mapping

_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_ODD_NUMBER = re.compile(
    r"[-+]?(?:0[0-9_]+(?:\.[0-9_]*)?|0[oxb][0-9a-fA-F_]+|[0-9][0-9_]*_[0-9_.]*|[0-9][0-9_]*(?::[0-9]+)+(?:\.[0-9]*)?)\Z"
)
_NONFINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_TAG: Final = "tag:yaml.org,2002:"


def classify(text: str, tag: str) -> Written:
    """What an unquoted scalar looks like: by its text, and by `tag`, which is PyYAML's opinion (YAML 1.1)."""
    for written, fits in (
        (Written.NULL, text in {"", "~", "null", "Null", "NULL"}),
        (Written.BOOL, text in {"true", "True", "TRUE", "false", "False", "FALSE"}),
        (Written.NUMBER, _NUMBER.match(text)),
        (Written.NONFINITE, _NONFINITE.match(text)),
        (Written.ODD_NUMBER, _ODD_NUMBER.match(text) or tag in {_TAG + "int", _TAG + "float"}),
        (Written.ODD_BOOL, tag == _TAG + "bool"),
        (Written.DATE, tag == _TAG + "timestamp"),
    ):
        if fits:
            return written
    return Written.TEXT


def parse(text: str, filename: str) -> tuple[Node, list[Problem]]:
    """The tree of one file and what is wrong with its form (equal keys, tags, ...). Raise `ExperimentError` if there
    is no tree at all: no YAML, empty, or too large.
    """
    if len(text) > MAX_BYTES:
        message = f"{len(text)} characters; an experiment file has at most {MAX_BYTES}"
        raise ExperimentError([Problem(filename, 1, 1, "file", message)])
    root = _compose(text, filename)
    if root is None:
        message = "holds nothing; write at least question, passes, engine, arms and metrics"
        raise ExperimentError([Problem(filename, 1, 1, "file", message)])
    builder = _Builder(filename)
    return builder.node(root, (), 0), builder.problems


def _compose(text: str, filename: str) -> yaml.Node | None:
    import yaml

    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        what = f"no YAML: {error.problem or error.context}{_hint(str(error))}"
        raise ExperimentError([Problem(filename, line, column, "file", what)]) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        what = f"no YAML: the character U+{ord(text[error.position]):04X} may not stand in a file; take it out"
        raise ExperimentError([Problem(filename, line, column, "file", what)]) from error
    except RecursionError as error:
        what = f"nested too deeply; at most {MAX_DEPTH} levels"
        raise ExperimentError([Problem(filename, 1, 1, "file", what)]) from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        # PyYAML lets a few of these through for broken escapes and directives ("\UFFFFFFFF": chr() out of range)
        what = f"no YAML: {type(error).__name__}: {error}"
        raise ExperimentError([Problem(filename, 1, 1, "file", what)]) from error
    return node


def _hint(error: str) -> str:
    """What to do about the errors that people meet most."""
    if "'\\t'" in error:
        return "; indent with blanks, not with tabs"
    if "chomping or indentation indicators" in error:
        return '; text that begins with > must be quoted: ">= 32"'
    if "mapping values are not allowed" in error:
        return "; text that holds `: ` must be quoted"
    if "expected a single document" in error:
        return "; one file holds one experiment, so no second `---`"
    if "cannot start any token" in error or "found unknown escape" in error:
        return "; quote the text with single quotes"
    return "; check brackets, quotes and indentation here and on the line before"


class _Builder:
    """Walks one composed tree; collects problems; follows aliases, but not for ever."""

    def __init__(self, filename: str) -> None:
        from yaml.resolver import Resolver

        self.filename = filename
        self.problems: list[Problem] = []
        self.count = 0
        self.resolve: Callable[..., str] = Resolver().resolve

    def report(self, mark: Mark, path: Path, message: str) -> None:
        self.problems.append(Problem(self.filename, mark.line, mark.column, path_text(path), message))

    def node(self, node: yaml.Node, path: Path, depth: int) -> Node:
        import yaml

        mark = Mark(node.start_mark.line + 1, node.start_mark.column + 1)
        self.count += 1
        if self.count > MAX_NODES or depth > MAX_DEPTH:
            message = (
                f"too large: more than {MAX_NODES} values or {MAX_DEPTH} levels once aliases are followed; an alias"
                " must not hold itself"
            )
            raise ExperimentError([Problem(self.filename, mark.line, mark.column, path_text(path), message)])
        if isinstance(node, yaml.MappingNode):
            self._tag(node, mark, path, "map")
            return Mapping(tuple(self._entries(node, path, depth)), mark)
        if isinstance(node, yaml.SequenceNode):
            self._tag(node, mark, path, "seq")
            return Sequence(
                tuple(self.node(item, (*path, index), depth + 1) for index, item in enumerate(node.value)), mark
            )
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - the third and last kind of node there is
        return self._scalar(node, path, mark)

    def _tag(self, node: yaml.Node, mark: Mark, path: Path, wanted: str) -> None:
        if node.tag != _TAG + wanted:
            self.report(mark, path, f"the tag {node.tag} is not used in experiment files; take it out")

    def _scalar(self, node: yaml.ScalarNode, path: Path, mark: Mark) -> Scalar:
        import yaml

        text, plain = str(node.value), node.style is None
        implied = self.resolve(yaml.ScalarNode, text, (plain, not plain))
        if node.tag == _TAG + "str" and implied != node.tag:
            plain = False  # `!!str 12` says what quotes say
        elif node.tag != implied:
            self.report(mark, path, f"the tag {node.tag} is not used in experiment files; take it out, or quote")
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
            self.report(mark, path, "holds a NUL or half a surrogate pair, which no file name or argument can carry")
        return Scalar(text, classify(text, node.tag) if plain else Written.TEXT, not plain, mark)

    def _entries(self, node: yaml.MappingNode, path: Path, depth: int) -> list[Entry]:
        """Own keys first, equal ones refused; then merged ones that are not overridden."""
        import yaml

        own: dict[str, Entry] = {}
        merged: list[Entry] = []
        merge_mark: Mark | None = None
        for key_node, value_node in node.value:
            mark = Mark(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                self.report(mark, path, "a key must be text, not a list or map")
                continue
            if key_node.tag == _TAG + "merge" and key_node.style is None:
                if merge_mark is not None:
                    self._equal(mark, path, "<<", merge_mark)
                merge_mark = mark
                merged += self._merged(value_node, path, depth)
                continue
            key = self._scalar(key_node, (*path, str(key_node.value)), mark)
            if key.text in own:
                self._equal(mark, (*path, key.text), key.text, own[key.text].key.mark)
                continue
            own[key.text] = Entry(key, self.node(value_node, (*path, key.text), depth + 1))
        for entry in merged:
            own.setdefault(entry.key.text, entry)
        return list(own.values())

    def _equal(self, mark: Mark, path: Path, key: str, first: Mark) -> None:
        self.report(
            mark, path, f"the key `{key}` stands twice, on line {first.line} and on line {mark.line}; keep one of them"
        )

    def _merged(self, node: yaml.Node, path: Path, depth: int) -> list[Entry]:
        """Entries of `<<: *base` or `<<: [*a, *b]`; the earlier of a list wins, as YAML's merge type says."""
        import yaml

        if isinstance(node, yaml.SequenceNode):
            return [entry for item in node.value for entry in self._merged_one(item, path, depth)]
        return self._merged_one(node, path, depth)

    def _merged_one(self, node: yaml.Node, path: Path, depth: int) -> list[Entry]:
        found = self.node(node, (*path, "<<"), depth + 1)
        if isinstance(found, Mapping):
            return list(found.entries)
        self.report(found.mark, (*path, "<<"), "a merge key takes a map, or a list of maps: `<<: *base`")
        return []
