"""The memory curves of a run: read back from the samples that the meter left in the run's folder."""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from harness.meterlog import Change, MeterLog, MeterProcess, parse_samples
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
    """Sum of RssAnon over the processes at each sample: (CLOCK_MONOTONIC seconds, bytes).

    A child that has not exec'd yet shows its parent's pages, and the launcher its own: both hold nothing until then.
    """
    counted_from = {process.index: _counted_from(log, process) for process in log.processes}
    changes: dict[int, list[Change]] = defaultdict(list)
    for change in log.changes:
        changes[change.tick].append(change)
    held: dict[int, int] = {}
    points = []
    for tick, t in enumerate(log.ticks):
        for change in changes.get(tick, ()):
            held[change.process] = change.anon if change.state == "ok" else 0
        points.append((t, sum(anon for process, anon in held.items() if t >= counted_from[process])))
    return points


def _counted_from(log: MeterLog, process: MeterProcess) -> float:
    on_the_way = process.forked or (process.index == 0 and log.host.behind_launcher)
    return process.execs[0] if on_the_way and process.execs else float("-inf")
