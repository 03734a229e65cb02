from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trials

from harness.experiment.types import Limits
from harness.records import Reason
from harness.run import cgroup
from harness.run.keeper import Log
from harness.run.trial import run_trial
from harness.run.trial_types import Now, TrialResult
from harness.testing import fake_arm
from harness.testing.arms import ARMS, main


def _reason(result: TrialResult) -> Reason | None:
    return None if result.record.failure is None else result.record.failure.reason


def test_good_trial_is_recorded_whole(tmp_path: Path) -> None:
    """A good arm gives a record without failure, with its events, its one process and its log."""
    result = trials.run(tmp_path, fake_arm("ok", 0.3))
    assert result.record.failure is None
    assert result.events.done
    assert [each.value for each in result.events.reported] == [100.0]
    (end,) = result.record.processes
    assert (end.exit_code, end.source) == (0, "wait")
    assert 0.3 < result.record.ended - result.record.began < 3
    assert (tmp_path / "a.log").read_text() == "score: 100.0\n"
    assert result.record.caches == "cold"


def test_case_02_megabyte_of_output_after_ready_stalls_nobody(tmp_path: Path) -> None:
    """1 MB of output is all on disk, and the trial takes no longer for it."""
    silent = trials.run(tmp_path / "a", fake_arm("chatty", 0))
    loud = trials.run(tmp_path / "b", fake_arm("chatty", 1_000_000))
    took = [each.record.ended - each.record.began for each in (silent, loud)]
    assert took[1] < took[0] + 1.0
    assert loud.log is not None
    assert (tmp_path / "b" / "a.log").stat().st_size == loud.log.total > 990_000


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGTERM"], ["SIGINT", "SIGINT"]])
def test_case_03_interrupt_ends_the_arm_and_is_the_reason(tmp_path: Path, signals: list[str]) -> None:
    """A stop ends the trial within its grace, asked twice at once, as `interrupted` with the signal's name."""
    stop = trials.Flag()
    timers = [threading.Timer(0.5 + 0.1 * index, stop.request, [name]) for index, name in enumerate(signals)]
    for timer in timers:
        timer.start()
    began = time.monotonic()
    result = trials.run(tmp_path, fake_arm("stubborn"), stop=stop, kill_grace_s=3.0)
    assert time.monotonic() - began < (2.5 if len(signals) > 1 else 5.0)
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.INTERRUPTED
    assert signals[0] in result.record.failure.evidence


@pytest.mark.parametrize("stale", ["events.jsonl", "workload.json", "a.log"])
def test_case_09_file_of_an_earlier_trial_is_refused_before_anything_starts(tmp_path: Path, stale: str) -> None:
    """A file that exists already would answer for the new arm: the trial is refused, the file is left as it was."""
    asked = trials.request(tmp_path, fake_arm("ok", 0))
    (tmp_path / stale).write_text('{"event": "done"}\n')
    result = run_trial(asked, stop=trials.Flag(), watch=trials.nothing)
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.HARNESS_ERROR
    assert stale in result.record.failure.evidence
    assert (tmp_path / stale).read_text() == '{"event": "done"}\n'
    assert result.record.processes == ()


