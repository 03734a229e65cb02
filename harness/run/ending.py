"""How a trial ended: facts in, one failure or none out. Pure.

Several things can be true of one bad ending; the first that holds in the order of `_RULES` is the reason, and the
evidence names it. docs/failures.md says what each reason does not mean.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from harness.events import Events, Phase
from harness.records import Failure, ProcessEnd, Reason, RootException
from harness.run.watch import Overrun

#: Signals that mean a fault in native code, wherever in the tree they strike.
CRASHES: Final = frozenset({"SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP"})
#: Phases in which an exception means that the engine never came up.
_STARTING: Final = frozenset({"import", "load", "compile"})
_IMPORT: Final = frozenset({"ImportError", "ModuleNotFoundError"})
_CONFIG: Final = frozenset({"ValidationError", "ArgumentError", "ConfigError", "ConfigurationError"})
_CONFIG_FRAME: Final = re.compile(r"(^|[/_])(config|configs|arg_utils|argparse|quantization/__init__)([/_.]|\.py)")
#: An exception that only tells of another process's death.
_SECOND_HAND: Final = re.compile(r"\b(died|dead|terminated|killed|initiali[sz]ation failed|exited)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a trial when all its processes are gone.

    `main`: end of the arm's own process. `ends`: of every process seen, `main` included. `overrun`: the limit whose
    passing made the harness cut the trial. `interrupted`: signal that stopped the run. `harness_fault`: what the
    harness could not do. `oom`: kernel or cgroup evidence of a kill for want of memory, as a sentence. `leftovers`:
    processes still there after the arm's own had ended and the grace was over. `survivors`: those not even SIGKILL
    ended. `stream_fault`: what became of the file of events. `phase`: open when the trial was cut or the arm ended.
    `meter_lost`: why the meter's record is incomplete.
    """

    main: ProcessEnd | None
    ends: Sequence[ProcessEnd] = ()
    events: Events = field(default_factory=Events)
    stream_fault: str | None = None
    phase: str | None = None
    spawn_error: str | None = None
    overrun: Overrun | None = None
    interrupted: str | None = None
    harness_fault: str | None = None
    oom: str | None = None
    leftovers: Sequence[str] = ()
    leftover_grace_s: float = 0.0
    survivors: Sequence[str] = ()
    root: RootException | None = None
    meter_lost: str | None = None

    @property
    def well(self) -> bool:
        """The arm said `done` and its own process exited with 0 by itself."""
        return self.main is not None and self.main.exit_code == 0 and self.events.done and self.overrun is None

    @property
    def signalled(self) -> tuple[ProcessEnd, ...]:
        """Processes that died by a signal that was not the harness's."""
        return tuple(end for end in self.ends if end.signal is not None and end.killed_by is None)


def classify(facts: Facts) -> Failure | None:
    """The failure of a trial, None if it ended well. Later gates (output, engagement, disturbance) are not judged."""
    found = next((failure for rule in _RULES if (failure := rule(facts)) is not None), None)
    if found is None:
        return None
    return replace(found, phase=found.phase or facts.phase, root=facts.root)


def notes(facts: Facts) -> tuple[str, ...]:
    """What a reader should know of an ending, whether it was good or bad."""
    found = []
    if facts.well and facts.root is not None:
        found.append(f"the log holds {facts.root.exception} though the arm ended well: {facts.root.message[:200]}")
    if facts.well:
        found += [f"{_who(end)} died by {end.signal} though the arm ended well" for end in facts.signalled]
    return tuple(found)


def _interrupted(facts: Facts) -> Failure | None:
    if facts.interrupted is None:
        return None
    return Failure(reason=Reason.INTERRUPTED, evidence=f"{facts.interrupted} stopped the run", killed_by="harness")


def _harness_error(facts: Facts) -> Failure | None:
    if facts.harness_fault is not None:
        return Failure(reason=Reason.HARNESS_ERROR, evidence=facts.harness_fault)
    if facts.survivors:
        names = ", ".join(facts.survivors)
        return Failure(reason=Reason.HARNESS_ERROR, evidence=f"SIGKILL did not end {names}; look at their state")
    return None


def _spawn_error(facts: Facts) -> Failure | None:
    return None if facts.spawn_error is None else Failure(reason=Reason.SPAWN_ERROR, evidence=facts.spawn_error)


def _out_of_memory(facts: Facts) -> Failure | None:
    if facts.oom is None:
        return None
    return Failure(reason=Reason.OUT_OF_MEMORY, evidence=facts.oom, killed_by="kernel", signal="SIGKILL")


def _signal(facts: Facts) -> Failure | None:
    end = _fatal_signal(facts)
    if end is None:
        return None
    own = facts.main is not None and end.pid == facts.main.pid
    who = "the arm's own process" if own else "child"
    evidence = f"signal {end.signal} ({who} pid {end.pid}, {end.name})"
    if not own and facts.main is not None:
        evidence += f"; the arm's own process {_how(facts.main)}"
    return Failure(reason=Reason.SIGNAL, evidence=evidence, signal=end.signal)


def _fatal_signal(facts: Facts) -> ProcessEnd | None:
    """The death that broke the trial, if a signal did; None where the signals seen were the arm's own housekeeping."""
    if facts.main is not None and facts.main in facts.signalled:
        return facts.main if facts.main.signal not in CRASHES else _first_crash(facts) or facts.main
    if facts.well:
        return None
    return _first_crash(facts) or _shell_told(facts) or _killed_child(facts)


def _first_crash(facts: Facts) -> ProcessEnd | None:
    """The main process's own crash first: it may have taken others along."""
    crashed = [end for end in facts.signalled if end.signal in CRASHES]
    return next((end for end in crashed if end == facts.main), crashed[0] if crashed else None)


