"""Reading trials.jsonl and plan-extra.jsonl back, whatever happened to their last line.

Pure functions over bytes: what a crash left is data, and every byte of it is accounted for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.records import RecordError, TrialRecord, broken_links, from_line
from harness.run.files import split_torn


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What trials.jsonl holds.

    `records`: every whole record, in the file's order. `notes`: a sentence for each thing a reader must know: a torn
    last line, a line that is no record, a record that was edited or moved. `torn`: bytes of the torn last line.
    `damaged`: a line that was whole once cannot be read or does not belong where it is; such a run is not resumed.
    """

    records: tuple[TrialRecord, ...] = ()
    notes: tuple[str, ...] = ()
    torn: bytes = b""
    damaged: bool = False


def is_record(line: bytes) -> bool:
    """Whether a line, with or without its newline, is a whole trial record."""
    try:
        from_line(line.decode())
    except (RecordError, UnicodeDecodeError):
        return False
    return True


def is_object(line: bytes) -> bool:
    """Whether a line is a whole JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def read_records(content: bytes, name: str = "trials.jsonl") -> Recorded:
    """All whole records of the file's content. Nothing is dropped without a note."""
    kept, torn = split_torn(content, is_record)
    notes = [f"{name} ends in a torn line of {len(torn)} bytes: a trial was being recorded at that moment"] * bool(torn)
    records, unreadable = [], []
    for number, line in enumerate(kept.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(from_line(line.decode()))
        except (RecordError, UnicodeDecodeError) as error:
            unreadable.append(f"{name}:{number}: {error}")
    wrong = unreadable + list(broken_links(tuple(records)))
    return Recorded(records=tuple(records), notes=(*notes, *wrong), torn=torn, damaged=bool(wrong))


def read_objects(content: bytes) -> tuple[Mapping[str, Any], ...]:
    """All whole JSON objects of a file of lines; a torn last line is left out."""
    kept, _ = split_torn(content, is_object)
    return tuple(json.loads(line) for line in kept.split(b"\n") if is_object(line))
