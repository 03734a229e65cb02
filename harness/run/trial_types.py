"""What a trial is asked and what it answers, and what it must know of a stop flag and a meter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from harness.events import Events
from harness.experiment.types import Arm, Limits
from harness.plan import PlannedTrial
from harness.records import TrialRecord
from harness.run import process_tree
from harness.run.environment import Environment
from harness.run.reaper import Cgroup
from harness.run.spawn import LOG_HEAD, LOG_TAIL, LogEnd

#: Seconds that other processes of an arm may run on after its own has ended. An engine's front-end that exits leaves
#: its engine processes up to 3 s to notice.
ORPHAN_GRACE_S: Final = 5.0


class Stop(Protocol):
    """The run was asked to stop: see `harness.run.stop.StopFlag`."""

    @property
    def requested(self) -> bool:
        """Somebody asked to stop."""

    @property
    def urgent(self) -> bool:
        """Somebody asked twice: no grace."""

    @property
    def name(self) -> str:
        """Signal that asked first."""

    def fileno(self) -> int:
        """Readable once a stop was requested."""


class Reading(Protocol):
    """A meter's newest reading."""

    @property
    def rss_anon(self) -> int:
        """Sum of RssAnon over the tree, bytes."""


class MeterRecord(Protocol):
    """What a meter recorded, as far as a trial must know: see `harness.meterlog.MeterLog`."""

    @property
    def lost(self) -> str | None:
        """Why the record is incomplete, None if it is whole."""

    def with_max_rss(self, max_rss: Mapping[int, int]) -> MeterRecord:
        """The record with ru_maxrss (bytes, by pid) of what was reaped."""


class MeterHandle(Protocol):
    """A running meter: see `harness.run.memory_meter.MeterHandle`."""

    def latest(self) -> Reading | None:
        """The newest reading, None before the first. For the live line."""

    def stop(self) -> MeterRecord:
        """Stop sampling and give what was recorded. Called when the arm's processes are gone."""


class StartMeter(Protocol):
    """Starts a meter: `harness.run.memory_meter.start_meter`, or a fake."""

    def __call__(
        self,
        *,
        root_pid: int,
        session: int,
        token: str,
        events_path: Path,
        samples_path: Path,
        cgroup: Any,
        behind_launcher: bool,
    ) -> MeterHandle:
        """Sample the tree of `root_pid`, which waits for its exec until this returns."""


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """All that one trial needs.

    `run`: the run's id. `trial`: ordinal in the run. `argv`, `environment`, `cwd`: the arm's program. `log`, `events`,
    `workload_file`, `samples`: files of this trial, none of which may exist yet; `log_name`: the log's path within the
    run's folder, as it stands in records. `workload`: content of the workload file. `start_meter`: None for a trial
    without one. `owner_dir`: where owner files stand (default: the harness's cache).
    """

    run: str
    trial: int
    planned: PlannedTrial
    arm: Arm
    argv: tuple[str, ...]
    environment: Environment
    cwd: Path
    log: Path
    events: Path
    workload_file: Path
    samples: Path
    log_name: str
    token: str
    workload: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    attempt: int = 1
    cgroup: Cgroup | None = None
    start_meter: StartMeter | None = None
    owner_dir: Path | None = None
    rlimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    orphan_grace_s: float = ORPHAN_GRACE_S
    kill_grace_s: float = process_tree.KILL_GRACE_S
    log_head: int = LOG_HEAD
    log_tail: int = LOG_TAIL


@dataclass(frozen=True, kw_only=True)
class Now:
    """A running trial at one moment, for the live line. `memory_bytes`: sum of RssAnon as last sampled."""

    elapsed_s: float
    phase: str | None
    memory_bytes: int | None
    log_bytes: int


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What came of a trial. `record`: without values, memory and digest. `log`: what became of the log; its `error`
    tells a full disk, which the arm was not made to feel. `survivors`: processes that could not be ended. `cpu_s`: CPU
    seconds of the arm's processes as far as they were seen. `token`: the trial's.
    """

    record: TrialRecord
    events: Events
    meter: Any | None
    log: LogEnd | None
    survivors: tuple[str, ...] = ()
    cpu_s: float | None = None
    token: str = ""
