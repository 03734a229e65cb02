"""One attempt at a planned trial: measured, and made a record whatever happens."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from harness.records import Failure, Reason, TrialRecord
from harness.run.clock import Clock, stamp
from harness.run.files import STORAGE, StoreError
from harness.run.instruments import Instruments, Request, Result, Trial
from harness.run.progress import Moment, Progress
from harness.run.stop import StopFlag
from harness.run.writer import RunWriter


@dataclass(frozen=True)
class Surroundings:
    """What every attempt of a run shares."""

    writer: RunWriter
    progress: Progress
    stop: StopFlag
    clock: Clock

    def watch(self, moment: Moment) -> None:
        """Show a moment. Showing is not measuring: a terminal that breaks costs no trial."""
        with suppress(Exception):
            self.progress.now(moment)


def measure(trial: Trial, instruments: Instruments[Request, Result], around: Surroundings) -> TrialRecord:
    """The trial's record, whatever happens; only what makes storing impossible is raised, as `StoreError`."""
    began, started_at = around.clock.monotonic(), stamp(around.clock.utc())
    try:
        request = instruments.prepare(trial)
        with _released(lambda: instruments.release(request), around.progress):
            difference = instruments.counters()
            result = instruments.run(request, around.stop, around.watch)
            return instruments.evaluate(trial, result, difference(result))
    except StoreError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in STORAGE:
            raise StoreError.of(error, "store a trial's files in", around.writer.folder.path) from error
        record = spoiled(trial, describe_fault(error), began, started_at, around)
        return replace(record, notes=tuple(instruments.sweep()))


@contextmanager
def _released(release: Callable[[], None], progress: Progress) -> Iterator[None]:
    """Release afterwards, whatever happened; a release that fails is told, and spoils no trial that ended well."""
    try:
        yield
    finally:
        try:
            release()
        except Exception as error:  # noqa: BLE001 - see above
            progress.note(f"cleaning up after a trial failed: {describe_fault(error)}")


def store(trial: Trial, record: TrialRecord, around: Surroundings) -> TrialRecord:
    """Append the record under the trial's own numbers, whatever those who filled it in thought they were."""
    note = trial.task.note
    numbered = replace(record, **_numbers(trial), notes=record.notes + ((note,) if note else ()))
    try:
        return around.writer.append(numbered)
    except ValueError as error:  # NaN in a driver's facts, say: strict JSON has no word for it
        evidence = f"the trial's record cannot be stored: {error}"
        return around.writer.append(spoiled(trial, evidence, record.began, record.started_at, around))


def spoiled(trial: Trial, evidence: str, began: float, started_at: str, around: Surroundings) -> TrialRecord:
    """The record of a trial that the harness itself spoiled."""
    log = around.writer.folder.relative(trial.paths.log)
    failure = Failure(reason=Reason.HARNESS_ERROR, evidence=evidence, log=log)
    ended = around.clock.monotonic()
    return TrialRecord(**_numbers(trial), started_at=started_at, began=began, ended=ended, failure=failure)


def _numbers(trial: Trial) -> dict[str, Any]:
    """Where a record belongs."""
    planned = trial.task.planned
    return {
        "trial": trial.number,
        "planned": planned.ordinal,
        "arm": planned.arm,
        "pass_number": planned.pass_number,
        "position": planned.position,
        "attempt": trial.task.attempt,
        "priming": trial.task.priming,
        "probe_limit_bytes": trial.task.limit,
        "survival": trial.survival,
        "scoring": planned.scoring,
    }


def describe_fault(error: BaseException) -> str:
    """`ValueError: message (prepare.py:12 in build)`: the innermost frame says where to look."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
