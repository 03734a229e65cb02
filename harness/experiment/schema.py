"""The experiment file, described once: every key with its kind, its words and its default. Pure.

Its parts stand in schema_arms.py, schema_judging.py and schema_workload.py. Validation (resolve.py), `harness schema`
and docs/experiment.md all follow this description.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from harness.experiment.amounts import COUNT, FRACTION, SECONDS, threshold, whole
from harness.experiment.kinds import Choice, Text, Whole
from harness.experiment.schema_arms import PRIMING, SAMPLER, arm, engine, expect
from harness.experiment.schema_judging import claim, metric, precision
from harness.experiment.schema_workload import workload
from harness.experiment.shapes import ByShape, Key, ListOf, MapOf, Record
from harness.experiment.vocabulary import (
    DISTURBANCE_COUNTERS,
    MAX_PASSES,
    OTHER_LIMITS,
    PHASES,
    arm_name,
    counter_name,
    limit_name,
)


def _metric_names() -> tuple[str, ...]:
    from harness.metrics import REGISTRY

    return tuple(REGISTRY)


@cache
def experiment() -> Record:
    """The whole file."""
    return Record(
        "an experiment file",
        (
            Key("question", Text("a question"), "The one question, in words.", required=True),
            Key("passes", whole(1, MAX_PASSES), "How often every arm runs.", required=True),
            Key("engine", engine(), "Which engines, and what their arms share.", required=True),
            Key("arms", MapOf(arm(), what="a map of arms", key=arm_name, least=1), "The arms.", required=True),
            Key(
                "metrics",
                ListOf(ByShape(Text("a metric"), metric()), least=1, what="a list of metrics", example="[wall_s]"),
                f"What is measured: built in ({', '.join(_metric_names())}), or defined here.",
                required=True,
            ),
            Key("model", Text("a recipe or a path"), "The model of all arms.", default="none"),
            Key("workload", workload(), "The same work for every arm.", default="none"),
            Key("baseline", Text("an arm"), "Arm that ratios are stated against.", default="none: pairs only"),
            Key(
                "control",
                Text("an arm"),
                "Arm that runs a second time as `<arm>_control` (A/A).",
                default="none: the report says that no A/A guards it",
            ),
            Key("seed", Whole(0, 2**63 - 1), "Seed of the order.", default="drawn and recorded"),
            Key("priming", PRIMING, "Uncounted trials of each arm first.", default="1, for command 0"),
            Key(
                "sampler",
                SAMPLER,
                "How densely memory is sampled; 0 Hz: not at all, memory metrics are then missing with that reason.",
                default="50 Hz until loaded, 20 Hz after that",
            ),
            Key("expect", expect(), "What every arm declares; an arm's own keys win.", default="nothing"),
            Key("claims", ListOf(claim(), what="a list of claims"), "Statements made in advance.", default="none"),
            Key(
                "rule",
                Choice("rule", lambda: ("strict", "paired")),
                "`strict` wants disjoint spreads, `paired` does not.",
                default="strict",
                value="strict",
            ),
            Key(
                "margins",
                MapOf(FRACTION, what="margins by metric"),
                "By metric, the relative difference that is too small to matter, fixed in advance.",
                default="none",
            ),
            Key(
                "disturbance",
                MapOf(
                    COUNT, what="thresholds by counter", key=counter_name, by_key=threshold, names=DISTURBANCE_COUNTERS
                ),
                "By counter, what a trial may suffer before it counts as disturbed.",
                default="recorded, never a failure",
            ),
            Key("repeat_passes", whole(0, 1000), "Most repetitions of spoilt passes.", default="0", value=0),
            Key(
                "limits",
                MapOf(SECONDS, what="limits", key=limit_name, names=(*PHASES, *OTHER_LIMITS)),
                "Longest time by phase, and `trial`, `stall` (no sign of progress), `exit` (after `done`).",
                default="trial 30 min, stall 5 min, exit 1 min, phases none",
            ),
            Key(
                "precision",
                ByShape(FRACTION, precision()),
                "Add whole passes until every interval is this narrow.",
                default="no passes are added",
            ),
        ),
        extra="x-",
    )


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of an experiment file, for editors. What only a whole reading can tell (names that
    must exist, claims, equal keys) is left to `harness check`.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "harness experiment",
        "description": "One question, with its arms, workload, passes, metrics and claims.",
        **experiment().schema(),
    }
