from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import Events
from harness.records import Failure, ProcessEnd, Reason, RootException
from harness.run.ending import Facts, classify, notes
from harness.run.kernel_log import KernelLog
from harness.run.watch import CRASHED_STALL_S, EventTail, Overrun, Watch


def _end(pid: int = 1, **how: str | int) -> ProcessEnd:
    return ProcessEnd(pid=pid, start_ticks=pid, name=f"p{pid}", source="wait", **how)  # type: ignore[arg-type]


_OK = _end(exit_code=0)
_BAD = _end(exit_code=1)
_DONE = Events(done=True)
_GOOD = Facts(main=_OK, ends=(_OK,), events=_DONE)


def _reason(facts: Facts) -> str | None:
    failure = classify(facts)
    return None if failure is None else str(failure.reason)


def _failed(facts: Facts) -> Failure:
    failure = classify(facts)
    assert failure is not None
    return failure


#: One fact for each reason that an ending can have, in the order in which they win.
_LADDER = (
    ("interrupted", {"interrupted": "SIGINT"}),
    ("harness_error", {"harness_fault": "no space"}),
    ("spawn_error", {"spawn_error": "ENOENT"}),
    ("out_of_memory", {"oom": "oom_kill 1"}),
    ("signal", {"main": _end(signal="SIGSEGV"), "ends": (_end(signal="SIGSEGV"),)}),
    ("timeout", {"overrun": Overrun(kind="phase", sentence="too long", phase="decode")}),
    ("hang", {"overrun": Overrun(kind="stall", sentence="silence")}),
    ("load_error", {"main": _BAD, "phase": "load", "root": RootException(exception="RuntimeError", message="m")}),
    ("nonzero_exit", {"main": _BAD, "ends": (_BAD,)}),
    ("orphan_left", {"leftovers": ("7 (sleep)",)}),
    ("bad_output", {"events": Events()}),
    ("meter_lost", {"meter_lost": "sampler died"}),
)


@pytest.mark.parametrize("index", range(len(_LADDER)))
def test_reasons_win_in_the_stated_order(index: int) -> None:
    """Each reason is found when its fact holds, and stands before every reason below it."""
    name, facts = _LADDER[index]
    for _, lesser in _LADDER[index + 1 :]:
        both = replace(replace(_GOOD, **lesser), **facts)
        assert _reason(both) == name
    assert _LADDER[-1][0] == _reason(replace(_GOOD, meter_lost="sampler died"))


def test_good_ending_is_no_failure() -> None:
    """`done`, exit code 0, nothing left: no failure."""
    assert classify(_GOOD) is None


def test_case_22_137_is_a_number_unless_a_killed_process_was_seen() -> None:
    """A shell's 137 or 132 alone is `nonzero_exit`; beside a process seen to die of that signal it is `signal`."""
    shell = _end(exit_code=137)
    killed = _end(2, signal="SIGKILL")
    assert _reason(Facts(main=shell, ends=(shell,))) == "nonzero_exit"
    failure = _failed(Facts(main=shell, ends=(shell, killed)))
    assert (failure.reason, failure.signal) == (Reason.SIGNAL, "SIGKILL")
    terminated = _end(2, signal="SIGTERM")
    assert _reason(Facts(main=shell, ends=(shell, terminated))) == "nonzero_exit"


def test_case_22_sigkill_is_no_proof_of_want_of_memory() -> None:
    """SIGKILL alone is `signal`; `out_of_memory` needs the kernel's or the cgroup's word."""
    killed = _end(signal="SIGKILL")
    assert _reason(Facts(main=killed, ends=(killed,))) == "signal"
    assert _reason(Facts(main=killed, ends=(killed,), oom="the cgroup counts 1")) == "out_of_memory"


def test_case_22_words_in_a_message_are_no_evidence_of_want_of_memory() -> None:
    """An exception that speaks of memory, zoom or room is the engine's own failure."""
    root = RootException(exception="RuntimeError", message="oom: no room to zoom, out of memory")
    assert _reason(Facts(main=_BAD, ends=(_BAD,), root=root, phase="load")) == "load_error"


