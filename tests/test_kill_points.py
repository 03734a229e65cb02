"""Kill the harness anywhere: every trial that was complete survives, and a resumed run ends like an undisturbed one.

What is on disk changes only at a system call, so the points are system calls of a real run on the real store (before
it, after it, or in the middle of what it writes), reached in a forked process that ends itself with SIGKILL there.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.plan import Plan
from harness.records import Failure, Reason, TrialRecord
from harness.run.decision import Decision, GoOn, MorePasses, RepeatPass
from harness.run.instruments import Trial
from harness.run.runner import End, run_experiment
from harness.run.stop import StopFlag
from harness.run.store import RunFolder
from harness.run.writer import RunWriter
from harness.testing.fakes import (
    CapturedProgress,
    FakeCaches,
    FakeTrials,
    Outcome,
    by_place,
    fake_experiment,
    fake_plan,
)

#: How many runs are killed. Each takes some 20 ms here, so the default does not need to be small.
POINTS = 1000 if os.environ.get("HARNESS_SLOW") else 200
#: Calls that change what is on disk.
CALLS = ("write", "fsync", "ftruncate", "open", "rename", "mkdir", "unlink")

EXPERIMENT = fake_experiment("a", "b b", passes=2, priming=1)


def more(records: Sequence[TrialRecord], plan: Plan) -> Decision:
    """Repeat pass 2 once, since its first round is disturbed; then add pass 3."""
    rounds_of_2 = [one for one in records if one.arm == "a" and one.pass_number == 2 and one.usable]
    passes = {one.pass_number for one in records}
    if 2 in passes and len(rounds_of_2) < 2:
        return RepeatPass(2, "disturbed")
    if 2 in passes and 3 not in passes:
        added = fake_plan(fake_experiment("a", "b b", passes=1), first_pass=3, first_ordinal=len(plan.trials) + 1)
        return MorePasses(added.trials, "too wide")
    return GoOn()


def run_or_resume(results: Path, tell: Callable[[], None] = lambda: None) -> End:
    """What `harness run` does: go on with the run that is there, or start one. `tell`: called for each trial stored."""
    trials, progress = FakeTrials(), CapturedProgress()
    started = sorted(path.parent for path in results.glob("*/*/plan.json"))
    if started:
        folder = RunFolder.open(str(started[-1]), results)
    else:
        moment = trials.clock.utc()
        folder = RunFolder.create(results, EXPERIMENT, fake_plan(EXPERIMENT), host={}, versions={}, moment=moment)
    head = folder.head()

    def behave(trial: Trial) -> Outcome:
        first = not any(one.arm == "b b" and one.pass_number == 2 for one in folder.records().records)
        disturbed = first and trial.arm.name == "b b" and trial.task.planned.pass_number == 2
        return Failure(reason=Reason.DISTURBED, evidence="steal") if disturbed else by_place(trial)

    trials.behave = behave
    progress.trial_ended = lambda record: tell()  # type: ignore[method-assign] # noqa: ARG005 - only that it is stored
    with RunWriter(folder) as writer:
        return run_experiment(
            head.experiment, head.plan, writer, instruments=trials.instruments(), caches=FakeCaches(),
            progress=progress, stop=StopFlag(), more=more, clock=trials.clock,
        ).end  # fmt: skip


class Killer:
    """Counts the calls that change the disk, and ends this process at one of them."""

    def __init__(self, at: int, share: float) -> None:
        self.at, self.share, self.calls = at, share, 0
        self.real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}

    def arm(self) -> None:
        """Put itself between this process and the disk."""
        for name in CALLS:
            setattr(os, name, self._watched(name))

    def _watched(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                self._half(name, arguments, named)
                os.kill(os.getpid(), signal.SIGKILL)
            return self.real[name](*arguments, **named)

        return call

    def _half(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Do part of the call: of a write its first bytes, of any other all or nothing."""
        if name == "write":
            descriptor, data = arguments
            self.real[name](descriptor, bytes(data)[: int(len(data) * self.share)])
        elif self.share > 0.5:
            self.real[name](*arguments, **named)


def killed_at(results: Path, at: int, share: float) -> tuple[bool, int]:
    """Run in a fork that is killed at its call number `at`. Returns whether it was, and how many trials it stored."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(results, Killer(at, share), tell)
    os.close(tell)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(told, "rb") as stream:
        stored = len(stream.read())
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, status
    return os.WIFSIGNALED(status), stored


def _child(results: Path, killer: Killer, tell: int) -> NoReturn:
    code = 1
    try:
        killer.arm()
        run_or_resume(results, lambda: killer.real["write"](tell, b"."))
        code = 0
    finally:
        os._exit(code)


def stored_in(results: Path) -> tuple[TrialRecord, ...]:
    """Every record that can be read, of a run that may not even have been made; nothing in it may be damaged."""
    for plan in results.glob("*/*/plan.json"):
        recorded = RunFolder(plan.parent).records()
        assert not recorded.damaged, recorded.notes
        return recorded.records
    return ()


def judged(results: Path) -> dict[tuple[str, int], float]:
    """The latest usable value of each arm and pass."""
    return {(r.arm, r.pass_number): r.values["score"].value for r in stored_in(results) if r.usable and not r.priming}


def rounds(results: Path) -> list[tuple[str, int, bool]]:
    """Arm, pass and usability of each trial, in order, without the numbers that a kill may raise."""
    return [(one.arm, one.pass_number, one.usable) for one in stored_in(results)]


@pytest.mark.skipif(threading.active_count() > 1, reason="a fork needs a process with one thread")
def test_case_04_killed_at_random_points_nothing_complete_is_lost(tmp_path: Path) -> None:
    """Killed at random points, and again while resuming: no stored trial is lost or changed, the resumed run finishes,
    and its trials, its decisions and the values to be judged are those of an undisturbed run.
    """
    calls = Killer(0, 0)
    quiet = tmp_path / "quiet"
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, calls._watched(name))
        assert run_or_resume(quiet) == End.FINISHED
    assert len(judged(quiet)) == 6
    assert len(rounds(quiet)) == 2 + 4 + 2 + 2

    chance, kills = random.Random(20261201), 0
    for point in range(POINTS):
        results, before = tmp_path / f"{point}", tuple[TrialRecord, ...]()
        for _ in range(chance.choice((1, 1, 2, 5))):
            killed, stored = killed_at(results, chance.randint(1, calls.calls), chance.random())
            now = stored_in(results)
            assert now[: len(before)] == before, "a record of before is gone or changed"
            assert len(before) + stored <= len(now) <= len(before) + stored + 1
            before, kills = now, kills + killed
        assert run_or_resume(results) == End.FINISHED
        assert stored_in(results)[: len(before)] == before
        assert judged(results) == judged(quiet)
        assert rounds(results) == rounds(quiet)
        assert not [half for plan in results.glob("*/*/plan.json") for half in plan.parent.glob(".*")]
    assert kills > POINTS // 2