def test_case_20_output_reaches_the_log_byte_for_byte(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, NULs and split characters stand in the log as written, under any locale of the arm."""
    program = (
        "import os; os.write(1, bytes(range(256)) * 40); os.write(2, '\\u2588'.encode()[:2]); os.write(2, b'\\x88')"
    )
    trials.run(tmp_path, trials.python(program), env={"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert (tmp_path / "a.log").read_bytes() == bytes(range(256)) * 40 + "\u2588".encode()


def test_case_20_harness_under_the_c_locale_gives_the_same_result(tmp_path: Path) -> None:
    """Under LC_ALL=C without UTF-8 mode a harness runs an arm with such arguments and output to the same log."""
    program = (
        "import sys, trials\nfrom pathlib import Path\n"
        "write = \"import sys, os; os.write(1, os.fsencode(sys.argv[1]) + b'\\\\xff')\"\n"
        "argv = [sys.executable, '-c', write, sys.argv[2]]\n"
        "result = trials.run(Path(sys.argv[1]), argv)\nprint(result.record.failure.reason)"
    )
    import subprocess

    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    env["PYTHONPATH"] = f"{trials.ROOT}:{trials.ROOT / 'tests'}"
    argv = [sys.executable, "-c", program, str(tmp_path), "\u00e9\u2588"]
    done = subprocess.run(argv, env=env, capture_output=True, check=True)
    assert done.stdout.strip() == b"bad_output"
    assert (tmp_path / "a.log").read_bytes() == "\u00e9\u2588".encode() + b"\xff"


def test_case_21_paths_with_blanks_quotes_and_percent(tmp_path: Path) -> None:
    """Folders and arguments with blanks, quotes, percent signs and line ends arrive as they are."""
    folder = tmp_path / "my lab (int4) '100%'\n\""
    folder.mkdir()
    trials.run(folder, ["printf", "%s|", "a b", "c'd", 'e"f', "$HOME", "g\nh"])
    assert (folder / "a.log").read_bytes() == b"a b|c'd|e\"f|$HOME|g\nh|"


def test_case_22_endings_are_told_apart(tmp_path: Path) -> None:
    """A signal, the same through a shell, a bare exit code of 137 and an exit of 0 without `done` are four endings."""
    die = f"{sys.executable} -m harness.testing.arms die"
    found = {}
    for name, argv in {
        "direct": fake_arm("die", "SIGKILL"),
        "shell": trials.shell(f"{die} SIGKILL; exit $?"),
        "exec": trials.shell(f"exec {die} SIGILL"),
        "137": fake_arm("die", 137),
        "shell 132": trials.shell("exit 132"),
        "no done": fake_arm("error-without-metric"),
    }.items():
        failure = trials.run(tmp_path / name, argv).record.failure
        assert failure is not None
        found[name] = (str(failure.reason), failure.signal)
    assert found == {
        "direct": ("signal", "SIGKILL"),
        "shell": ("signal", "SIGKILL"),
        "exec": ("signal", "SIGILL"),
        "137": ("nonzero_exit", None),
        "shell 132": ("nonzero_exit", None),
        "no done": ("bad_output", None),
    }


def test_case_23_flood_is_bounded_on_disk_and_costs_no_memory(tmp_path: Path) -> None:
    """300 MB with a 50 MB line leave head, tail and the exact count of what was dropped; the harness does not grow."""
    largest = 0

    def look(_now: Now) -> None:
        nonlocal largest
        log = tmp_path / "a.log"
        largest = max(largest, log.stat().st_size if log.exists() else 0)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asked = trials.request(tmp_path, fake_arm("flood"))
    result = run_trial(asked, stop=trials.Flag(), watch=look)
    content = (tmp_path / "a.log").read_bytes()
    assert result.record.failure is None
    assert result.log is not None
    assert result.log.total >= 300_000_000
    note = b"\n[harness: %d bytes of output were dropped here]\n" % result.log.dropped
    assert len(content) == result.log.total - result.log.dropped + len(note)
    assert max(largest, len(content)) < 9 * 2**20
    assert content.startswith(b"first line of the log\n")
    assert content.endswith(b"\nlast line of the log\n")
    assert note in content
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 32 * 2**20


@pytest.mark.parametrize("block", [1, 7, 100, 1000])
def test_log_keeps_head_and_tail_exactly(tmp_path: Path, block: int) -> None:
    """Whatever the blocks it comes in, the log holds the first and the last bytes and says how many lie between."""
    data = bytes(index % 251 for index in range(1000))
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    log = Log(fd, head=100, tail=50)
    for start in range(0, len(data), block):
        log.add(data[start : start + block])
    assert log.finish() == {"bytes": 1000, "dropped": 850, "error": None}
    os.close(fd)
    note = b"\n[harness: 850 bytes of output were dropped here]\n"
    assert (tmp_path / "log").read_bytes() == data[:100] + note + data[-50:]


def test_log_that_fits_is_whole(tmp_path: Path) -> None:
    """Output no longer than head and tail together is kept whole, without a note."""
    data = bytes(index % 251 for index in range(150))
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    log = Log(fd, head=100, tail=50)
    log.add(data)
    assert log.finish() == {"bytes": 150, "dropped": 0, "error": None}
    os.close(fd)
    assert (tmp_path / "log").read_bytes() == data


def test_case_07_full_disk_under_the_log_is_named_and_never_raised() -> None:
    """A log that cannot be written is named with its cause, its bytes are counted, and reading goes on."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this host has no /dev/full")
    fd = os.open(full, os.O_WRONLY)
    log = Log(fd, head=100, tail=50)
    log.add(b"x" * 1000)
    log.add(b"y" * 1000)
    assert log.finish() == {"bytes": 2000, "dropped": 2000, "error": "No space left on device"}
    os.close(fd)


