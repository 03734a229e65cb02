"""The table of trials that failed, with all that is known of why. Pure."""

from __future__ import annotations

from typing import Any

from harness.report.tables.column import KEY, STANDING, Column, Of, Table, Type, trials

FAILURES = Table(
    "failures",
    "one trial that failed, expected or not",
    lambda source: (Of(seen, seen.record.failure) for seen in trials(source) if seen.record.failure is not None),
    (
        *KEY,
        *STANDING,
        Column(
            "probe",
            Type.FLAG,
            "",
            "a probe of survival_limit: meant to find where the arm dies",
            lambda o: o.record.probe_limit_bytes is not None,
        ),
        Column(
            "replaced",
            Type.FLAG,
            "",
            "a repetition of its pass stands in its place",
            lambda o: not o.record.priming and not o.seen.counted,
        ),
        Column("expected", Type.FLAG, "", "it is the failure that the arm declared", lambda o: o.record.expected),
        Column("reason", Type.TEXT, "", "one of the closed list (docs/failures.md)", lambda o: o.thing.reason.value),
        Column("signal", Type.TEXT, "", "name of the signal, for the reason `signal`", lambda o: o.thing.signal),
        Column("phase", Type.TEXT, "", "the phase that was open", lambda o: o.thing.phase),
        Column("killed_by", Type.TEXT, "", "harness, if its own signal ended it", lambda o: o.thing.killed_by),
        Column("evidence", Type.TEXT, "", "what shows it", lambda o: o.thing.evidence),
        Column("exception", Type.TEXT, "", "class of the engine's own exception", lambda o: _root(o, "exception")),
        Column("message", Type.TEXT, "", "its message", lambda o: _root(o, "message")),
        Column("frame", Type.TEXT, "", "its innermost frame", lambda o: _root(o, "frame")),
        Column("wall_s", Type.NUMBER, "s", "from start to failure", lambda o: o.thing.wall_s),
        Column(
            "last_memory_bytes", Type.WHOLE, "B", "last sampled sum of RssAnon", lambda o: o.thing.last_memory_bytes
        ),
        Column("log", Type.TEXT, "", "its log, within the run's folder", lambda o: o.thing.log),
    ),
)


def _root(item: Of, field: str) -> Any:
    return getattr(item.thing.root, field) if item.thing.root is not None else None
