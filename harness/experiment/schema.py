"""The experiment file, described once: every key with its kind, its words and its default. Pure.

Validation (resolve.py), `harness schema` and docs/experiment.md all follow this description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from harness import units
from harness.experiment.kinds import Choice, Kind, Quantity, Text, Whole
from harness.experiment.shapes import ByShape, Free, Key, ListOf, MapOf, Record
from harness.experiment.special import Cores, CountOrBound, Isa
from harness.experiment.vocabulary import (
    DISTURBANCE_COUNTERS,
    ENGINES,
    MAX_PASSES,
    OTHER_LIMITS,
    PHASES,
    SIGNALS,
    arm_name,
    counter_name,
    label,
    limit_name,
    variable,
)

__all__ = ["DISTURBANCE_COUNTERS", "experiment", "json_schema", "workload_defaults"]


def _reasons() -> tuple[str, ...]:
    from harness.records import Reason  # records imports this package's types

    return tuple(reason.value for reason in Reason)


def _metric_names() -> tuple[str, ...]:
    from harness.metrics import REGISTRY

    return tuple(REGISTRY)


_SECONDS = Quantity("a time", units.SECOND_FACTORS, above=0, example="90 s or 2 min")
_FRACTION = Quantity("a share", {"%": 0.01}, above=0, below=1, example="2%")
_AMOUNT: Mapping[str, Quantity] = {
    "_s": Quantity("a time", units.SECOND_FACTORS, at_least=0, example="0.5 s"),
    "_bytes": Quantity("a number of bytes", units.BYTE_FACTORS, at_least=0, example="64 MiB"),
    "_fraction": Quantity("a share", {"%": 0.01}, at_least=0, example="1%"),
}
_COUNT = Quantity("a number", {}, at_least=0)


def _threshold(counter: str) -> Kind:
    return next((kind for end, kind in _AMOUNT.items() if counter.endswith(end)), _COUNT)


def _whole(low: int = 1, high: int = 10**7) -> Whole:
    return Whole(low, high)


@cache
def experiment() -> Record:
    """The whole file."""
    env = MapOf(Text("an environment variable's text", empty=True), what="variables", key=variable)
    args = MapOf(Free(), what="engine arguments")
    counts = MapOf(CountOrBound(), what="counts by name")
    command = ListOf(
        Text("an argument", numbers=True, empty=True),
        least=1,
        what="a list of arguments",
        example='[python3, prog.py, "x"]',
    )
    expect = Record(
        "expect",
        (
            Key("engaged", Text("a name"), "Name that an engagement event of the arm must carry."),
            Key("modules", counts, 'How many modules of each kind that event must hold: a count, or `"> 0"`.'),
            Key("calls", counts, 'How many calls by each path that event must hold: a count, or `"> 0"`.'),
            Key("failure", Choice("failure reason", _reasons), "The arm is meant to fail so; met, it is a success."),
            Key("signal", Choice("signal", lambda: SIGNALS), "Which signal ends it; only with `failure: signal`."),
        ),
    )
    priming = _whole(0, 100)
    python = Text("a path")
    sampler = Record("sampler", (Key("hz", _whole(0, 200), "Memory samples a second; 0: no sampler.", required=True),))
    vllm = Record(
        "engine vllm",
        (
            Key("args", args, "Engine arguments that all arms share; an arm's own replace them one by one."),
            Key("env", env, "Environment variables that all arms share."),
            Key("python", python, "Interpreter that has the engine.", default="the arms' own environment"),
        ),
    )
    arm = Record(
        "an arm",
        (
            Key("engine", Choice("engine", lambda: ENGINES), "Which engine; needed if the file has several."),
            Key("command", command, "Makes it a `command` arm: the program and its arguments, no shell."),
            Key("model", Text("a recipe or a path"), "The arm's own model.", default="the file's `model`"),
            Key("args", args, "Engine arguments; each replaces the shared one of its name."),
            Key("env", env, "Environment variables; each replaces the shared one of its name."),
            Key("python", python, "Interpreter that has the engine.", default="the engine's `python`"),
            Key("quantization", args, "Fields merged into the checkpoint's own quantization config."),
            Key("expect", expect, "What the arm declares in advance.", default="the file's `expect`"),
            Key("priming", priming, "Uncounted trials before the first pass.", default="the file's `priming`"),
            Key("sampler", sampler, "How densely memory is sampled.", default="the file's `sampler`"),
        ),
    )
    metric = Record(
        "a metric",
        (
            Key("name", Text("a name", check=label), "Name of the metric event.", required=True),
            Key("unit", Text("a unit", check=label), "Unit of the reported value, such as s or B.", required=True),
            Key("better", Choice("direction", lambda: ("lower", "higher")), "lower or higher.", required=True),
            Key(
                "resolution",
                Quantity("a number", {}, above=0),
                "Smallest difference that the reading can show, in the metric's unit.",
                default="one part in a million of the value",
            ),
            Key("definition", Text(), "What is measured, in words for the report."),
        ),
    )
    precision = Record(
        "precision",
        (
            Key("target", _FRACTION, "Half width of the ratio's interval at which to stop.", required=True),
            Key("max_passes", _whole(1, MAX_PASSES), "Most passes in all.", default="four times `passes`"),
            Key("budget", _SECONDS, "Wall time after which no pass is added.", default="4 h"),
        ),
    )
    claim = Record(
        "a claim",
        (
            Key("id", Text("a name", check=label), "Short name, unique in the file.", required=True),
            Key("metric", Text("a metric"), "One of the file's metrics.", required=True),
            Key("arm", Text("an arm"), "The arm that the claim is about.", required=True),
            Key("versus", Text("an arm"), "The arm it is compared with.", default="the baseline"),
            Key(
                "expect",
                Text("what is expected"),
                "`ratio >= 1.8` (arm/versus), `difference <= -550 MiB` (arm - versus), `equivalent within 1%`, or"
                " `not ranked`.",
                required=True,
            ),
            Key(
                "host",
                Record(
                    "host",
                    (
                        Key("isa", Isa(), "Instruction sets the host must have, as /proc/cpuinfo names them."),
                        Key("cores", Cores(), 'Least number of cores: 32 or `">= 32"`.'),
                    ),
                ),
                "What the host must have for the claim to be judged at all.",
            ),
            Key("source", Text(), "Where the claim comes from."),
        ),
    )
    return Record(
        "an experiment file",
        (
            Key("question", Text("a question"), "The one question, in words.", required=True),
            Key("passes", _whole(1, MAX_PASSES), "How often every arm runs.", required=True),
            Key(
                "engine",
                Record(
                    "engine",
                    (
                        Key("vllm", vllm, "vLLM, offline."),
                        Key(
                            "command",
                            Record("engine command", (Key("env", env, "Environment variables of all commands."),)),
                            "Any program that speaks the event protocol.",
                        ),
                    ),
                ),
                "Which engines, and what their arms share.",
                required=True,
            ),
            Key("arms", MapOf(arm, what="a map of arms", key=arm_name, least=1), "The arms.", required=True),
            Key(
                "metrics",
                ListOf(ByShape(Text("a metric"), metric), least=1, what="a list of metrics", example="[wall_s]"),
                f"What is measured: built in ({', '.join(_metric_names())}), or defined here.",
                required=True,
            ),
            Key("model", Text("a recipe or a path"), "The model of all arms.", default="none"),
            Key("workload", _workload(), "The same work for every arm.", default="none"),
            Key("baseline", Text("an arm"), "Arm that ratios are stated against.", default="none: pairs only"),
            Key(
                "control",
                Text("an arm"),
                "Arm that runs a second time as `<arm>_control` (A/A).",
                default="none: the report says that no A/A guards it",
            ),
            Key("seed", Whole(0, 2**63 - 1), "Seed of the order.", default="drawn and recorded"),
            Key("priming", priming, "Uncounted trials of each arm first.", default="1 for vllm, 0 for command"),
            Key(
                "sampler",
                sampler,
                "How densely memory is sampled; 0 Hz: not at all, memory metrics are then missing with that reason.",
                default="50 Hz until loaded, 20 Hz after that",
            ),
            Key("expect", expect, "What every arm declares; an arm's own keys win.", default="nothing"),
            Key("claims", ListOf(claim, what="a list of claims"), "Statements made in advance.", default="none"),
            Key(
                "rule",
                Choice("rule", lambda: ("strict", "paired")),
                "`strict` wants disjoint spreads, `paired` does not.",
                default="strict",
                value="strict",
            ),
            Key(
                "margins",
                MapOf(_FRACTION, what="margins by metric"),
                "By metric, the relative difference that is too small to matter, fixed in advance.",
                default="none",
            ),
            Key(
                "disturbance",
                MapOf(
                    _COUNT,
                    what="thresholds by counter",
                    key=counter_name,
                    by_key=_threshold,
                    names=DISTURBANCE_COUNTERS,
                ),
                "By counter, what a trial may suffer before it counts as disturbed.",
                default="recorded, never a failure",
            ),
            Key("repeat_passes", _whole(0, 1000), "Most repetitions of spoilt passes.", default="0", value=0),
            Key(
                "limits",
                MapOf(_SECONDS, what="limits", key=limit_name, names=(*PHASES, *OTHER_LIMITS)),
                "Longest time by phase, and `trial`, `stall` (no sign of progress), `exit` (after `done`).",
                default="trial 30 min, stall 5 min, exit 1 min, phases none",
            ),
            Key(
                "precision",
                ByShape(_FRACTION, precision),
                "Add whole passes until every interval is this narrow.",
                default="no passes are added",
            ),
        ),
        extra="x-",
    )


def _workload() -> Record:
    def part(name: str, *keys: Key) -> Key:
        return Key(name, Record(f"workload {name}", keys), _PARTS[name])

    prompt = Key("prompt_tokens", _whole(), "Length of the prompt.", required=True)
    return Record(
        "workload",
        (
            part("prefill", prompt, Key("repeats", _whole(1, 10**5), "Iterations a trial.", default="5", value=5)),
            part(
                "decode",
                prompt,
                Key("new_tokens", _whole(2), "Tokens to produce, two or more.", required=True),
                Key("repeats", _whole(1, 10**5), "Iterations a trial.", default="3", value=3),
            ),
            part("context", Key("tokens", _whole(), "Length to which one context grows.", required=True)),
            part(
                "quality",
                Key("text", Text("a text"), "Text to score: a recipe or a path.", required=True),
                Key("windows", _whole(1, 10**5), "How many windows.", default="20", value=20),
                Key("window_tokens", _whole(2), "Tokens of each window.", default="256", value=256),
            ),
        ),
    )


_PARTS: Final = {
    "prefill": "Requests of exactly `prompt_tokens` with one output token.",
    "decode": "Requests with exactly `new_tokens` output tokens.",
    "context": "One request that fills the context.",
    "quality": "Negative log-likelihood of a fixed text, window by window.",
}


def workload_defaults(part: str) -> dict[str, Any]:
    """What stands in a part of the workload where the file says nothing."""
    record = next(key.kind for key in _workload().keys if key.name == part)
    keys: Iterable[Key] = record.keys if isinstance(record, Record) else ()
    return {key.name: key.value for key in keys if key.value is not None}


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
