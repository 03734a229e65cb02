"""The one writer of a run: records and decisions, each flushed before anything else happens."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Self

from harness.records import TrialRecord, converter, seal, to_line
from harness.run.extras import Extra
from harness.run.files import LineFile
from harness.run.store import RunFolder
from harness.run.trial_log import is_object, is_record


class RunWriter:
    """Appends to a run, flushed line by line; mends what a crash left. Use as a context manager.

    Raise `BusyError` while another process has it, `StoreError` if the files cannot be written. `notes`: what was
    mended. `recorded`: what the run held when it was opened.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._trials = LineFile(folder.path / "trials.jsonl", is_record)
        self._extras: LineFile | None = None
        try:
            self._clear_half_files()
            if self._extras_path.exists():
                self._extras = LineFile(self._extras_path, is_object)
            self.recorded = folder.records()
        except BaseException:
            self.close()
            raise
        mended = (self._trials.mended, self._extras.mended if self._extras else None)
        self.notes = tuple(note for note in mended if note)
        self._last = self.recorded.records[-1].digest if self.recorded.records else ""

    @property
    def _extras_path(self) -> Path:
        return self.folder.path / "plan-extra.jsonl"

    def _clear_half_files(self) -> None:
        """Remove temporary files of a writer that was killed: what they were made from is still where it came from."""
        for half in self.folder.path.glob(".*.part"):
            with suppress(OSError):
                half.unlink()

    def append(self, record: TrialRecord) -> TrialRecord:
        """Seal the record to the one before, append and flush it. Returns it as it stands on disk.

        Raise `StoreError` if it cannot be stored, `ValueError` if it holds what strict JSON has no word for.
        """
        sealed = seal(record, self._last)
        line = to_line(sealed)
        try:
            data = line.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, from an escape in an arm's own JSON
            data = (json.dumps(json.loads(line), allow_nan=False) + "\n").encode()
        self._trials.append(data)
        self._last = sealed.digest
        return sealed

    def extend(self, extra: Extra) -> None:
        """Append a decision to repeat or add passes, before anything of it runs."""
        if self._extras is None:
            self._extras = LineFile(self._extras_path, is_object)
        self._extras.append((json.dumps(converter().unstructure(extra), allow_nan=False) + "\n").encode())

    def close(self) -> None:
        """Give files and locks back."""
        self._trials.close()
        if self._extras is not None:
            self._extras.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