def _shell_told(facts: Facts) -> ProcessEnd | None:
    """A shell's 128 + n counts only beside a process that was seen to die so: 137 alone is a number like any other."""
    code = facts.main.exit_code if facts.main is not None else None
    if code is None or code <= 128:
        return None
    return next((end for end in facts.signalled if _number(end.signal) == code - 128), None)


def _killed_child(facts: Facts) -> ProcessEnd | None:
    """A child killed by a stranger breaks its parent. One that fails by itself kills its children, too: then the
    engine's own exception tells the cause.
    """
    if facts.main is None or facts.main.exit_code in (None, 0):
        return None
    if facts.root is not None and not _SECOND_HAND.search(facts.root.message):
        return None
    return next((end for end in facts.signalled if end.signal == "SIGKILL"), None)


def _timeout(facts: Facts) -> Failure | None:
    if facts.overrun is None or facts.overrun.kind not in ("trial", "phase"):
        return None
    overrun = facts.overrun
    return Failure(reason=Reason.TIMEOUT, evidence=overrun.sentence, phase=overrun.phase, killed_by="harness")


def _hang(facts: Facts) -> Failure | None:
    if facts.overrun is None or facts.overrun.kind not in ("stall", "exit"):
        return None
    overrun = facts.overrun
    return Failure(reason=Reason.HANG, evidence=overrun.sentence, phase=overrun.phase, killed_by="harness")


def _engine_refused(facts: Facts) -> Failure | None:
    if facts.well or facts.root is None or (facts.main is not None and facts.main.exit_code == 0 and facts.events.done):
        return None
    reason = _engine_reason(facts.root, _phase_of(facts), stated=_stated(facts.events))
    if reason is None:
        return None
    return Failure(reason=reason, evidence=f"{facts.root.exception}: {facts.root.message}"[:1000])


def _phase_of(facts: Facts) -> str | None:
    """Where the engine failed: the phase open at the end, or the one that the engine's own error names."""
    said = next((str(error["phase"]) for error in facts.events.errors if error.get("phase")), None)
    return said or facts.phase


def _stated(events: Events) -> Reason | None:
    """A driver that knows which step it was in says so in its error event."""
    words = {reason.value: reason for reason in (Reason.CONFIG_REJECTED, Reason.IMPORT_ERROR, Reason.LOAD_ERROR)}
    for error in events.errors:
        for key in ("reason", "stage"):
            if error.get(key) in words:
                return words[str(error[key])]
    return None


def _engine_reason(root: RootException, phase: str | None, *, stated: Reason | None) -> Reason | None:
    name = root.exception.rsplit(".", 1)[-1]
    if stated is not None:
        return stated
    if phase is not None and phase not in _STARTING:
        return None
    if name in _IMPORT or phase == "import":
        return Reason.IMPORT_ERROR
    if name in _CONFIG or (phase is not None and root.frame and _CONFIG_FRAME.search(root.frame)):
        return Reason.CONFIG_REJECTED
    return Reason.LOAD_ERROR if phase is not None else None


def _nonzero_exit(facts: Facts) -> Failure | None:
    if facts.main is None or facts.main.exit_code in (None, 0) or facts.main.killed_by:
        return None
    said = " after it had said `done`" if facts.events.done else ""
    evidence = f"exit code {facts.main.exit_code}{said}"
    if facts.root is not None:
        evidence += f"; {facts.root.exception}: {facts.root.message[:300]}"
    return Failure(reason=Reason.NONZERO_EXIT, evidence=evidence)


def _orphan_left(facts: Facts) -> Failure | None:
    if not facts.leftovers:
        return None
    evidence = (
        f"{len(facts.leftovers)} process(es) still ran {facts.leftover_grace_s:g} s after the arm's own process had"
        f" ended, and were ended: {', '.join(facts.leftovers[:8])}"
    )
    return Failure(reason=Reason.ORPHAN_LEFT, evidence=evidence, killed_by="harness")


def _bad_output(facts: Facts) -> Failure | None:
    if facts.overrun is not None and facts.overrun.kind == "events":
        return Failure(reason=Reason.BAD_OUTPUT, evidence=facts.overrun.sentence, killed_by="harness")
    if facts.stream_fault is not None:
        return Failure(reason=Reason.BAD_OUTPUT, evidence=facts.stream_fault)
    if facts.events.done:
        return None
    how = _how(facts.main) if facts.main is not None else "ended"
    return Failure(reason=Reason.BAD_OUTPUT, evidence=f"no `done` event: the arm {how} without saying that it was done")


def _meter_lost(facts: Facts) -> Failure | None:
    return None if facts.meter_lost is None else Failure(reason=Reason.METER_LOST, evidence=facts.meter_lost)


_RULES: Final[tuple[Callable[[Facts], Failure | None], ...]] = (
    _interrupted,
    _harness_error,
    _spawn_error,
    _out_of_memory,
    _signal,
    _timeout,
    _hang,
    _engine_refused,
    _nonzero_exit,
    _orphan_left,
    _bad_output,
    _meter_lost,
)


def _who(end: ProcessEnd) -> str:
    return f"process {end.pid} ({end.name})"


def _how(end: ProcessEnd) -> str:
    if end.signal is not None:
        return f"died by {end.signal}" + (" of the harness" if end.killed_by else "")
    return f"exited with {end.exit_code}" if end.exit_code is not None else f"ended unseen ({end.unknown})"


def _number(name: str | None) -> int | None:
    return None if name is None or name not in signal.Signals.__members__ else signal.Signals[name].value


def phases_until(phases: Sequence[Phase], ended: float) -> str | None:
    """Name of the phase open at the end, None outside any; a phase that began after `ended` is not counted."""
    return next((phase.name for phase in reversed(phases) if phase.end is None and phase.begin <= ended), None)