def test_case_07_file_size_limit_stops_the_log_and_not_the_trial(tmp_path: Path) -> None:
    """Under RLIMIT_FSIZE the log ends early with the cause in the record; values and exit status are the arm's own."""
    program = (
        "import resource, sys, trials\nfrom pathlib import Path\nfrom harness.testing import fake_arm\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "result = trials.run(Path(sys.argv[1]), fake_arm('flood', 20, 5))\n"
        "print(result.record.failure, result.log.error, len(result.events.reported))"
    )
    import subprocess

    env = os.environ | {"PYTHONPATH": f"{trials.ROOT}:{trials.ROOT / 'tests'}"}
    argv = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(argv, env=env, capture_output=True, check=True, text=True)
    assert done.stdout == "None File too large 1\n"
    assert (tmp_path / "a.log").stat().st_size <= 1 << 20


def test_case_31_peak_of_an_arm_does_not_start_at_the_harnesss(tmp_path: Path) -> None:
    """An arm started by a harness that holds 300 MB reports its own ru_maxrss, not the harness's."""
    held = bytearray(300_000_000)
    held[::4096] = b"x" * len(held[::4096])
    program = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    trials.run(tmp_path, [sys.executable, "-S", "-c", program])
    assert int((tmp_path / "a.log").read_text()) * 1024 < 60_000_000
    assert len(held) == 300_000_000


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/nonexistent/program"], "No such file or directory"),
        (["/etc/passwd"], "make it executable"),
        (["no-such-program-anywhere"], "PATH"),
        (["a\0b"], "embedded null"),
    ],
)
def test_program_that_cannot_start_is_spawn_error(tmp_path: Path, argv: list[str], words: str) -> None:
    """A missing, forbidden or impossible program is `spawn_error` with the system's reason, no exit code of 127."""
    result = trials.run(tmp_path, argv)
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.SPAWN_ERROR
    assert words in result.record.failure.evidence
    assert result.record.processes == ()


def test_file_that_is_no_program_is_spawn_error(tmp_path: Path) -> None:
    """An executable file without `#!` is refused by the kernel, and the message says what to add."""
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    result = trials.run(tmp_path, [str(script)])
    assert result.record.failure is not None
    assert "`#!` line" in result.record.failure.evidence


def test_missing_working_folder_is_spawn_error(tmp_path: Path) -> None:
    """A working folder that does not exist is named as such."""
    result = trials.run(tmp_path, fake_arm("ok", 0), cwd=tmp_path / "missing")
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.SPAWN_ERROR
    assert "working folder" in result.record.failure.evidence


def test_exit_code_127_of_the_arm_is_its_own(tmp_path: Path) -> None:
    """An arm that exits with 127 has a nonzero exit; it was started."""
    assert _reason(trials.run(tmp_path, trials.shell("exit 127"))) == Reason.NONZERO_EXIT


def test_phase_limit_bounds_one_phase(tmp_path: Path) -> None:
    """A phase that passes its own limit is a timeout that names the phase, while the trial's limit is far off."""
    result = trials.run(tmp_path, fake_arm("slow", "decode"), limits=Limits(trial=60, phases={"decode": 0.7}))
    assert result.record.failure is not None
    assert (result.record.failure.reason, result.record.failure.phase) == (Reason.TIMEOUT, "decode")
    assert result.record.failure.killed_by == "harness"


