"""Prove the meter on this host: measure programs whose memory is known, on every back end that works here.

The trials are spawned as a trial is: a tiny launcher waits until it is in its cgroup and metered, then execs.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from harness.events import parse
from harness.measure.memory import memory_record
from harness.meterlog import MeterLog
from harness.records import PhaseMemory
from harness.run import cgroup
from harness.run.memory_meter import start_meter
from harness.run.procfs import members
from harness.run.spawn import Launch, NotStarted
from harness.testing import known
from harness.units import KIB, MIB, format_bytes

#: A known program ends within two seconds; this bounds one that does not.
_LONGEST_S: Final = 30.0
_PR_SET_CHILD_SUBREAPER: Final = 36
_FILE_BYTES: Final = 150 * MIB
#: Width that a bracket of a program in `known.NARROW` may have.
_WIDTH, _WIDTH_SHARE = 16 * MIB, 0.05


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One run of one program. Bytes; `upper` None with `why`."""

    truth: int
    lower: int | None
    upper: int | None
    why: str | None
    mark: int | None

    @property
    def bounded(self) -> bool:
        """Both ends are there."""
        return self.lower is not None and self.upper is not None

    @property
    def covered(self) -> bool:
        """The bracket holds the truth."""
        return self.lower is not None and self.upper is not None and self.lower <= self.truth <= self.upper

    @property
    def too_wide(self) -> bool:
        """Wider than the greater of 16 MiB and 5 % of the truth."""
        width = (self.upper or 0) - (self.lower or 0)
        return self.bounded and width > max(_WIDTH, _WIDTH_SHARE * self.truth)


class ProveError(Exception):
    """A known program did not do what it is known for; the message shows its output."""


