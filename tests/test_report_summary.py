"""The report for programs: the contract's keys and types, strict JSON, nothing lost or invented."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_example as example

from harness.report import summary
from harness.verdict.types import Code, Interval, Judgement, Refused, Unknown

SCHEMA = json.loads((Path(__file__).resolve().parent.parent / "docs" / "report.schema.json").read_text())


def made(judgement: Judgement | None = None) -> dict[str, Any]:
    """The summary of the made-up run, as a program reads it back."""
    run = example.data()
    value = summary("direct_dequant", run.run, judgement or example.judgement(run), asked=run.experiment)
    loaded: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return loaded


def test_the_summary_follows_the_published_schema() -> None:
    """Every key and type of `report --json` is as docs/report.schema.json says."""
    import jsonschema

    jsonschema.Draft202012Validator(SCHEMA).validate(made())


def test_the_schema_would_notice_a_wrong_key() -> None:
    """The schema is no rubber stamp: a missing, misspelt or mistyped field is refused."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(SCHEMA)
    for path, wrong in (
        (("verdicts", 0, "ratio"), "1.2"),
        (("verdicts", 0, "verdict"), "same"),
        (("verdicts", 0, "interval"), [1.0]),
        (("failures", 0, "expected"), 1),
        (("arms", "direct", "trials"), {"ok": 6}),
    ):
        value = made()
        inner: Any = value
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = wrong
        assert not validator.is_valid(value), path


def test_the_contracts_keys_are_exact() -> None:
    """The keys the contract names are there under those names, with its meanings."""
    value = made()
    assert value["experiment"] == "direct_dequant"
    assert value["arms"]["direct"]["trials"] == {"ok": 6, "failed": 0}
    figure = value["arms"]["direct"]["metrics"]["settled_rss_anon"]
    assert set(figure) == {"median", "low", "high", "unit", "n"}
    assert figure["unit"] == "B"
    assert figure["n"] == 6
    ranked = next(v for v in value["verdicts"] if (v["metric"], v["a"], v["b"]) == ("load_s", "both_layouts", "direct"))
    assert ranked["verdict"] == "refused"
    assert ranked["reasons"] == ["spreads_overlap", "interval_contains_one"]
    assert ranked["within_passes"]["passes"] == 6
    assert value["claims"][0]["verdict"] == "supported"
    assert {"arm", "pass", "reason", "evidence", "expected"} <= set(value["failures"][0])


def test_one_verdict_for_each_unordered_pair_and_metric() -> None:
    """Five arms and four metrics make 10 x 4 verdicts, none twice."""
    seen = [(v["metric"], frozenset((v["a"], v["b"]))) for v in made()["verdicts"]]
    assert len(seen) == len(set(seen)) == 40


def test_an_arm_without_a_usable_value_lacks_the_key() -> None:
    """A metric without a usable value is absent, never null or 0."""
    assert made()["arms"]["rejected"]["metrics"] == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_nan_or_infinity_leaves(bad: float) -> None:
    """What is no finite number becomes null (a figure: absent), so that the JSON is strict."""
    run = example.data()
    judged = example.judgement(run)
    broken = replace(judged.verdicts[0], ratio=bad, interval=Interval(0.5, bad, 0.95, "made up"), smallest_effect=bad)
    arm = judged.arms["direct"]
    metrics = {**arm.metrics, "load_s": replace(arm.metrics["load_s"], high=bad)}
    value = made(
        replace(
            judged,
            verdicts=(broken, *judged.verdicts[1:]),
            arms={**judged.arms, "direct": replace(arm, metrics=metrics)},
        )
    )
    assert value["verdicts"][0]["ratio"] is None
    assert value["verdicts"][0]["interval"] is None
    assert value["verdicts"][0]["smallest_effect"] is None
    assert "load_s" not in value["arms"]["direct"]["metrics"]


def test_what_is_unknown_is_null() -> None:
    """A ratio or an interval that could not be worked out is null, and the reasons say why."""
    verdict = next(v for v in made()["verdicts"] if v["b"] == "rejected")
    assert verdict["ratio"] is None
    assert verdict["interval"] is None
    assert verdict["reasons"] == [Code.METRIC_MISSING.value]
    assert verdict["passes_needed"] is None


def test_the_summary_never_depends_on_the_verdicts_for_units() -> None:
    """An experiment of one arm has no pair; its figures still have their units."""
    run = example.data()
    value = made(replace(example.judgement(run), verdicts=()))
    assert value["arms"]["direct"]["metrics"]["load_s"]["unit"] == "s"


def test_every_refusal_has_a_remedy() -> None:
    """A refused verdict says what would change it."""
    run = example.data()
    judged = example.judgement(run)
    refused = [v for v in judged.verdicts if isinstance(v.outcome, Refused)]
    assert refused
    assert any(isinstance(v.ratio, Unknown) for v in refused)
    assert all(v["remedies"] for v in made()["verdicts"] if v["verdict"] == "refused")
