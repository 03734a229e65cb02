"""A run's tables as CSV and JSON, by the standard library's own writers: nothing rounded, nothing dropped."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.report.frames import DICTIONARY, dictionary
from harness.report.tables import TABLES, Cell, Source, Table, Type

#: Version of the exported JSON.
#: 1 (2026-12-01): first.
FORMAT = 1


def csv_text(names: Iterable[str], rows: Iterable[Iterable[Cell]]) -> str:
    """Rows as RFC 4180 has them, but lines end in a line feed alone. No value is an empty field; flags are True and
    False; numbers have every digit they need to come back the same.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return out.getvalue()


def table_csv(name: str, source: Source) -> str:
    """One table as CSV."""
    return csv_text(TABLES[name].names, TABLES[name].rows(source))


def document(source: Source) -> dict[str, Any]:
    """All tables as one JSON value: `tables` by name, a list of objects each; `columns` says what they hold."""
    return {
        "format": FORMAT,
        "experiment": source.data.experiment.name,
        "run": source.data.run,
        "notes": [*source.data.notes, *source.judgement.notes],
        "columns": [dict(zip(DICTIONARY, row, strict=True)) for row in dictionary()],
        "tables": {table.name: _objects(table, source) for table in TABLES.values()},
    }


def _objects(table: Table, source: Source) -> list[dict[str, Any]]:
    whole = [column.type is Type.NUMBER for column in table.columns]
    return [
        {
            # 1 and 1.0 are one number in JSON and two types in a reader: a column of numbers holds floats throughout
            name: float(cell) if number and cell is not None else cell
            for name, cell, number in zip(table.names, row, whole, strict=True)
        }
        for row in table.rows(source)
    ]


def json_text(source: Source) -> str:
    """All tables as strict JSON."""
    return json.dumps(document(source), indent=1, ensure_ascii=False, allow_nan=False)


def write_csv(source: Source, folder: Path) -> tuple[Path, ...]:
    """One file a table, and `columns.csv`, which says what every column holds. Replaces files of these names."""
    texts = {name: table_csv(name, source) for name in TABLES} | {"columns": csv_text(DICTIONARY, dictionary())}
    return tuple(_write(folder / f"{name}.csv", text) for name, text in texts.items())


def write_json(source: Source, folder: Path) -> tuple[Path, ...]:
    """One file, `<experiment>-<run>.json`."""
    name = f"{source.data.experiment.name}-{source.data.run}.json"
    return (_write(folder / name, json_text(source) + "\n"),)


def _write(path: Path, text: str) -> Path:
    """Beside, then renamed: a reader never sees half a file. What no text can hold is written as its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(text.encode("utf-8", "backslashreplace"))
    beside.replace(path)
    return path
