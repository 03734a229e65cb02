from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trials
from hypothesis import given
from hypothesis import strategies as st

from harness.experiment.types import Limits
from harness.records import Reason
from harness.run import owners, process_tree
from harness.run.proc_stat import parse_stat
from harness.run.process_events import Unavailable, open_events
from harness.run.process_tree import Identity, Tree
from harness.testing import fake_arm


def _privileged() -> bool:
    events = open_events()
    if isinstance(events, Unavailable):
        return False
    events.close()
    return True


def test_case_01_leftover_holding_the_output_does_not_hold_the_trial(tmp_path: Path) -> None:
    """An arm that exits at once and leaves a child on its output ends within its limit, and the child is ended."""
    began = time.monotonic()
    result = trials.run(tmp_path, fake_arm("leave"), limits=Limits(trial=3))
    assert time.monotonic() - began < 4
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.ORPHAN_LEFT


def test_case_01_limit_shorter_than_the_grace_is_a_timeout(tmp_path: Path) -> None:
    """The time limit bounds the whole tree: what still runs then makes it a timeout, though the arm itself has left."""
    result = trials.run(tmp_path, fake_arm("leave"), limits=Limits(trial=0.4), orphan_grace_s=5.0)
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.TIMEOUT


def test_case_01_stubborn_grandchild_behind_a_shell(tmp_path: Path) -> None:
    """A grandchild that ignores SIGTERM is gone within limit and grace, though only the shell is the arm's child."""
    began = time.monotonic()
    command = f"{sys.executable} -m harness.testing.arms stubborn & wait"
    result = trials.run(tmp_path, trials.shell(command), limits=Limits(trial=1.0))
    assert time.monotonic() - began < 3.5
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.TIMEOUT
    ends = {end.signal for end in result.record.processes if end.killed_by == "harness"}
    assert "SIGKILL" in ends


def test_arm_that_ignores_sigterm_is_killed_after_the_stated_grace(tmp_path: Path) -> None:
    """SIGTERM comes first; after the grace SIGKILL ends the arm, and the record says that the harness did it."""
    result = trials.run(tmp_path, fake_arm("stubborn"), limits=Limits(trial=0.8))
    (end,) = result.record.processes
    assert (end.signal, end.killed_by, end.source) == ("SIGKILL", "harness", "wait")


def test_stopped_tree_is_ended(tmp_path: Path) -> None:
    """Processes stopped by SIGSTOP are ended like any other, without waiting for the grace."""
    result = trials.run(tmp_path, fake_arm("stopped"), limits=Limits(trial=0.8), kill_grace_s=10.0)
    assert {end.signal for end in result.record.processes} == {"SIGTERM"}


def test_case_44_child_in_a_new_session_is_found_and_ended(tmp_path: Path) -> None:
    """A child that left the session of its dead parent is the arm's still, and fails the trial as an orphan."""
    result = trials.run(tmp_path, fake_arm("setsid", 20))
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.ORPHAN_LEFT


def test_case_44_renamed_daemon_without_token_is_found_and_ended(tmp_path: Path) -> None:
    """Double fork, new session, no environment, another name: the orphan comes back to the harness and is the arm's."""
    result = trials.run(tmp_path, fake_arm("daemon", "VLLM::EngineCore"))
    assert result.record.failure is not None
    assert result.record.failure.reason == Reason.ORPHAN_LEFT
    assert "VLLM::EngineCor" in result.record.failure.evidence


def test_chain_of_forks_that_outruns_every_look_is_ended(tmp_path: Path) -> None:
    """Processes that fork and leave every 2 ms are ended: a look that found only the dead proves nothing."""
    before = trials.children()
    result = trials.run(tmp_path, fake_arm("chain"))
    assert result.record.failure is not None
    time.sleep(0.05)
    assert trials.children() == before


def test_case_10_bystander_of_the_engines_name_survives(tmp_path: Path) -> None:
    """A process named VLLM::EngineCore that is not the arm's lives through a timeout and an interrupt."""
    program = "import time; open('/proc/self/comm', 'w').write('VLLM::EngineCor'); time.sleep(60)"
    bystander = subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True)
    try:
        trials.run(tmp_path / "_1", fake_arm("daemon"), limits=Limits(trial=0.7))
        stop = trials.Flag()
        stop.request("SIGINT")
        trials.run(tmp_path / "_2", fake_arm("silent"), stop=stop)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_reaper_leaves_other_children_their_status(tmp_path: Path) -> None:
    """A child of the harness that is not the arm's keeps its exit status for whoever waits for it."""
    helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(0.3); raise SystemExit(7)"])
    trials.run(tmp_path, fake_arm("ok", 0.8))
    assert helper.wait() == 7


