"""A run as pandas frames: one attribute a table, each read when it is first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.report.tables import TABLES, Source, Table, Type

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

#: What each type of column becomes. Numbers are plain float64: records hold no NaN, so NaN is "no value", and its
#: reason stands in a column beside it.
DTYPES = {Type.TEXT: "string", Type.WHOLE: "Int64", Type.NUMBER: "float64", Type.FLAG: "boolean"}


class Frames:
    """One run as tidy frames: a row is one thing, a column one property of it, units in `columns`.

    `experiment`, `run`: names. `notes`: what must be known of the run as a whole. Every trial on record is in the
    frames, those that failed, priming and replaced attempts included; statistics use `metrics[metrics["usable"]]`.
    Missing values are pandas' own (NaN, <NA>), never 0, and a column beside them says why. Frames of trials begin with
    `trial`, `arm`, `pass`, to merge by.

    Frames and columns:
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.experiment = source.data.experiment.name
        self.run = source.data.run
        self.notes = (*source.data.notes, *source.judgement.notes)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Trials x metrics: the values."""
        return self._frame("metrics")

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Trials."""
        return self._frame("trials")

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Failed trials."""
        return self._frame("failures")

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """Pairs of arms on metrics."""
        return self._frame("verdicts")

    @cached_property
    def claims(self) -> pd.DataFrame:
        """Claims."""
        return self._frame("claims")

    @cached_property
    def memory(self) -> pd.DataFrame:
        """Brackets of memory by phase."""
        return self._frame("memory")

    @cached_property
    def levels(self) -> pd.DataFrame:
        """Steady levels of memory."""
        return self._frame("levels")

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Samples of memory; read from the run's samples, some 100,000 rows for twenty trials of two minutes."""
        return self._frame("samples")

    @cached_property
    def series(self) -> pd.DataFrame:
        """Readings inside trials."""
        return self._frame("series")

    @cached_property
    def phases(self) -> pd.DataFrame:
        """Phases of trials."""
        return self._frame("phases")

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """Requests inside trials."""
        return self._frame("iterations")

    @cached_property
    def engagement(self) -> pd.DataFrame:
        """Evidence of the code that ran."""
        return self._frame("engagement")

    @cached_property
    def work(self) -> pd.DataFrame:
        """Facts of the work done."""
        return self._frame("work")

    @cached_property
    def disturbance(self) -> pd.DataFrame:
        """What the host did."""
        return self._frame("disturbance")

    @cached_property
    def columns(self) -> pd.DataFrame:
        """Every column of every frame: `frame`, `column`, `type`, `unit`, `meaning`."""
        import pandas as pd

        return pd.DataFrame(dictionary(), columns=list(DICTIONARY), dtype="string")

    def _frame(self, name: str) -> pd.DataFrame:
        return _framed(TABLES[name], TABLES[name].rows(self._source))


def _framed(table: Table, rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    import pandas as pd

    cells = list(rows)
    return pd.DataFrame(
        {
            column.name: pd.Series([row[place] for row in cells], dtype=DTYPES[column.type])
            for place, column in enumerate(table.columns)
        }
    )


#: Head of the table of all columns.
DICTIONARY = ("frame", "column", "type", "unit", "meaning")


def dictionary() -> list[tuple[str, str, str, str, str]]:
    """Every column of every table: table, column, type, unit (empty for none), meaning."""
    return [
        (table.name, column.name, column.type.value, column.unit, column.meaning)
        for table in TABLES.values()
        for column in table.columns
    ]


def _told() -> str:
    """The tables for `help(harness.load)`."""
    lines = []
    for table in TABLES.values():
        lines.append(f"    {table.name}: one row is {table.what}")
        for column in table.columns:
            unit = f", {column.unit}" if column.unit else ""
            lines.append(f"        {column.name} ({column.type.value}{unit}): {column.meaning}")
    return "\n".join(lines) + "\n    "


Frames.__doc__ = f"{Frames.__doc__}{_told()}"