def test_busy_arm_is_not_stalled(tmp_path: Path) -> None:
    """An arm that computes without a word is no hang, though it is silent for longer than the stall limit."""
    busy = "import time\nuntil = time.monotonic() + 9\nwhile time.monotonic() < until: pass"
    assert _reason(trials.run(tmp_path, trials.python(busy), limits=Limits(stall=6))) == Reason.BAD_OUTPUT


def test_silent_idle_arm_is_a_hang(tmp_path: Path) -> None:
    """No event, no output and no CPU time for the stall limit is `hang`."""
    assert _reason(trials.run(tmp_path, fake_arm("silent"), limits=Limits(stall=1.0))) == Reason.HANG


def test_case_45_error_line_after_a_good_end_is_a_note_at_most(tmp_path: Path) -> None:
    """A log line about a dead engine is no failure where the arm said `done` and exited with 0."""
    assert _reason(trials.run(tmp_path, fake_arm("good-end-with-error"))) is None


def test_case_45_hang_after_done_is_a_hang(tmp_path: Path) -> None:
    """An arm that said `done` and does not exit is cut after the exit limit, as `hang`."""
    result = trials.run(tmp_path, fake_arm("good-end-with-error", "hang"), limits=Limits(exit=0.6))
    assert _reason(result) == Reason.HANG


def test_case_45_error_line_without_metric_fails(tmp_path: Path) -> None:
    """The same line and an exit code of 0 without `done` is a failure."""
    assert _reason(trials.run(tmp_path, fake_arm("error-without-metric"))) == Reason.BAD_OUTPUT


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("import", "ModuleNotFoundError", "No module named 'vllm'"), Reason.IMPORT_ERROR),
        (("load", "ValidationError", "Unknown quantization method: int5"), Reason.CONFIG_REJECTED),
        (("load", "RuntimeError", "shard 3 is truncated"), Reason.LOAD_ERROR),
        (("decode", "RuntimeError", "shapes do not fit"), Reason.NONZERO_EXIT),
    ],
)
def test_engines_exception_and_phase_give_the_reason(tmp_path: Path, args: tuple[str, ...], reason: Reason) -> None:
    """Where the engine's own exception struck tells refusal, failed import and failed load apart."""
    failure = trials.run(tmp_path, fake_arm("raises", *args)).record.failure
    assert failure is not None
    assert failure.reason == reason
    assert failure.root is not None
    assert (failure.root.exception, failure.root.message) == args[1:]
    assert (failure.phase, failure.log) == (args[0], "logs/a.log")
    assert failure.wall_s is not None


@dataclass(frozen=True)
class _Meter:
    """A meter, its reading and its record in one."""

    lost: str | None = None
    rss_anon: int = 123456

    def latest(self) -> _Meter:
        return self

    def stop(self) -> _Meter:
        return self

    def with_max_rss(self, _max_rss: Mapping[int, int]) -> _Meter:
        return self


def test_last_memory_sample_stands_in_the_failure(tmp_path: Path) -> None:
    """A failure says what the tree held when it was last sampled."""
    result = trials.run(tmp_path, fake_arm("die", 3), start_meter=lambda **_: _Meter())
    assert result.record.failure is not None
    assert result.record.failure.last_memory_bytes == 123456


def test_meter_that_dies_fails_the_good_trial(tmp_path: Path) -> None:
    """A trial whose meter was lost is `meter_lost`, with the reason; a bad ending stands before it."""
    lost = _Meter("sampler died at t=3 s")
    good = trials.run(tmp_path / "a", fake_arm("ok", 0), start_meter=lambda **_: lost)
    bad = trials.run(tmp_path / "b", fake_arm("die", 3), start_meter=lambda **_: lost)
    assert good.record.failure is not None
    assert (good.record.failure.reason, good.record.failure.evidence) == (Reason.METER_LOST, "sampler died at t=3 s")
    assert _reason(bad) == Reason.NONZERO_EXIT


