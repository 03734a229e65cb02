"""The part of an experiment file that says what runs: engines, arms, what an arm declares. Pure."""

from __future__ import annotations

from harness.experiment.amounts import whole
from harness.experiment.kinds import Choice, Text
from harness.experiment.shapes import Free, Key, ListOf, MapOf, Record
from harness.experiment.special import CountOrBound
from harness.experiment.vocabulary import ENGINES, SIGNALS, variable

_ENV = MapOf(Text("an environment variable's text", empty=True), what="variables", key=variable)
_ARGS = MapOf(Free(), what="engine arguments")
_COUNTS = MapOf(CountOrBound(), what="counts by name")
_COMMAND = ListOf(
    Text("an argument", numbers=True, empty=True),
    least=1,
    what="a list of arguments",
    example='[python3, prog.py, "x"]',
)
PRIMING = whole(0, 100)
SAMPLER = Record("sampler", (Key("hz", whole(0, 200), "Memory samples a second; 0: no sampler.", required=True),))
_PYTHON = Text("a path")


def _reasons() -> tuple[str, ...]:
    from harness.records import Reason  # records imports this package's types

    return tuple(reason.value for reason in Reason)


def engine() -> Record:
    """Which engines, and what their arms share."""
    return Record(
        "engine",
        (
            Key("vllm", _vllm(), "vLLM, offline."),
            Key(
                "command",
                Record("engine command", (Key("env", _ENV, "Environment variables of all commands."),)),
                "Any program that speaks the event protocol.",
            ),
        ),
    )


def _vllm() -> Record:
    return Record(
        "engine vllm",
        (
            Key("args", _ARGS, "Engine arguments that all arms share; an arm's own replace them one by one."),
            Key("env", _ENV, "Environment variables that all arms share."),
            Key("python", _PYTHON, "Interpreter that has the engine.", default="the arms' own environment"),
        ),
    )


def arm() -> Record:
    """One arm: an engine, and what differs in it."""
    return Record(
        "an arm",
        (
            Key("engine", Choice("engine", lambda: ENGINES), "Which engine; needed if the file has several."),
            Key("command", _COMMAND, "Makes it a `command` arm: the program and its arguments, no shell."),
            Key("model", Text("a recipe or a path"), "The arm's own model.", default="the file's `model`"),
            Key("args", _ARGS, "Engine arguments; each replaces the shared one of its name."),
            Key("env", _ENV, "Environment variables; each replaces the shared one of its name."),
            Key("python", _PYTHON, "Interpreter that has the engine.", default="the engine's `python`"),
            Key("quantization", _ARGS, "Fields merged into the checkpoint's own quantization config."),
            Key("expect", expect(), "What the arm declares in advance.", default="the file's `expect`"),
            Key("priming", PRIMING, "Uncounted trials before the first pass.", default="the file's `priming`"),
            Key("sampler", SAMPLER, "How densely memory is sampled.", default="the file's `sampler`"),
        ),
    )


def expect() -> Record:
    """What an arm declares in advance."""
    return Record(
        "expect",
        (
            Key("engaged", Text("a name"), "Name that an engagement event of the arm must carry."),
            Key("modules", _COUNTS, 'How many modules of each kind that event must hold: a count, or `"> 0"`.'),
            Key("calls", _COUNTS, 'How many calls by each path that event must hold: a count, or `"> 0"`.'),
            Key("failure", Choice("failure reason", _reasons), "The arm is meant to fail so; met, it is a success."),
            Key("may_fail", Choice("failure reason", _reasons), "The arm may fail so or end well: both as expected."),
            Key("signal", Choice("signal", lambda: SIGNALS), "Which signal ends it; only with the reason `signal`."),
        ),
    )