def test_harnesss_own_signals_are_not_the_arms_death() -> None:
    """A process that the harness ended is not a `signal` failure; what made the harness end it is the reason."""
    ours = replace(_end(signal="SIGKILL"), killed_by="harness")
    facts = Facts(main=ours, ends=(ours,), overrun=Overrun(kind="trial", sentence="30 s"))
    assert _reason(facts) == "timeout"


def test_case_43_crash_of_a_child_is_named_with_its_pid() -> None:
    """A child's SIGILL is the reason though the front-end exited with 1, hung, or raised an exception of its own."""
    sigill = _end(9, signal="SIGILL")
    root = RootException(exception="RuntimeError", message="Engine core died")
    ours = replace(_end(signal="SIGTERM"), killed_by="harness")
    for facts in (
        Facts(main=_BAD, ends=(_BAD, sigill), root=root, phase="load"),
        Facts(main=ours, ends=(ours, sigill), overrun=Overrun(kind="stall", sentence="silence")),
    ):
        failure = _failed(facts)
        assert (failure.reason, failure.signal) == (Reason.SIGNAL, "SIGILL")
        assert "child pid 9" in failure.evidence


def test_children_killed_by_a_failing_engine_do_not_hide_its_exception() -> None:
    """An engine that raises kills its workers: the exception is the cause. One that only tells of a death is not."""
    killed = _end(3, signal="SIGKILL")
    cause = RootException(exception="ValidationError", message="Unknown quantization method: int5")
    told = RootException(exception="RuntimeError", message="Worker proc VllmWorker-0 died unexpectedly")
    assert _reason(Facts(main=_BAD, ends=(_BAD, killed), root=cause, phase="load")) == "config_rejected"
    assert _reason(Facts(main=_BAD, ends=(_BAD, killed), root=told, phase="load")) == "signal"


def test_case_45_housekeeping_of_a_good_arm_is_a_note() -> None:
    """A worker killed by its parent, or an exception in the log, is a note where the arm ended well."""
    root = RootException(exception="EngineDeadError", message="died unexpectedly")
    facts = replace(_GOOD, ends=(_OK, _end(2, signal="SIGKILL")), root=root)
    assert classify(facts) is None
    assert len(notes(facts)) == 2


def test_splendid_metric_and_a_nonzero_exit_is_a_failure() -> None:
    """`done` does not excuse the exit code, and the evidence says that it was said."""
    failure = _failed(Facts(main=_BAD, ends=(_BAD,), events=_DONE))
    assert failure.reason == Reason.NONZERO_EXIT
    assert "after it had said `done`" in failure.evidence


@pytest.mark.parametrize(
    ("phase", "exception", "frame", "reason"),
    [
        ("import", "RuntimeError", None, "import_error"),
        ("load", "ModuleNotFoundError", None, "import_error"),
        (None, "ImportError", None, "import_error"),
        ("load", "pydantic_core._pydantic_core.ValidationError", None, "config_rejected"),
        ("load", "ValueError", "vllm/config/model.py:712 in _verify_quantization", "config_rejected"),
        ("load", "ValueError", "vllm/model_executor/model_loader/weight_utils.py:9 in f", "load_error"),
        ("compile", "RuntimeError", None, "load_error"),
        ("decode", "RuntimeError", None, "nonzero_exit"),
        ("decode", "ImportError", None, "nonzero_exit"),
        (None, "ValueError", None, "nonzero_exit"),
    ],
)
def test_reason_of_the_engines_exception(phase: str | None, exception: str, frame: str | None, reason: str) -> None:
    """The exception's class, its innermost frame and the phase it struck in decide among the engine's reasons."""
    root = RootException(exception=exception, message="m", frame=frame)
    assert _reason(Facts(main=_BAD, ends=(_BAD,), root=root, phase=phase)) == reason


