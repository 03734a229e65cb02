"""What a run shows: a live line in a terminal, plain lines elsewhere, and never a fault of its own."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.plan import PlannedTrial
from harness.records import Failure, Reason, TrialRecord
from harness.run.progress import LiveProgress, PlainProgress, describe, outcome, progress_for, time_left
from harness.run.schedule import Task
from harness.run.trial_types import Now

if TYPE_CHECKING:
    import pytest

TASK = Task(planned=PlannedTrial(ordinal=3, arm="direct", pass_number=2, position=1), attempt=2)


def now(phase: str | None = None, memory_bytes: int | None = None, elapsed_s: float = 0.0) -> Now:
    """A moment of a trial."""
    return Now(phase=phase, memory_bytes=memory_bytes, elapsed_s=elapsed_s, log_bytes=0)


def record(arm: str, seconds: float, reason: Reason | None = None, *, expected: bool = False) -> TrialRecord:
    """A trial that took so long."""
    failure = Failure(reason=reason, evidence="no end within 30 s", phase="load") if reason else None
    return TrialRecord(
        trial=1, planned=1, arm=arm, pass_number=1, position=1, started_at="", began=5.0, ended=5.0 + seconds,
        failure=failure, expected=expected,
    )  # fmt: skip


def test_time_left_is_each_arms_median_and_the_others_for_an_arm_without_one() -> None:
    """Arm a took 10, 12 and 50 s, b 30 s; c is unknown and taken as their middle, 21 s; the interrupted counts not."""
    done = [record("a", 10), record("a", 50), record("a", 12), record("b", 30), record("b", 1, Reason.INTERRUPTED)]
    tasks = [
        Task(planned=PlannedTrial(ordinal=n, arm=arm, pass_number=1, position=1)) for n, arm in enumerate("abcc", 1)
    ]
    assert time_left(done, tasks) == 12 + 30 + 21 + 21
    assert time_left([], tasks) is None


def test_moments_and_outcomes_in_words() -> None:
    """Unknown memory is said to be unknown, and a declared failure is told from another."""
    assert describe(now()) == "starting, memory unknown yet, 0 s"
    assert describe(now(phase="load", memory_bytes=3 << 29, elapsed_s=75)) == "load, 1.50 GiB, 1 min 15 s"
    assert outcome(record("a", 2)).strip() == "a: ok in 2.00 s"
    assert outcome(record("a", 2, Reason.TIMEOUT)).strip() == "a: timeout in load: no end within 30 s"
    failed = outcome(record("a", 2, Reason.SIGNAL, expected=True)).strip()
    assert failed == "a: failed as expected, signal in load: no end within 30 s"


def test_a_pipe_gets_plain_lines_and_no_escape_codes() -> None:
    """Without a terminal every line is plain text."""
    stream = io.StringIO()
    progress = progress_for(stream)
    progress.began("r", 2)
    progress.trial_began(TASK, 1, 2, 90.0)
    progress.now(now(phase="load"))
    progress.trial_ended(record("direct", 3))
    progress.ended("finished: all")
    assert stream.getvalue() == (
        "run r: 2 trials to run\n[1/2] pass 2, arm direct (attempt 2), about 1 min 30 s left\n"
        "        direct: ok in 3.00 s\nfinished: all\n"
    )


def test_a_reader_that_went_away_is_no_fault() -> None:
    """Lines for a closed stream go nowhere and raise nothing."""
    stream = io.StringIO()
    progress = PlainProgress(stream)
    stream.close()
    progress.note("anybody?")
    progress.ended("no")


def test_a_terminal_gets_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal the open trial's phase and memory are drawn over and over; only outcomes stay."""
    monkeypatch.setenv("TERM", "xterm")
    main, side = pty.openpty()
    with os.fdopen(side, "w") as stream:
        progress = progress_for(stream)
        assert isinstance(progress, LiveProgress)
        progress.began("r", 1)
        progress.trial_began(TASK, 1, 1, None)
        progress.now(now(phase="decode", memory_bytes=256 << 20, elapsed_s=1.0))
        progress.now(now(phase="too soon to draw", elapsed_s=1.1))
        progress.trial_ended(record("[bold]direct", 3))
        progress.ended("finished: all")
        stream.flush()
        drawn = b""
        while select.select([main], [], [], 0.2)[0]:
            drawn += os.read(main, 65536)
    os.close(main)
    text = drawn.decode()
    assert "pass 2, arm direct (attempt 2)" in text
    assert "decode, 256.0 MiB" in text
    assert "too soon" not in text
    assert "[bold]direct: ok in 3.00 s" in text
    assert text.rstrip().endswith("finished: all")


def test_rich_loads_only_for_a_terminal() -> None:
    """Running without a terminal, and all of the runner, imports no rich."""
    root = Path(__file__).resolve().parent.parent
    code = (
        "import io, sys\nimport harness.run.runner\nfrom harness.run.progress import progress_for\n"
        "progress_for(io.StringIO()).note('x')\n"
        "sys.exit(sorted({'rich', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_evidence_of_several_lines_is_cut_to_its_first() -> None:
    """One trial, one line: more than the first line of an evidence stands in the record and the report alone."""
    failed = record("a", 2, Reason.CONFIG_REJECTED)
    assert failed.failure is not None
    long = replace(failed, failure=replace(failed.failure, evidence="ValidationError: 1 error\nValue error\n"))
    assert outcome(long).strip() == "a: config_rejected in load: ValidationError: 1 error ..."
