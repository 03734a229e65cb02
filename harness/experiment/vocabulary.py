"""Words that an experiment file may use, and what its names must be. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from harness import metrics
from harness.experiment.problems import near

#: Drivers that an experiment may name.
ENGINES: Final = ("vllm", "llama_cpp", "command")
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
#: Counters that `disturbance` may bound: what the host did to a trial, each defined in the registry.
DISTURBANCE_COUNTERS: Final = tuple(metrics.DISTURBANCE_COUNTERS)
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


def arm_name(name: str) -> str:
    """What is wrong with an arm's name, or the empty text; so do all checks here."""
    if not name.strip() or name != name.strip() or not name.isprintable():
        return "an arm's name is printable text without blanks around it"
    if name in {".", ".."}:
        return "an arm's name names files, so it is neither . nor .."
    if len(quote(name, safe="")) > MAX_QUOTED_NAME:
        return f"an arm's name has at most {MAX_QUOTED_NAME} characters, percent-quoted for the file system"
    return ""


def variable(name: str) -> str:
    """An environment variable's name."""
    if name in RESERVED_ENV:
        return f"`{name}` is set by the harness for every trial; take it out"
    return "" if name and "=" not in name else "a variable's name is not empty and holds no ="


def label(name: str) -> str:
    """A short text that stands in tables."""
    return "" if name.isprintable() and len(name) <= 80 and name == name.strip() else "up to 80 printable characters"


def limit_name(name: str) -> str:
    """A key of `limits`: a phase, or one of the limits that are none."""
    if name in _MEANT_TRIAL:
        return f"`{name}` is no phase; did you mean `trial`, the limit of the whole trial?"
    known = (*PHASES, *OTHER_LIMITS)
    hint = near(name, known)
    if name not in known and hint.startswith("did you mean"):
        return f"no phase or limit `{name}`; {hint}"
    return ""


def bound(text: str) -> str:
    """A count, or a comparison with one."""
    return "" if re.fullmatch(r"(==|>=|<=|>|<)\s*[0-9]{1,15}", text.strip()) else 'a count, or a bound such as "> 0"'


def counter_name(name: str) -> str:
    """A counter of `disturbance`."""
    return "" if name in DISTURBANCE_COUNTERS else f"no counter `{name}`; {near(name, DISTURBANCE_COUNTERS)}"