def test_200_children_a_second_are_all_accounted_for(tmp_path: Path) -> None:
    """With kernel events every one of the short children has its exit status; without, its absence has a reason."""
    result = trials.run(tmp_path, fake_arm("churn", 1, 200, 1))
    assert result.record.failure is None
    assert len(result.record.processes) > 20
    for end in result.record.processes:
        assert (end.exit_code == 0) or (end.unknown and not _privileged())


@pytest.mark.skipif(not _privileged(), reason="process events need root in the first pid namespace")
def test_case_43_sigill_of_a_grandchild_is_seen_though_its_parent_reaps_it(tmp_path: Path) -> None:
    """An engine's SIGILL is the reason, by name and pid, though its parent reaped it and the arm exited with 1."""
    result = trials.run(tmp_path, fake_arm("engine-dies", "SIGILL", "exit", 1))
    failure = result.record.failure
    assert failure is not None
    assert (failure.reason, failure.signal) == (Reason.SIGNAL, "SIGILL")
    dead = next(end for end in result.record.processes if end.signal == "SIGILL")
    assert f"child pid {dead.pid}" in failure.evidence
    assert dead.source == "process_events"


@pytest.mark.skipif(not _privileged(), reason="process events need root in the first pid namespace")
def test_case_43_parent_that_waits_for_its_dead_child_is_cut_by_the_stall_limit(tmp_path: Path) -> None:
    """A parent that hangs after its engine's SIGILL is cut by the stall limit, not the trial's, and is a `signal`."""
    began = time.monotonic()
    result = trials.run(
        tmp_path, fake_arm("engine-dies", "SIGILL", "hang"), limits=Limits(trial=60, stall=1.0, exit=30)
    )
    assert time.monotonic() - began < 5
    assert result.record.failure is not None
    assert (result.record.failure.reason, result.record.failure.signal) == (Reason.SIGNAL, "SIGILL")


def test_exit_status_nobody_saw_is_unknown_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernel events a child that its own parent reaped has no invented status: it is unknown, and says why."""
    monkeypatch.setattr("harness.run.reaper.open_events", lambda: Unavailable("process events refused: no root"))
    result = trials.run(tmp_path, trials.shell("sleep 1.3; exit 3"))
    child = next(end for end in result.record.processes if end.name == "sleep")
    assert (child.exit_code, child.signal, child.source) == (None, None, None)
    assert child.unknown == "reaped by its own parent before it was seen; process events refused: no root"
    assert next(end for end in result.record.processes if end.source == "wait").exit_code == 3


def test_engines_own_report_of_an_exit_is_used_where_nobody_else_saw_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `process` event of the engine gives the status of a process that no other source tells of."""
    monkeypatch.setattr("harness.run.reaper.open_events", lambda: Unavailable("no root"))
    program = (
        'sleep 1.3 & pid=$!; wait $pid; echo "{\\"event\\": \\"process\\", \\"pid\\": $pid, \\"exit_code\\": 0}"'
        ' >> "$HARNESS_EVENTS"; exit 3'
    )
    result = trials.run(tmp_path, trials.shell(program))
    child = next(end for end in result.record.processes if end.name == "sleep")
    assert (child.exit_code, child.source) == (0, "engine")


def test_zombie_tells_its_status_before_its_parent_reaps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead process that its parent leaves unreaped shows its signal in /proc, and that is kept."""
    monkeypatch.setattr("harness.run.reaper.open_events", lambda: Unavailable("no root"))
    program = (
        "import os, time, signal\n"
        "pid = os.fork()\n"
        "if pid == 0: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "time.sleep(1.6); os.waitpid(pid, 0); os._exit(1)"
    )
    result = trials.run(tmp_path, trials.python(program))
    assert ("SIGSEGV", "zombie") in {(end.signal, end.source) for end in result.record.processes}


def test_signal_never_hits_a_reused_pid() -> None:
    """A process with the right pid and another start time is somebody else: it gets no signal."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(30)"])
    try:
        stat = process_tree.read_stat(child.pid)
        assert stat is not None
        wrong = Identity(child.pid, stat.start_ticks - 1)
        assert not process_tree.send(wrong, signal.SIGKILL)
        assert not process_tree._send_by_pid(wrong, signal.SIGKILL)
        assert child.poll() is None
        assert process_tree.send(stat.identity, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


@given(name=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=15))
def test_stat_is_read_whatever_the_process_is_called(name: str) -> None:
    """Brackets, blanks and line ends in a process's name move no field of /proc/PID/stat."""
    line = f"42 ({name}) S 7 42 43 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 777 1 1".encode() + b" 0" * 27 + b" 9\n"
    stat = parse_stat(line)
    assert (stat.pid, stat.parent, stat.session, stat.cpu_ticks, stat.start_ticks, stat.status) == (
        42,
        7,
        43,
        11,
        777,
        9,
    )


