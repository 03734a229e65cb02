"""Tables of memory: brackets by phase, steady levels, and every sample. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from harness.records import MemoryRecord, TrialRecord
from harness.report.tables.column import KEY, Column, Of, Source, Table, Type, each, trials


def _phases(record: TrialRecord) -> Iterator[object]:
    return iter(record.memory.phases if record.memory is not None else ())


def _levels(record: TrialRecord) -> Iterator[tuple[str, int | None, str | None]]:
    found = record.memory or MemoryRecord(backend="none")
    for name in dict.fromkeys((*found.levels, *found.levels_missing)):
        yield name, found.levels.get(name), found.levels_missing.get(name)


def _samples(source: Source) -> Iterator[Of]:
    return (Of(seen, look) for seen in trials(source) for look in source.looks(seen.record))


def _of(name: str, type_: Type, unit: str, meaning: str) -> Column:
    """A column that is the field of its name."""
    return Column(name, type_, unit, meaning, lambda o: getattr(o.thing, name))


def _bytes(name: str, meaning: str) -> Column:
    return _of(name, Type.WHOLE, "B", meaning)


MEMORY = Table(
    "memory",
    "memory of one phase of a trial, or of the whole of it (phase `trial`)",
    each(_phases),
    (
        *KEY,
        _of("phase", Type.TEXT, "", "the phase; `trial`: all of it"),
        _of("samples", Type.WHOLE, "", "looks at the process tree within it"),
        _bytes("s_lower", "largest sampled sum of RssAnon over the processes: the peak is no less"),
        _bytes("s_upper", "least valid bound of that sum: the peak is no more"),
        _of("s_upper_missing", Type.TEXT, "", "why there is no valid bound"),
        _bytes("u_lower", "the same of unique anonymous memory: pages shared after fork count once"),
        _bytes("u_upper", "the same of unique anonymous memory"),
        _of("u_upper_missing", Type.TEXT, "", "why there is no valid bound"),
        _of("peak_t", Type.NUMBER, "s", "CLOCK_MONOTONIC of the largest sum"),
        _of("peak_process", Type.TEXT, "", "the process with most of it then"),
        _bytes("max_rss_shmem", "largest sampled sum of RssShmem"),
        _bytes("max_rss_file", "largest sampled sum of RssFile"),
        _bytes("max_vm_swap", "largest sampled sum of VmSwap"),
        _bytes("max_anon_huge", "largest sum of AnonHugePages"),
    ),
)

LEVELS = Table(
    "levels",
    "one steady reading of a trial",
    each(_levels),
    (
        *KEY,
        Column("level", Type.TEXT, "", "settled, trimmed, pss_anon_settled, ...", lambda o: o.thing[0]),
        Column("bytes", Type.WHOLE, "B", "the level; none: never reached", lambda o: o.thing[1]),
        Column("missing", Type.TEXT, "", "why it was never reached", lambda o: o.thing[2]),
    ),
)

SAMPLES = Table(
    "samples",
    "one look of the sampler at the process tree",
    _samples,
    (
        *KEY,
        _of("t", Type.NUMBER, "s", "CLOCK_MONOTONIC of the look"),
        Column("since_start", Type.NUMBER, "s", "from the trial's start", lambda o: o.thing.t - o.record.began),
        _of("processes", Type.WHOLE, "", "processes of the arm then"),
        _bytes("rss_anon", "sum of RssAnon; none: a process could not be read"),
        _bytes("rss_shmem", "sum of RssShmem of those that could be read"),
        _bytes("rss_file", "sum of RssFile of those that could be read"),
        _bytes("vm_swap", "sum of VmSwap of those that could be read"),
    ),
)
