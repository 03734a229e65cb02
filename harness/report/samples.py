"""The memory curves of a run: read back from the samples that the meter left in the run's folder."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from harness.measure.timeline import timeline
from harness.meterlog import MeterLog, parse_samples
from harness.records import TrialRecord
from harness.report.data import Curve


def curves(folder: Path) -> Callable[[TrialRecord], Curve]:
    """A loader of memory curves for `RunData.samples`. A lost or torn samples file is a missing curve, no error."""

    def load(record: TrialRecord) -> Curve:
        named = record.memory.samples_path if record.memory is not None else None
        if named is None:
            return ()
        # by its name alone: a record cannot lead out of the run's folder, and a folder that was moved still reads
        path = folder / "samples" / PurePosixPath(named).name
        try:
            raw = path.read_bytes()
            text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        except (OSError, EOFError, zlib.error):
            return ()
        return curve(parse_samples(text.decode(errors="replace").splitlines()))

    return load


def curve(log: MeterLog) -> Curve:
    """Sum of RssAnon over the processes at each sample: (CLOCK_MONOTONIC seconds, bytes), by the bracket's own rule.

    A sample in which a process could not be read is left out: its sum would be too small by an unknown amount.
    """
    line = timeline(log)
    return [(t, total) for t, total in zip(line.ticks, line.sums, strict=True) if total is not None]