def test_tree_knows_a_member_by_token_and_nobody_without() -> None:
    """The token in a process's environment makes it a member, wherever it descends from; another token does not."""
    token = owners.new_token()
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(30)"]
    ours = subprocess.Popen(sleeper, env={"HARNESS_TRIAL": token}, start_new_session=True)
    other = subprocess.Popen(sleeper, env={"HARNESS_TRIAL": f"{token}2"}, start_new_session=True)
    try:
        time.sleep(0.1)
        assert {identity.pid for identity in Tree(token).look()} == {ours.pid}
    finally:
        for child in (ours, other):
            child.kill()
            child.wait()


_HARNESS = """
import sys, trials
from pathlib import Path
from harness.experiment.types import Limits
from harness.run.trial import run_trial
request = trials.request(Path(sys.argv[1]), sys.argv[2:], limits=Limits(trial=60))
print(request.token, flush=True)
run_trial(request, stop=trials.Flag(), watch=lambda now: None)
"""


def _killed_harness(folder: Path, argv: list[str], *, keeper_too: bool) -> str:
    """Run a harness in a process of its own and kill it with SIGKILL in the middle of a trial; the trial's token."""
    env = os.environ | {"PYTHONPATH": f"{trials.ROOT}:{trials.ROOT / 'tests'}"}
    harness = subprocess.Popen([sys.executable, "-c", _HARNESS, str(folder), *argv], stdout=subprocess.PIPE, env=env)
    assert harness.stdout is not None
    token = harness.stdout.readline().decode().strip()
    until = time.monotonic() + 10
    while not trials.survivors(token) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.5)
    helpers = [stat for stat in process_tree.table().values() if stat.parent == harness.pid]
    if keeper_too:
        for stat in helpers:
            if process_tree.token_of(stat.pid) is None:
                process_tree.send(stat.identity, signal.SIGKILL)
    harness.kill()
    harness.wait()
    harness.stdout.close()
    return token


def test_killed_harness_takes_its_arm_along_and_the_next_start_names_it(tmp_path: Path) -> None:
    """After kill -9 of the harness its keeper ends the arm within moments; the next start says who was left by whom."""
    token = _killed_harness(tmp_path, fake_arm("stubborn"), keeper_too=False)
    until = time.monotonic() + 5
    while trials.survivors(token) and time.monotonic() < until:
        time.sleep(0.02)
    assert trials.survivors(token) == []
    (file,) = (tmp_path / "owners").glob("*.json")
    until = time.monotonic() + 5
    while "ended" not in json.loads(file.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    (leftover,) = owners.end_leftovers(tmp_path / "owners")
    assert (leftover.ended, leftover.run) == ("keeper", "20261201T000000Z-abcdef")
    assert str(leftover.identity.pid) in leftover.sentence
    assert not list((tmp_path / "owners").iterdir())


def test_leftovers_of_a_harness_killed_with_its_keeper_are_named_and_ended_at_the_next_start(tmp_path: Path) -> None:
    """Without the keeper the arm lives on; the next start finds it by its token, names it, and ends it."""
    token = _killed_harness(tmp_path, fake_arm("stubborn"), keeper_too=True)
    assert trials.survivors(token)
    (leftover,) = owners.end_leftovers(tmp_path / "owners")
    assert leftover.ended == "harness"
    assert leftover.name in leftover.sentence
    assert trials.survivors(token) == []


def test_processes_of_a_living_harness_are_nobodys_leftovers(tmp_path: Path) -> None:
    """An owner file whose harness lives protects its trial's processes from another harness's start."""
    token = owners.new_token()
    owners.write_owner(token, run="r", log="l", folder=tmp_path)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(30)"], env={"HARNESS_TRIAL": token})
    try:
        assert owners.end_leftovers(tmp_path) == ()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
