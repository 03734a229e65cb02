"""Tables of what is said of the run: verdicts of pairs, claims. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.experiment.types import Claim
from harness.report.summary import summary
from harness.report.tables.column import Column, Source, Table, Type, text
from harness.verdict.types import JudgedClaim


def _verdicts(source: Source) -> Iterator[dict[str, Any]]:
    """The entries of `harness report --json`, so that table and JSON never say two things."""
    data = source.data
    found = summary(data.experiment.name, data.run, source.judgement, asked=data.experiment)
    return iter(found["verdicts"])


def _claims(source: Source) -> Iterator[tuple[JudgedClaim, Claim | None]]:
    asked = {claim.id: claim for claim in source.data.experiment.claims}
    return ((claim, asked.get(claim.id)) for claim in source.judgement.claims)


def _key(name: str, type_: Type, unit: str, meaning: str) -> Column:
    """A column that is the entry's key of its name."""
    return Column(name, type_, unit, meaning, lambda entry: entry[name])


def _end(name: str, key: str, place: int, unit: str, meaning: str) -> Column:
    return Column(name, Type.NUMBER, unit, meaning, lambda entry: entry[key][place] if entry[key] is not None else None)


def _asked(name: str, meaning: str, field: str | None = None) -> Column:
    """A column that the claim's author wrote."""
    return Column(
        name, Type.TEXT, "", meaning, lambda pair: getattr(pair[1], field or name) if pair[1] is not None else None
    )


VERDICTS = Table(
    "verdicts",
    "one unordered pair of arms on one metric",
    _verdicts,
    (
        _key("metric", Type.TEXT, "", "name of the metric"),
        _key("a", Type.TEXT, "", "first arm"),
        _key("b", Type.TEXT, "", "second arm"),
        _key("verdict", Type.TEXT, "", "ranked, equivalent or refused"),
        _key("better", Type.TEXT, "", "the better arm of a ranked pair"),
        _key("ratio", Type.NUMBER, "1", "a / b"),
        _end("interval_low", "interval", 0, "1", "simultaneous interval of a / b, low end"),
        _end("interval_high", "interval", 1, "1", "its high end"),
        _key("interval_level", Type.NUMBER, "1", "its level, 0.95 for 95 %"),
        _key("interval_method", Type.TEXT, "", "the rule that made it"),
        _end("difference_low", "difference", 0, "the metric's unit", "interval of a - b, for bytes and where claimed"),
        _end("difference_high", "difference", 1, "the metric's unit", "its high end"),
        Column(
            "a_better", Type.WHOLE, "passes", "passes in which a was better", lambda e: e["within_passes"]["a_better"]
        ),
        Column(
            "passes", Type.WHOLE, "passes", "passes in which both have a value", lambda e: e["within_passes"]["passes"]
        ),
        _key("margin", Type.NUMBER, "1", "margin of an equivalence, 0.01 for 1 %"),
        _key("smallest_effect", Type.NUMBER, "1", "least relative difference that the run could have shown"),
        _key("passes_needed", Type.WHOLE, "passes", "to resolve the difference seen"),
        Column(
            "reasons",
            Type.TEXT,
            "",
            "codes of a refusal, separated by blanks",
            lambda e: " ".join(e["reasons"]) or None,
        ),
        _key("sentence", Type.TEXT, "", "the verdict in words"),
    ),
)

CLAIMS = Table(
    "claims",
    "one claim made in advance",
    _claims,
    (
        Column("id", Type.TEXT, "", "its name", lambda pair: pair[0].id),
        _asked("metric", "what it is about"),
        _asked("arm", "the arm"),
        _asked("versus", "the arm it is compared with"),
        _asked("expect", "what was expected, as written", "text"),
        Column(
            "host",
            Type.TEXT,
            "",
            "what the host must have, as JSON",
            lambda p: text(dict(p[1].host)) if p[1] and p[1].host else None,
        ),
        _asked("source", "where the claim comes from"),
        Column(
            "verdict",
            Type.TEXT,
            "",
            "supported, contradicted, undecided or not_comparable",
            lambda p: p[0].verdict.value,
        ),
        Column("why", Type.TEXT, "", "why", lambda pair: pair[0].why),
    ),
)
