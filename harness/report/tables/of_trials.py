"""Tables of what each trial was, did and yielded. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.records import TrialRecord
from harness.report.tables.column import KEY, STANDING, Column, Table, Type, each, of_failure, text, trials


def _engaged(record: TrialRecord) -> Iterator[tuple[str, str, str, Any]]:
    for found in record.engagements:
        for kind, counts in (("modules", found.modules), ("calls", found.calls)):
            for name, count in counts.items():
                yield found.name, kind, name, count


def _counters(record: TrialRecord) -> Iterator[tuple[str, float | None, str | None, bool]]:
    found = record.disturbance
    for name in dict.fromkeys((*found.counters, *found.missing)):
        yield name, found.counters.get(name), found.missing.get(name), name in found.exceeded


TRIALS = Table(
    "trials",
    "one trial that ended, whatever became of it",
    trials,
    (
        *KEY,
        *STANDING,
        Column("counted", Type.FLAG, "", "verdicts are made from it: no priming, not replaced", lambda s: s.counted),
        Column("usable", Type.FLAG, "", "counted and not failed: its values enter statistics", lambda s: s.usable),
        Column(
            "failure",
            Type.TEXT,
            "",
            "reason of its failure (docs/failures.md); none: it ended well",
            of_failure("reason"),
        ),
        Column(
            "signal", Type.TEXT, "", "the signal that ended it, where the failure is `signal`", of_failure("signal")
        ),
        Column("expected", Type.FLAG, "", "the failure is the one that the arm declared", lambda s: s.record.expected),
        Column("evidence", Type.TEXT, "", "what shows the failure", of_failure("evidence")),
        Column("started_at", Type.TEXT, "UTC", "start, for people", lambda s: s.record.started_at),
        Column("began", Type.NUMBER, "s", "start by CLOCK_MONOTONIC", lambda s: s.record.began),
        Column("ended", Type.NUMBER, "s", "end by CLOCK_MONOTONIC: its last process is gone", lambda s: s.record.ended),
        Column(
            "caches", Type.TEXT, "", "its private caches before the start: cold or primed", lambda s: s.record.caches
        ),
        Column(
            "page_cache",
            Type.NUMBER,
            "1",
            "share of the weight files in the page cache before the start",
            lambda s: s.record.page_cache,
        ),
        Column(
            "probe_limit_bytes",
            Type.WHOLE,
            "B",
            "memory limit it ran under, for a probe of survival_limit",
            lambda s: s.record.probe_limit_bytes,
        ),
        Column("notes", Type.TEXT, "", "what a reader should know of it", lambda s: "\n".join(s.record.notes) or None),
        Column(
            "digest",
            Type.TEXT,
            "",
            "SHA-256 of the record, which holds that of the one before",
            lambda s: s.record.digest,
        ),
    ),
)

PHASES = Table(
    "phases",
    "one named part of a trial",
    each(lambda record: record.phases),
    (
        *KEY,
        Column("phase", Type.TEXT, "", "import, load, compile, prefill, ...", lambda o: o.thing.name),
        Column("begin", Type.NUMBER, "s", "by CLOCK_MONOTONIC", lambda o: o.thing.begin),
        Column("end", Type.NUMBER, "s", "by CLOCK_MONOTONIC; none: the trial ended inside it", lambda o: o.thing.end),
    ),
)

ITERATIONS = Table(
    "iterations",
    "one request inside a trial, warm-up included",
    each(lambda record: record.iterations),
    (
        *KEY,
        Column("phase", Type.TEXT, "", "the phase it belongs to", lambda o: o.thing.phase),
        Column("tokens_in", Type.WHOLE, "tokens", "tokens of the prompt", lambda o: o.thing.tokens_in),
        Column("tokens_out", Type.WHOLE, "tokens", "tokens produced", lambda o: o.thing.tokens_out),
        Column(
            "seconds",
            Type.NUMBER,
            "s",
            "to the first token in prefill; from first to last in decode",
            lambda o: o.thing.seconds,
        ),
    ),
)

ENGAGEMENT = Table(
    "engagement",
    "one count of the evidence that the intended code ran",
    each(_engaged),
    (
        *KEY,
        Column("name", Type.TEXT, "", "what was engaged", lambda o: o.thing[0]),
        Column("kind", Type.TEXT, "", "modules or calls", lambda o: o.thing[1]),
        Column("what", Type.TEXT, "", "kind of module, or path of the calls", lambda o: o.thing[2]),
        Column("count", Type.TEXT, "", "how many, as the arm reported it", lambda o: text(o.thing[3])),
    ),
)

WORK = Table(
    "work",
    "one fact of the work done, which must be equal between arms",
    each(lambda record: record.work.items()),
    (
        *KEY,
        Column("fact", Type.TEXT, "", "threads, kv_bytes, prompts, ...", lambda o: o.thing[0]),
        Column("value", Type.TEXT, "", "as the arm reported it; lists and maps as JSON", lambda o: text(o.thing[1])),
    ),
)

DISTURBANCE = Table(
    "disturbance",
    "what the host did to a trial, one counter a row (docs/measuring.md)",
    each(_counters),
    (
        *KEY,
        Column("counter", Type.TEXT, "", "name, its unit at the end", lambda o: o.thing[0]),
        Column("value", Type.NUMBER, "as the counter's name ends", "difference over the trial", lambda o: o.thing[1]),
        Column("missing", Type.TEXT, "", "why the host does not tell", lambda o: o.thing[2]),
        Column("exceeded", Type.FLAG, "", "over the experiment's threshold", lambda o: o.thing[3]),
    ),
)
