"""One trial, from spawn to reaped: start the arm, watch it, bound it, end all of it, say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from harness.events import Events, parse
from harness.records import Failure, ProcessEnd, TrialRecord
from harness.run import ending, owners
from harness.run.ending import Facts
from harness.run.engine_errors import root_exception
from harness.run.files import STORAGE, StoreError
from harness.run.kernel_log import KernelLog
from harness.run.process_tree import Identity
from harness.run.reaper import Reaper
from harness.run.spawn import HarnessFault, Launch, LogEnd, LogKeeper, NotStarted
from harness.run.trial_types import MeterHandle, MeterRecord, Now, Stop, TrialRequest, TrialResult
from harness.run.watch import EventTail, Overrun, Watch

#: Seconds between two moments at which the limits are judged. The arm's own exit wakes the loop at once.
TICK_S: Final = 0.05
#: Seconds between two calls of `watch`.
_SHOW_S: Final = 0.25
#: Process ends kept in a record: all that ended badly first. 200 children a second would make a record of megabytes.
_ENDS_KEPT: Final = 256


def run_trial(request: TrialRequest, *, stop: Stop, watch: Callable[[Now], None]) -> TrialResult:
    """Run one trial to its end. Never raises for anything that an arm does; nothing of the arm runs on afterwards.
    Raise `StoreError` if the results take no files, before anything was started.
    """
    trial = _Trial(request, stop, watch)
    with contextlib.ExitStack() as stack:
        stack.callback(trial.close)
        trial.attempt(trial.open)
        trial.attempt(trial.launch)
        trial.attempt(trial.follow)
        trial.attempt(trial.end)
        trial.attempt(trial.collect)
        return trial.result()


class _Trial:
    """The state of one trial while it runs; each public method is one station."""

    def __init__(self, request: TrialRequest, stop: Stop, watch: Callable[[Now], None]) -> None:
        self.request, self.stop, self.show = request, stop, watch
        self.began = self.created = time.monotonic()
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.fault: str | None = None
        self.refusal: str | None = None
        self.interrupted: str | None = None
        self.overrun: Overrun | None = None
        self.leftovers: tuple[str, ...] = ()
        self.survivors: tuple[str, ...] = ()
        self.phase: str | None = None
        self.meter: MeterHandle | None = None
        self.meter_record: MeterRecord | None = None
        self.meter_lost: str | None = None
        self.memory_bytes: int | None = None
        self.kernel = KernelLog()
        self.reaper: Reaper | None = None
        self.keeper: LogKeeper | None = None
        self.tail: EventTail | None = None
        self.owner_file: Path | None = None
        self.log: LogEnd | None = None
        self.events = Events()
        self.stream_fault: str | None = None
        self.ends: tuple[ProcessEnd, ...] = ()
        self.shown = 0.0

    def attempt(self, station: Callable[[], None]) -> None:
        """A fault of the harness ends the trial, never the run; the stations that clean up still run. Only results that
        take no more files end the run: every later trial would fail of the same, and be on record as answered.
        """
        try:
            station()
        except StoreError:
            raise
        except HarnessFault as fault:
            self.fault = self.fault or str(fault)
        except FileExistsError as error:
            self.fault = self.fault or f"{error.filename} exists already: a trial's files are new; move it away"
        except Exception as error:  # noqa: BLE001 - whatever it is, the arm's processes must be ended and the run go on
            self.fault = self.fault or f"{type(error).__name__}: {error}"

    def open(self) -> None:
        """Make the trial's files, each exclusively, and whoever watches over it. Raise `StoreError` where the results
        take none: nothing of the arm runs yet.
        """
        request = self.request
        try:
            self._make_files()
        except OSError as error:
            if error.errno in STORAGE:
                raise StoreError.of(error, "make a trial's files in", request.events.parent) from error
            raise
        self.tail = EventTail(request.events)
        folder = request.owner_dir or owners.state_dir()
        self.owner_file = owners.write_owner(request.token, run=request.run, log=request.log_name, folder=folder)
        self.reaper = Reaper(request.token, cgroup=request.cgroup)
        procs = list(request.cgroup.enter_paths)[:1] if request.cgroup else []
        self.keeper = LogKeeper(
            request.log,
            token=request.token,
            owner_file=self.owner_file,
            cgroup_procs=procs[0] if procs else None,
            strangers=self.reaper.tree.strangers,
            head=request.log_head,
            tail=request.log_tail,
        )

    def _make_files(self) -> None:
        request = self.request
        with request.workload_file.open("x", encoding="utf-8") as file:
            json.dump(request.workload, file, ensure_ascii=False, allow_nan=False, indent=1)
        request.events.open("x").close()

    def launch(self) -> None:
        """Start the arm behind its meter."""
        if self.fault is not None or self.keeper is None or self.reaper is None:
            return
        request = self.request
        launch = Launch(
            argv=request.argv,
            env=request.environment.variables,
            cwd=str(request.cwd),
            log_fd=self.keeper.write_fd,
            cgroup=request.cgroup.enter_paths if request.cgroup else (),
            rlimits=request.rlimits,
        )
        try:
            prepared = launch.prepared()
            if isinstance(prepared, NotStarted):
                self._refuse(prepared)
                return
            self.keeper.arm(prepared)
            self._start_meter(prepared)
            self.reaper.exclude_children()
            self.reaper.start(prepared)
            began = launch.go()
            if isinstance(began, NotStarted):
                self._refuse(began)
            else:
                self.began = began
        finally:
            launch.close()

    def _refuse(self, refusal: NotStarted) -> None:
        sentence = refusal.sentence(self.request.argv, str(self.request.cwd))
        if refusal.step in ("exec", "cwd", "fork", "limits"):
            self.refusal = sentence
        else:
            self.fault = sentence

    def _start_meter(self, main: Identity) -> None:
        request = self.request
        if request.start_meter is None:
            return
        try:
            self.meter = request.start_meter(
                root_pid=main.pid,
                session=main.pid,
                token=request.token,
                events_path=request.events,
                samples_path=request.samples,
                cgroup=request.cgroup,
                behind_launcher=True,
            )
        except Exception as error:  # noqa: BLE001 - the arm runs on unmetered, so that its ending is known at least
            self.meter_lost = f"the meter did not start: {type(error).__name__}: {error}"

    def follow(self) -> None:
        """Watch until the tree has ended by itself or must be cut."""
        if self.fault or self.refusal or self.reaper is None or self.reaper.main is None or self.tail is None:
            return
        limits = Watch(self.request.limits, self.began)
        with _exit_of(self.reaper.main) as handle:
            while not self._over(limits):
                wake = [self.stop.fileno(), *([] if self.reaper.main_ended else handle)]
                select.select(wake, [], [], TICK_S)

    def _over(self, limits: Watch) -> bool:
        """Look once; true when the trial is over, with the cause noted."""
        reaper, keeper, tail = self.reaper, self.keeper, self.tail
        if reaper is None or keeper is None or tail is None:
            return True
        now = time.monotonic()
        reaper.look()
        tail.read(now)
        self.phase = tail.phase
        self._show(now, keeper.total)
        if self.stop.requested:
            self.interrupted = self.stop.name
        elif keeper.died:
            self.fault = "the keeper of the log ended early; see whether something kills processes on this host"
        elif reaper.main_ended and not (left := reaper.alive()):
            return True
        elif reaper.main_ended and now - (reaper.main_ended_at or now) > self.request.orphan_grace_s:
            self.leftovers = tuple(f"{identity.pid} ({name})" for identity, name in left.items())
        else:
            self.overrun = self._limit(limits, reaper, tail, keeper)
        return bool(self.interrupted or self.fault or self.leftovers or self.overrun)

    def _limit(self, limits: Watch, reaper: Reaper, tail: EventTail, keeper: LogKeeper) -> Overrun | None:
        """The limit that is passed now; a stall only after a fresh look at CPU time, which may be 1 s old."""

        def check() -> Overrun | None:
            log_bytes, crashed = keeper.total, reaper.crashed()
            return limits.check(
                time.monotonic(),
                tail=tail,
                log_bytes=log_bytes,
                cpu_s=reaper.cpu_s,
                crashed=crashed,
                ended=reaper.main_ended,
            )

        overrun = check()
        if overrun is not None and overrun.kind == "stall":
            reaper.look(now=True)
            overrun = check()
        return overrun

    def _show(self, now: float, log_bytes: int) -> None:
        if now - self.shown < _SHOW_S:
            return
        self.shown = now
        self._read_meter()
        self.show(
            Now(elapsed_s=now - self.began, phase=self.phase, memory_bytes=self.memory_bytes, log_bytes=log_bytes)
        )

    def _read_meter(self) -> None:
        reading = self.meter.latest() if self.meter is not None else None
        if reading is not None and reading.rss_anon:
            self.memory_bytes = reading.rss_anon

    def end(self) -> None:
        """End whatever is left of the arm, and prove that nothing is."""
        if self.reaper is None or self.reaper.main is None:
            return
        ended = self.reaper.end(self.request.kill_grace_s, hurry=lambda: self.stop.urgent)
        self.reaper.reap_rest()
        if ended.signalled and not (self.interrupted or self.fault or self.overrun or self.leftovers):
            self.leftovers = tuple(f"{identity.pid} ({name})" for identity, name in ended.signalled.items())
        self.survivors = tuple(f"{identity.pid} ({name})" for identity, name in ended.survivors.items())

    def collect(self) -> None:
        """Take in what the arm left: meter, log, events, exit statuses."""
        if self.meter is not None:
            self._stop_meter(self.meter)
        if self.keeper is not None:
            keeper, self.keeper = self.keeper, None
            self.log = keeper.finish()
        if self.tail is not None:
            self.events = parse(self.tail.content().decode("utf-8", "replace").split("\n"))
            self.stream_fault = self.tail.fault()
        if self.reaper is not None and self.refusal is None:
            self.ends = self.reaper.ends([fact for fact in self.events.facts if fact["event"] == "process"])

    def _stop_meter(self, meter: MeterHandle) -> None:
        try:
            self.meter_record = meter.stop()
            if self.reaper is not None:
                self.meter_record = self.meter_record.with_max_rss(self.reaper.max_rss)
        except Exception as error:  # noqa: BLE001 - a meter that fails costs its own record only
            self.meter_lost = f"the meter did not end well: {type(error).__name__}: {error}"
        else:
            self.meter_lost = self.meter_record.lost

    def result(self) -> TrialResult:
        """The record, as far as it can be made without judging values."""
        reaper, request, planned = self.reaper, self.request, self.request.planned
        facts = self._facts()
        ended = (reaper.main_ended_at if reaper else None) or time.monotonic()
        record = TrialRecord(
            trial=request.trial,
            planned=planned.ordinal,
            arm=request.arm.name,
            pass_number=planned.pass_number,
            position=planned.position,
            attempt=request.attempt,
            priming=planned.priming,
            scoring=planned.scoring,
            started_at=self.started_at,
            began=self.began,
            ended=ended,
            failure=self._complete(ending.classify(facts), ended),
            phases=self.events.phases,
            iterations=self.events.iterations,
            engagements=self.events.engagements,
            processes=_bounded(self.ends),
            caches=request.environment.caches,
            notes=(*ending.notes(facts), *self._notes()),
        )
        return TrialResult(
            record=record,
            events=self.events,
            meter=self.meter_record,
            log=self.log,
            survivors=self.survivors,
            token=request.token,
            cpu_s=reaper.cpu_s if reaper is not None else None,
        )

    def _facts(self) -> Facts:
        request, reaper = self.request, self.reaper
        main = next((end for end in self.ends if reaper and reaper.main and end.pid == reaper.main.pid), None)
        kills = request.cgroup.oom_kills() if request.cgroup else None
        return Facts(
            main=main,
            ends=self.ends,
            events=self.events,
            stream_fault=self.stream_fault,
            phase=self.events.open_phase or self.phase,
            spawn_error=self.refusal,
            overrun=self.overrun,
            interrupted=self.interrupted,
            harness_fault=self.fault,
            oom=self.kernel.evidence(self.ends, kills),
            leftovers=self.leftovers,
            leftover_grace_s=request.orphan_grace_s,
            survivors=self.survivors,
            root=root_exception(request.log, self.events),
            meter_lost=self.meter_lost,
        )

    def _complete(self, failure: Failure | None, ended: float) -> Failure | None:
        if failure is None:
            return None
        return replace(
            failure,
            wall_s=ended - self.began,
            last_memory_bytes=self.memory_bytes,
            log=self.request.log_name if self.request.log.exists() else None,
        )

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.request.environment.scrubbed:
            notes.append("not passed on to the arm: " + ", ".join(self.request.environment.scrubbed))
        if self.log is not None and self.log.dropped:
            notes.append(f"log: {self.log.dropped} of {self.log.total} bytes were dropped")
        if self.log is not None and self.log.error is not None:
            notes.append(f"log incomplete: {self.log.error}")
        if len(self.ends) > _ENDS_KEPT:
            notes.append(f"{len(self.ends)} processes ended; {_ENDS_KEPT} of them are listed")
        return tuple(notes)

    def close(self) -> None:
        """Give everything back. The owner file stays only if something of the arm does."""
        self.kernel.close()
        if self.keeper is not None:
            self.keeper.finish()
        if self.tail is not None:
            self.tail.close()
        if self.reaper is not None:
            self.reaper.close()
        if self.owner_file is not None and not self.survivors:
            self.owner_file.unlink(missing_ok=True)


@contextlib.contextmanager
def _exit_of(main: Identity) -> Iterator[list[int]]:
    """A descriptor that becomes readable when the process ends; none where the kernel has no such thing."""
    try:
        handle = os.pidfd_open(main.pid)
    except OSError:
        yield []
        return
    try:
        yield [handle]
    finally:
        os.close(handle)


def _bounded(ends: tuple[ProcessEnd, ...]) -> tuple[ProcessEnd, ...]:
    """All of them, or the worst first where there are too many; in the order of their start."""
    if len(ends) <= _ENDS_KEPT:
        return ends
    worst = sorted(range(len(ends)), key=lambda index: (ends[index].exit_code == 0, index))[:_ENDS_KEPT]
    return tuple(ends[index] for index in sorted(worst))
