"""The memory samples of a run, read back from what the meter left in the run's folder: every look, and the curves."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.measure.timeline import timeline
from harness.meterlog import MeterLog, parse_samples
from harness.records import TrialRecord
from harness.report.data import Curve


@dataclass(frozen=True)
class Look:
    """One look of the sampler at the arm's processes. `t`: CLOCK_MONOTONIC seconds. `processes`: those that counted.
    Sums over them in bytes; `rss_anon` is None where one could not be read.
    """

    t: float
    processes: int
    rss_anon: int | None
    rss_shmem: int
    rss_file: int
    vm_swap: int


def looks(folder: Path) -> Callable[[TrialRecord], Sequence[Look]]:
    """A loader of every look at a trial. A lost or torn samples file has none, which is no error."""

    def load(record: TrialRecord) -> Sequence[Look]:
        log = _log(folder, record)
        return looks_of(log) if log is not None else ()

    return load


def curves(folder: Path) -> Callable[[TrialRecord], Curve]:
    """A loader of memory curves for `RunData.samples`. A lost or torn samples file is a missing curve, no error."""

    def load(record: TrialRecord) -> Curve:
        log = _log(folder, record)
        return curve(log) if log is not None else ()

    return load


def _log(folder: Path, record: TrialRecord) -> MeterLog | None:
    """The meter's log of a trial; None where there is none that can be read."""
    named = record.memory.samples_path if record.memory is not None else None
    if named is None:
        return None
    # by its name alone: a record cannot lead out of the run's folder, and a folder that was moved still reads
    path = folder / "samples" / PurePosixPath(named).name
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error):
        return None
    return parse_samples(text.decode(errors="replace").splitlines())


def looks_of(log: MeterLog) -> Sequence[Look]:
    """Every look, in order of time, by the bracket's own rule of which processes count."""
    line = timeline(log)
    columns = (line.ticks, line.counts, line.sums, line.shmem, line.file, line.swap)
    return [Look(*values) for values in zip(*columns, strict=True)]


def curve(log: MeterLog) -> Curve:
    """Sum of RssAnon over the processes at each sample: (CLOCK_MONOTONIC seconds, bytes), by the bracket's own rule.

    A sample in which a process could not be read is left out: its sum would be too small by an unknown amount.
    """
    return [(look.t, look.rss_anon) for look in looks_of(log) if look.rss_anon is not None]
