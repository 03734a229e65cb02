"""What a table is: columns that say what they hold, and how each is read from the run. Pure.

A column's meaning and the code that fills it stand in one place, so that neither can outlive the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.records import TrialRecord
from harness.report.data import RunData
from harness.report.samples import Look
from harness.verdict.cells import latest_scorings
from harness.verdict.types import Judgement

#: A value in a table: what has no value is None, never 0 and never an empty text.
Cell = str | int | float | bool | None


class Type(StrEnum):
    """What a column holds, and what it becomes in pandas."""

    TEXT = "text"  # string
    WHOLE = "whole"  # Int64
    NUMBER = "number"  # float64; NaN is "no value" and nothing else, since records hold no NaN
    FLAG = "flag"  # boolean


@dataclass(frozen=True)
class Column:
    """`unit`: a unit, `""` for none, or the name of the column that holds it, in angle brackets. `get`: reads the cell
    from one item of its table.
    """

    name: str
    type: Type
    unit: str
    meaning: str
    get: Callable[[Any], Any]


@dataclass(frozen=True)
class Source:
    """What tables are made from. `looks`: the samples of one trial, empty where there are none."""

    data: RunData
    judgement: Judgement
    looks: Callable[[TrialRecord], Iterable[Look]] = lambda _record: ()


@dataclass(frozen=True)
class Table:
    """`what`: one row is ... `items`: one for each row, in the order of the records."""

    name: str
    what: str
    items: Callable[[Source], Iterable[Any]]
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def rows(self, source: Source) -> Iterator[tuple[Cell, ...]]:
        """Every row, its cells in the order of the columns."""
        return (tuple(column.get(item) for column in self.columns) for item in self.items(source))


@dataclass(frozen=True)
class Seen:
    """One trial and its standing. `counted`: verdicts are made from it (no priming, no attempt that a repetition of its
    pass replaced).
    """

    record: TrialRecord
    counted: bool

    @property
    def usable(self) -> bool:
        """Its values enter statistics."""
        return self.counted and self.record.usable


@dataclass(frozen=True)
class Of:
    """Something that belongs to a trial."""

    seen: Seen
    thing: Any

    @property
    def record(self) -> TrialRecord:
        """The trial's record."""
        return self.seen.record


def trials(source: Source) -> tuple[Seen, ...]:
    """Every trial on record, in the order of the file: failed, priming, replaced ones and probes included."""
    counted = {id(record) for record in (*source.data.latest, *latest_scorings(source.data.records))}
    return tuple(Seen(record, id(record) in counted) for record in source.data.records)


def each(things: Callable[[TrialRecord], Iterable[Any]]) -> Callable[[Source], Iterator[Of]]:
    """An `items` of a table with one row for each thing of a trial."""
    return lambda source: (Of(seen, thing) for seen in trials(source) for thing in things(seen.record))


def text(value: Any) -> str:
    """A JSON value as canonical text: a cell holds no list and no map."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _record(item: Any) -> TrialRecord:
    found: TrialRecord = item.record
    return found


#: What names a trial, at the head of every table whose rows belong to one.
KEY = (
    Column("trial", Type.WHOLE, "", "ordinal of the trial in the run, from 1", lambda i: _record(i).trial),
    Column("arm", Type.TEXT, "", "the arm", lambda i: _record(i).arm),
    Column(
        "pass",
        Type.WHOLE,
        "",
        "the pass, from 1; 0 for priming and for trials that only score text",
        lambda i: _record(i).pass_number,
    ),
)


#: How a trial stands in its run.
STANDING = (
    Column("position", Type.WHOLE, "", "place within its pass, from 1", lambda i: i.record.position),
    Column(
        "attempt", Type.WHOLE, "", "from 1; a repeated pass or a resumed trial counts on", lambda i: i.record.attempt
    ),
    Column(
        "scoring",
        Type.FLAG,
        "",
        "a trial of its own that scores text; position counts them",
        lambda i: i.record.scoring,
    ),
    Column("priming", Type.FLAG, "", "it filled caches or probed a limit: never counted", lambda i: i.record.priming),
)


def of_failure(field: str) -> Callable[[Any], Any]:
    """A getter of the failure of an item's trial; None where it ended well."""
    return lambda item: getattr(item.record.failure, field) if item.record.failure is not None else None