def test_meter_that_cannot_start_costs_the_trial_and_not_the_run(tmp_path: Path) -> None:
    """A meter that raises is `meter_lost`; the arm still ran to its end and nothing of it is left."""

    def broken(**_: Any) -> _Meter:
        raise RuntimeError("this host cannot measure RssAnon")

    result = trials.run(tmp_path, fake_arm("ok", 0), start_meter=broken)
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.METER_LOST
    assert "this host cannot measure RssAnon" in result.record.failure.evidence
    assert result.events.done


def test_fault_of_the_harness_ends_the_arm_and_is_recorded(tmp_path: Path) -> None:
    """An exception in the harness's own code during a trial is `harness_error`; the arm is ended all the same."""

    def broken(_now: Now) -> None:
        raise OSError(28, "No space left on device")

    asked = trials.request(tmp_path, fake_arm("silent"))
    result = run_trial(asked, stop=trials.Flag(), watch=broken)
    assert _reason(result) == Reason.HARNESS_ERROR
    assert trials.survivors(asked.token) == []


def test_keeper_that_is_killed_ends_the_trial_for_that_reason(tmp_path: Path) -> None:
    """Without its log keeper a trial is ended and blamed on the harness, not on the arm."""
    import signal

    def strike(_now: Now) -> None:
        for pid in trials.children():
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"keeper.py" in command:
                os.kill(pid, signal.SIGKILL)

    asked = trials.request(tmp_path, fake_arm("silent"))
    result = run_trial(asked, stop=trials.Flag(), watch=strike)
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.HARNESS_ERROR
    assert "keeper" in result.record.failure.evidence
    assert trials.survivors(asked.token) == []


def test_arm_inherits_nothing_but_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arm has three open files, default signals, its own session and exactly the environment of the request."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    seen = tmp_path / "seen.json"
    asked = trials.request(tmp_path, fake_arm("show", seen))
    result = run_trial(asked, stop=trials.Flag(), watch=trials.nothing)
    assert result.record.failure is None
    found = json.loads(seen.read_text())
    assert found["env"] == dict(asked.environment.variables)
    assert found["fds"][:3] == [0, 1, 2]
    assert len(found["fds"]) == 4  # the fourth lists the folder
    assert found["session"]
    assert found["ignored"] == ["SIGPIPE"]  # Python itself ignores it at its start
    assert any("OMP_NUM_THREADS" in note for note in result.record.notes)


def test_workload_file_holds_what_was_asked(tmp_path: Path) -> None:
    """The driver reads the resolved arm and workload from its file as strict JSON."""
    trials.run(tmp_path, trials.shell('cat "$HARNESS_WORKLOAD"'), workload={"workload": {"decode": {"new_tokens": 4}}})
    assert json.loads((tmp_path / "a.log").read_text()) == {"workload": {"decode": {"new_tokens": 4}}}


def test_torn_last_event_is_counted_and_hurts_nothing(tmp_path: Path) -> None:
    """An event cut in the middle is malformed; those before it stand."""
    program = 'printf \'{"event":"metric","name":"score","value":1}\\n{"event":"done"}\\n{"eve\' >> "$HARNESS_EVENTS"'
    result = trials.run(tmp_path, trials.shell(program))
    assert (result.record.failure, result.events.malformed, len(result.events.reported)) == (None, 1, 1)


def test_every_fake_arm_is_listed_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` names every fake arm with its story; an unknown name is refused with the list."""
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed and arm.__doc__ for name, arm in ARMS.items())
    assert main(["no-such-arm"]) == 2


def test_case_22_kill_by_the_memory_limit_is_out_of_memory(tmp_path: Path) -> None:
    """An arm that outgrows its cgroup's limit is `out_of_memory` on the cgroup's own count, not a mere SIGKILL."""
    backend = cgroup.probe()
    if backend.parent is None:
        pytest.skip(f"no memory cgroup here: {backend.why}")
    group = cgroup.create(backend, "test-oom", 64 * 2**20)
    try:
        failure = trials.run(tmp_path, fake_arm("spike", 50, 200, 30, 1), cgroup=group).record.failure
    finally:
        group.remove()
    assert failure is not None
    assert (failure.reason, failure.killed_by) == (Reason.OUT_OF_MEMORY, "kernel")