def test_driver_that_knows_its_step_is_believed() -> None:
    """A driver's error event that states the reason decides."""
    root = RootException(exception="OSError", message="m")
    events = Events(errors=({"event": "error", "reason": "config_rejected", "phase": "load"},))
    assert _reason(Facts(main=_BAD, ends=(_BAD,), root=root, events=events)) == "config_rejected"


@given(code=st.integers(1, 255), done=st.booleans())
def test_no_exit_code_but_zero_is_ever_a_success(code: int, done: bool) -> None:
    """Whatever the arm said, an exit code other than 0 is a failure, and never a `signal` by its number alone."""
    main = _end(exit_code=code)
    assert _reason(Facts(main=main, ends=(main,), events=Events(done=done))) == "nonzero_exit"


def test_cgroups_count_is_evidence_and_zero_is_none() -> None:
    """The cgroup's oom_kill count is evidence by itself; a SIGKILL without kernel evidence is not."""
    log = KernelLog()
    try:
        assert "2 process(es)" in (log.evidence((), 2) or "")
        assert log.evidence((_end(999_999, signal="SIGKILL"),), 0) is None
        assert log.evidence((_end(999_999, signal="SIGKILL"),), None) is None
    finally:
        log.close()


def _watch(tmp_path_factory: pytest.TempPathFactory, lines: str) -> EventTail:
    path = tmp_path_factory.mktemp("watch") / "events.jsonl"
    path.write_text(lines)
    return EventTail(path)


def test_stall_limit_shrinks_once_a_process_crashed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Silence after a crash in native code is cut after 15 s, not after the full stall limit."""
    from harness.experiment.types import Limits

    tail = _watch(tmp_path_factory, "")
    watch = Watch(Limits(stall=300.0), 0.0)
    now = CRASHED_STALL_S + 1
    assert watch.check(now, tail=tail, log_bytes=0, cpu_s=0.0, crashed=False) is None
    overrun = watch.check(now, tail=tail, log_bytes=0, cpu_s=0.0, crashed=True)
    assert overrun is not None
    assert overrun.kind == "stall"
    tail.close()


def test_what_an_ended_arm_leaves_behind_is_no_hang(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Once the arm's own process has ended, neither `exit` nor `stall` is judged; the trial's own limit is."""
    from harness.experiment.types import Limits

    tail = _watch(tmp_path_factory, '{"event": "done"}\n')
    tail.read(0.0)
    watch = Watch(Limits(exit=1.0, stall=2.0, trial=9.0), 0.0)
    kinds = []
    for now, ended in ((5.0, False), (5.0, True), (10.0, True)):
        overrun = watch.check(now, tail=tail, log_bytes=0, cpu_s=0.0, crashed=False, ended=ended)
        kinds.append(overrun.kind if overrun else None)
    assert kinds == ["exit", None, "trial"]
    tail.close()


def test_waiting_is_no_progress_and_work_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Polling at 1 % of a core for the stall limit is a stall; 5 % is work."""
    from harness.experiment.types import Limits

    tail = _watch(tmp_path_factory, "")
    for share, stalled in ((0.01, True), (0.05, False)):
        watch = Watch(Limits(stall=100.0), 0.0)
        found = [watch.check(float(t), tail=tail, log_bytes=0, cpu_s=share * t, crashed=False) for t in range(1, 150)]
        assert any(found) == stalled
    tail.close()


def test_events_are_read_whole_line_by_whole_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Phases open and close as their lines are completed; a torn line waits for its rest."""
    path = tmp_path_factory.mktemp("tail") / "events.jsonl"
    path.touch()
    tail = EventTail(path)
    with path.open("a") as file:
        for text, phase, done in (
            ('{"event":"phase","name":"load","state":"be', None, None),
            ('gin","t":1}\n', "load", None),
            ('{"event":"phase","name":"compile","state":"begin","t":2}\n', "compile", None),
            ('{"event":"phase","name":"compile","state":"end","t":3}\nnonsense "done"\n', "load", None),
            ('{"event":"done","t":4}\n', "load", 9.0),
        ):
            file.write(text)
            file.flush()
            tail.read(9.0)
            assert (tail.phase, tail.done_at) == (phase, done)
    tail.close()
