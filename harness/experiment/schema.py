"""The experiment file, described once: every key with its kind, its words and its default. Pure.

Validation (resolve.py), `harness schema` and docs/experiment.md all follow this description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import quote

from harness import units
from harness.experiment.kinds import (
    INVALID,
    ByShape,
    Choice,
    Free,
    Invalid,
    Key,
    Kind,
    ListOf,
    MapOf,
    Quantity,
    Reader,
    Record,
    Text,
    Whole,
)
from harness.experiment.problems import Path, near
from harness.experiment.source import Node

#: Drivers that an experiment may name.
ENGINES: Final = ("vllm", "command")
#: Phases that the project's own drivers report; programs of `command` arms may have others.
PHASES: Final = (
    "import",
    "load",
    "compile",
    "warm-up",
    "prefill",
    "decode",
    "context",
    "quality",
    "settle",
    "trim",
    "shutdown",
)
#: Limits that are no phase.
OTHER_LIMITS: Final = ("trial", "stall", "exit")
#: Words that people try for the limit of the whole trial; none may pass as the name of a phase that never comes.
_MEANT_TRIAL: Final = frozenset({"timeout", "timeout_s", "time", "total", "wall", "wall_s", "max", "limit", "seconds"})
#: Counters that `disturbance` may bound: what the host did to a trial, unit in the name (harness/run/disturbance.py).
DISTURBANCE_COUNTERS: Final = (
    "steal_s",
    "steal_fraction",
    "foreign_cpu_s",
    "foreign_cpu_fraction",
    "psi_cpu_some_s",
    "psi_memory_some_s",
    "psi_io_some_s",
    "major_faults",
    "swap_in_bytes",
    "swap_out_bytes",
    "throttle_events",
    "load_1min",
)
#: Signals that may be declared to end an arm: those of signal(7) whose default action ends a process.
SIGNALS: Final = (
    *("SIGABRT", "SIGALRM", "SIGBUS", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGIO", "SIGKILL", "SIGPIPE", "SIGPROF"),
    *("SIGPWR", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGXCPU"),
    "SIGXFSZ",
)
#: Variables through which the harness and a driver find each other.
RESERVED_ENV: Final = ("HARNESS_EVENTS", "HARNESS_WORKLOAD", "HARNESS_TRIAL")
#: Longest arm name once quoted for the file system: `logs/0001-<name>.workload.json` must stay under 255 bytes.
MAX_QUOTED_NAME: Final = 120
MAX_PASSES: Final = 10_000


def _arm_name(name: str) -> str:
    if not name.strip() or name != name.strip() or not name.isprintable():
        return "an arm's name is printable text without blanks around it"
    if name in {".", ".."}:
        return "an arm's name names files, so it is neither . nor .."
    if len(quote(name, safe="")) > MAX_QUOTED_NAME:
        return f"an arm's name has at most {MAX_QUOTED_NAME} characters, percent-quoted for the file system"
    return ""


def _variable(name: str) -> str:
    if name in RESERVED_ENV:
        return f"`{name}` is set by the harness for every trial; take it out"
    return "" if name and "=" not in name else "a variable's name is not empty and holds no ="


def _label(name: str) -> str:
    return "" if name.isprintable() and len(name) <= 80 and name == name.strip() else "up to 80 printable characters"


def _limit_name(name: str) -> str:
    if name in _MEANT_TRIAL:
        return f"`{name}` is no phase; did you mean `trial`, the limit of the whole trial?"
    known = (*PHASES, *OTHER_LIMITS)
    hint = near(name, known)
    if name not in known and hint.startswith("did you mean"):
        return f"no phase or limit `{name}`; {hint}"
    return ""


def _bound(text: str) -> str:
    return "" if re.fullmatch(r"(==|>=|<=|>|<)\s*[0-9]{1,15}", text.strip()) else 'a count, or a bound such as "> 0"'


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


def _counter_name(name: str) -> str:
    return "" if name in DISTURBANCE_COUNTERS else f"no counter `{name}`; {near(name, DISTURBANCE_COUNTERS)}"


class _CountOrBound:
    """A count, or a bound on one as text."""

    def read(self, node: Node, path: Path, reader: Reader) -> int | str | Invalid:
        """An int, or text such as `> 0`."""
        from harness.experiment.source import Scalar, Written

        if isinstance(node, Scalar) and node.written is not Written.TEXT:
            return Whole(0, 10**15).read(node, path, reader)
        return Text('a count, or a bound such as "> 0"', check=_bound).read(node, path, reader)

    def schema(self) -> dict[str, Any]:
        """An integer or a string."""
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^(==|>=|<=|>|<)\s*\d+$"}]}


class _Cores:
    """`32`, or `">= 32"`: at least so many."""

    def read(self, node: Node, path: Path, reader: Reader) -> int | Invalid:
        """The least number of cores."""
        from harness.experiment.source import Scalar, Written

        if isinstance(node, Scalar) and node.written is Written.TEXT:
            match = re.fullmatch(r">=\s*([0-9]{1,6})", node.text.strip())
            if match:
                return int(match.group(1))
            message = f'a least number of cores is wanted, 32 or ">= 32", and `{node.text}` is none'
            return reader.report(path, message, node.mark)
        return Whole(1, 10**6).read(node, path, reader)

    def schema(self) -> dict[str, Any]:
        """An integer or a string."""
        return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^>=\s*\d+$"}]}


class _Isa:
    """One instruction set or a list of them, as /proc/cpuinfo spells its flags."""

    def read(self, node: Node, path: Path, reader: Reader) -> list[str] | Invalid:
        """The names."""
        from harness.experiment.source import Scalar

        one = Text("an instruction set")
        if isinstance(node, Scalar):
            name = one.read(node, path, reader)
            return name if isinstance(name, Invalid) else [name]
        names = ListOf(one, least=1, what="a list of instruction sets", example="[amx_tile]").read(node, path, reader)
        return INVALID if isinstance(names, Invalid) or INVALID in names else names

    def schema(self) -> dict[str, Any]:
        """A string or an array of them."""
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


def _whole(low: int = 1, high: int = 10**7) -> Whole:
    return Whole(low, high)


@cache
def experiment() -> Record:
    """The whole file."""
    env = MapOf(Text("an environment variable's text", empty=True), what="variables", key=_variable)
    args = MapOf(Free(), what="engine arguments")
    counts = MapOf(_CountOrBound(), what="counts by name")
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
        ),
    )
    metric = Record(
        "a metric",
        (
            Key("name", Text("a name", check=_label), "Name of the metric event.", required=True),
            Key("unit", Text("a unit", check=_label), "Unit of the reported value, such as s or B.", required=True),
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
            Key("id", Text("a name", check=_label), "Short name, unique in the file.", required=True),
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
                        Key("isa", _Isa(), "Instruction sets the host must have, as /proc/cpuinfo names them."),
                        Key("cores", _Cores(), 'Least number of cores: 32 or `">= 32"`.'),
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
            Key("arms", MapOf(arm, what="a map of arms", key=_arm_name, least=1), "The arms.", required=True),
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
                    key=_counter_name,
                    by_key=_threshold,
                    names=DISTURBANCE_COUNTERS,
                ),
                "By counter, what a trial may suffer before it counts as disturbed.",
                default="recorded, never a failure",
            ),
            Key("repeat_passes", _whole(0, 1000), "Most repetitions of spoilt passes.", default="0", value=0),
            Key(
                "limits",
                MapOf(_SECONDS, what="limits", key=_limit_name, names=(*PHASES, *OTHER_LIMITS)),
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
