"""Start the sampler beside a trial, show its latest reading, and take its record when the trial is over."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import harness
from harness.meterlog import MeterLog, lost_log, parse_samples
from harness.run.cgroup import TrialCgroup
from harness.run.procfs import probe
from harness.run.sampler import LATEST
from harness.units import KIB

#: Without site-packages and environment the sampler starts in 40 ms; it finds this package by its path alone.
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from harness.run import sampler; sampler.main(sys.argv[1:])"
)
#: How long the sampler may take for its first and for its last reading. A busy host needs some of it.
_START_S: Final = 10.0
_STOP_S: Final = 20.0


class MeterError(Exception):
    """This host cannot measure memory, or the sampler did not start; the message says what to do."""


@dataclass(frozen=True)
class Latest:
    """The newest reading, for people to watch. `t`: CLOCK_MONOTONIC seconds; `rss_anon`: bytes over the tree.
    `processes`: in the tree; `unknown`: of those, without a reading. `samples`: so far.
    """

    t: float
    rss_anon: int
    processes: int
    unknown: int
    samples: int


class MeterHandle:
    """A running sampler. Call `stop` once, when the trial's processes are ended and reaped."""

    def __init__(
        self, sampler: subprocess.Popen[bytes], samples: IO[bytes], latest: IO[bytes], path: Path | None, backend: str
    ) -> None:
        self._sampler = sampler
        self._samples = samples
        self._latest = latest
        self._path = path
        self._backend = backend

    @property
    def pid(self) -> int:
        """The sampler's own process: never part of the trial."""
        return self._sampler.pid

    @property
    def alive(self) -> bool:
        """Whether it still samples; if it does not before `stop`, the trial's memory is lost (`meter_lost`)."""
        return self._sampler.poll() is None

    def latest(self) -> Latest | None:
        """The newest reading; None before the first."""
        data = os.pread(self._latest.fileno(), LATEST.size, 0)
        if len(data) < LATEST.size:
            return None
        t, total, processes, unknown, samples = LATEST.unpack(data)
        return Latest(t / 1e9, total * KIB, processes, unknown, samples) if samples else None

    def stop(self) -> MeterLog:
        """End sampling and return all of it; the samples file is written, compressed. Never raises."""
        losses = self._end()
        with self._samples, self._latest:
            self._samples.seek(0)
            text = self._samples.read()
        log = parse_samples(text.decode(errors="replace").splitlines())
        if log.host.kernel == (0, 0):
            log = lost_log(self._backend, log.lost or "the sampler wrote nothing")
        losses += [log.lost] if log.lost else []
        written, problem = self._write(text)
        return replace(log, lost="; ".join(losses) or None, samples_path=written, unwritten=problem or "")

    def _end(self) -> list[str]:
        if self._sampler.poll() is not None:
            self._close_input()
            return [f"the sampler ended before the trial did (exit {self._sampler.returncode})"]
        self._close_input()
        try:
            self._sampler.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._sampler.kill()
            self._sampler.wait()
            return [f"the sampler did not end within {_STOP_S:.0f} s"]
        return []

    def _close_input(self) -> None:
        if self._sampler.stdin is not None:
            self._sampler.stdin.close()

    def _write(self, text: bytes) -> tuple[str | None, str | None]:
        """The samples compressed, by way of another name, so that a full disk leaves no half file."""
        if self._path is None:
            return None, None
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            part.write_bytes(gzip.compress(text, 6, mtime=0))
            part.replace(self._path)
        except OSError as error:
            part.unlink(missing_ok=True)
            return None, f"the samples could not be written to {self._path}: {error.strerror}"
        return str(self._path), None


def read_samples(path: Path) -> MeterLog:
    """The log of a compressed samples file. Raise `OSError` if it cannot be read."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        return replace(parse_samples(file), samples_path=str(path))


def start_meter(
    *,
    root_pid: int,
    session: int,
    token: str,
    events_path: Path,
    samples_path: Path | None,
    cgroup: TrialCgroup | None = None,
    backend_why: str = "",
    behind_launcher: bool = False,
    period: float = 0.02,
    serving_period: float = 0.05,
    kernel_events: bool = True,
    proc: str = "/proc",
) -> MeterHandle:
    """Start sampling the trial whose first process is `root_pid`; returns once the first reading is there.

    `behind_launcher`: that process is still the launcher, which execs the arm later: what it holds before is not the
    arm's. `period`, `serving_period`: seconds between samples until and after the end of the phase `load`.
    `samples_path`: where the compressed samples go at the end. Raise `MeterError` if this host cannot measure.
    """
    problems = probe(proc)
    if problems:
        raise MeterError("; ".join(problems))
    events_path.touch(exist_ok=True)
    backend = cgroup.backend if cgroup is not None else "none"
    samples = os.fdopen(os.memfd_create("harness-samples"), "w+b", buffering=0)
    latest = os.fdopen(os.memfd_create("harness-latest"), "w+b", buffering=0)
    config: dict[str, Any] = {
        "root": root_pid,
        "session": session,
        "token": token,
        "events_path": str(events_path.absolute()),  # the sampler's working directory is /
        "samples_fd": samples.fileno(),
        "latest_fd": latest.fileno(),
        "period": period,
        "serving_period": serving_period,
        "proc": proc,
        "kernel_events": kernel_events,
        "cgroup": cgroup.gauge_config() if cgroup is not None else None,
        "header": {
            "backend": backend,
            "backend_why": backend_why,
            "kernel": kernel_version(platform.release()),
            "cpus": os.cpu_count() or 1,
            "page": os.sysconf("SC_PAGE_SIZE"),
            "behind_launcher": behind_launcher,
        },
    }
    root = str(Path(harness.__file__).resolve().parent.parent)
    sampler = subprocess.Popen(
        [sys.executable, "-S", "-E", "-I", "-c", _PROGRAM, root, json.dumps(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        pass_fds=(samples.fileno(), latest.fileno()),
        start_new_session=True,
    )
    handle = MeterHandle(sampler, samples, latest, samples_path, backend)
    _await_first(handle, sampler)
    return handle


def _await_first(handle: MeterHandle, sampler: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while handle.latest() is None:
        if sampler.poll() is not None or time.monotonic() > until:
            sampler.kill()
            sampler.wait()
            told = sampler.stderr.read().decode(errors="replace").strip() if sampler.stderr else ""
            raise MeterError(f"the sampler did not start: {told.splitlines()[-1] if told else 'no reading in time'}")
        time.sleep(0.002)


def kernel_version(release: str) -> tuple[int, int]:
    """`"6.18.44-generic" -> (6, 18)`; (0, 0) if it cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