def prove(
    repeats: int,
    *,
    names: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
    kernel_events: bool = True,
    progress: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """The JSON answer of `harness host --prove`: one entry a program and back end, and what the host offers."""
    offered = available(backends)
    programs = []
    with tempfile.TemporaryDirectory(prefix="harness-prove-") as folder:
        file = Path(folder, "mapped")
        file.write_bytes(os.urandom(MIB) * (_FILE_BYTES // MIB))  # written, so cached, outside any trial's cgroup
        for name in names or known.PROGRAMS:
            for backend in offered:
                shots = [shoot(name, backend, Path(folder), kernel_events=kernel_events) for _ in range(repeats)]
                entry = summary(name, backend.name, shots)
                programs.append(entry)
                progress(sentence(entry))
    return {
        "programs": programs,
        "backends": {backend.name: backend.why for backend in offered},
        "witness": witness(),
        "ok": all(good(entry) for entry in programs),
    }


def available(wanted: Sequence[str] | None = None) -> list[cgroup.Backend]:
    """Back ends that work here, `none` always."""
    found = [cgroup.probe(only=name) for name in ("cgroup_v2", "cgroup_v1") if wanted is None or name in wanted]
    works = [backend for backend in found if backend.name != "none"]
    return works + ([cgroup.NONE] if wanted is None or "none" in wanted else [])


def summary(name: str, backend: str, shots: Sequence[Shot]) -> dict[str, Any]:
    """What the runs of one program on one back end showed. `covered`, `not_bounded`, `too_wide` count runs."""
    bounded = [shot for shot in shots if shot.bounded]
    return {
        "name": name,
        "backend": backend,
        "quantity": known.PROGRAMS[name][0],
        "repeats": len(shots),
        "covered": sum(shot.covered for shot in shots),
        "not_bounded": len(shots) - len(bounded),
        "not_bounded_why": next((shot.why for shot in shots if not shot.bounded), None),
        "truth_bytes": int(median(shot.truth for shot in shots)),
        "lower": int(median(shot.lower or 0 for shot in shots)),
        "upper": int(median(shot.upper or 0 for shot in bounded)) if bounded else None,
        "widest": max((shot.upper or 0) - (shot.lower or 0) for shot in bounded) if bounded else None,
        "too_wide": sum(shot.too_wide for shot in shots) if name in known.NARROW else 0,
        "missed": [
            {"truth": shot.truth, "lower": shot.lower, "upper": shot.upper}
            for shot in bounded
            if not shot.covered
        ],
    }  # fmt: skip


def good(entry: dict[str, Any]) -> bool:
    """Every run either holds the truth or says that it cannot be bounded, and none is too wide."""
    return bool(entry["covered"] + entry["not_bounded"] == entry["repeats"] and not entry["too_wide"])


def sentence(entry: dict[str, Any]) -> str:
    """One line for people."""
    upper = "not bounded" if entry["upper"] is None else format_bytes(entry["upper"])
    truth = format_bytes(entry["truth_bytes"])
    return (
        f"{entry['name']:<16} {entry['backend']:<10} {entry['quantity']}  truth {truth:>10}"
        f"  bracket [{format_bytes(entry['lower'])}, {upper}]  covered {entry['covered']}/{entry['repeats']}"
        + (f", not bounded {entry['not_bounded']}: {entry['not_bounded_why']}" if entry["not_bounded"] else "")
    )


def shoot(name: str, backend: cgroup.Backend, folder: Path, *, kernel_events: bool = True) -> Shot:
    """Run one program once and compare."""
    events_path = folder / f"{name}.events.jsonl"
    events_path.write_bytes(b"")
    argv = [sys.executable, "-S", "-E", known.__file__, name]
    log, mark = measure(
        argv, backend, events_path, environment={"KNOWN_FILE": str(folder / "mapped")}, kernel_events=kernel_events
    )
    events = parse(events_path.read_text().splitlines())
    truth = next((fact for fact in events.facts if fact["event"] == "truth"), None)
    if truth is None:
        raise ProveError(f"{name} on {backend.name} stated no truth; run {' '.join(argv)} by hand to see why")
    phase = memory_record(log, events).phase(str(truth["phase"])) or PhaseMemory(phase="", samples=0)
    unique = truth["quantity"] == "U"
    return Shot(
        truth=int(truth["bytes"]),
        lower=phase.u_lower if unique else phase.s_lower,
        upper=phase.u_upper if unique else phase.s_upper,
        why=phase.u_upper_missing if unique else phase.s_upper_missing,
        mark=mark,
    )


def measure(
    argv: Sequence[str],
    backend: cgroup.Backend,
    events_path: Path,
    *,
    environment: dict[str, str] | None = None,
    kernel_events: bool = True,
) -> tuple[MeterLog, int | None]:
    """Run a program to the end of its last process, metered; the log and the cgroup's own mark over the whole run."""
    token = uuid.uuid4().hex
    _become_subreaper()
    group = cgroup.create(backend, token[:8]) if backend.parent is not None else None
    null = os.open(os.devnull, os.O_WRONLY)
    # The launcher of every trial: metering begins while the program is still on the way to its exec.
    launch = Launch(
        argv=argv,
        env={"HARNESS_TRIAL": token, "HARNESS_EVENTS": str(events_path), "PATH": os.defpath, **(environment or {})},
        cwd=str(events_path.parent),
        log_fd=null,
        cgroup=group.enter_paths if group is not None else (),
    )
    try:
        child = launch.prepared()
        if isinstance(child, NotStarted):
            raise ProveError(child.sentence(argv, str(events_path.parent)))
        meter = start_meter(
            root_pid=child.pid,
            session=child.pid,
            token=token,
            events_path=events_path,
            samples_path=None,
            cgroup=group,
            backend_why=backend.why,
            behind_launcher=True,
            kernel_events=kernel_events,
        )
        launch.go()
        reaped = _reap_all(child.pid, token)
        log = meter.stop().with_max_rss(reaped)
    finally:
        launch.close()
        os.close(null)
        mark = group.mark() if group is not None else None
        if group is not None:
            group.kill()
            group.remove()
    return log, mark


def _reap_all(root: int, token: str) -> dict[int, int]:
    """Wait for every process of the trial; ru_maxrss in bytes of those that were ours to reap."""
    until = time.monotonic() + _LONGEST_S
    reaped: dict[int, int] = {}
    while time.monotonic() < until:
        left = members(root, session=root, token=token)
        if not left:
            return reaped
        for pid, _ in left:
            with suppress(ChildProcessError):
                done, _, usage = os.wait4(pid, os.WNOHANG)
                if done:
                    reaped[pid] = usage.ru_maxrss * KIB
        time.sleep(0.01)
    for pid, _ in members(root, session=root, token=token):
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    raise ProveError(f"a known program did not end within {_LONGEST_S:.0f} s and was ended")


def _become_subreaper() -> None:
    """Orphans of a trial come to this process, as they come to the harness."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def witness() -> dict[str, Any]:
    """`/usr/bin/time -v` on the steady program beside its own truth: both count what the interpreter holds too."""
    program = shutil.which("time", path="/usr/bin:/bin")
    if program is None:
        return {"skipped": "no /usr/bin/time on this host; install the package `time`"}
    done = subprocess.run(
        [program, "-v", sys.executable, "-S", "-E", known.__file__, "steady"],
        capture_output=True, text=True, check=False, env={"PATH": os.defpath, "LC_ALL": "C"},
    )  # fmt: skip
    line = next((line for line in done.stderr.splitlines() if "Maximum resident" in line), "")
    truth = next((event for event in parse(done.stdout.splitlines()).facts if event["event"] == "truth"), None)
    if not line or truth is None:
        return {"skipped": f"{program} -v gave no maximum: it is not GNU time"}
    return {
        "program": "steady",
        "max_rss_bytes": int(line.rsplit(" ", 1)[1]) * KIB,
        "truth_bytes": truth["bytes"],
        "page_bytes": resource.getpagesize(),
    }
