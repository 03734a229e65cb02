"""One measurement at a time on a host, and who waits for whom."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.run.lock import HostBusyError, host_lock, lock_path
from harness.run.stop import StopFlag, stopped_by_signals
from harness.testing.fakes import FakeClock

ROOT = Path(__file__).resolve().parent.parent

HOLD = """
import sys
from pathlib import Path
from harness.run.lock import host_lock
from harness.run.stop import StopFlag
from harness.testing.fakes import FakeClock
with host_lock("other", stop=StopFlag(), clock=FakeClock(), say=print, path=Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def another_run(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until it is told or killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.stdin.close()
        holder.stdout.close()
        holder.wait()


def test_case_06_a_second_run_is_told_who_measures(tmp_path: Path) -> None:
    """A run that finds another one measuring names it, its process and since when, and what to do."""
    path, said = tmp_path / "lock", list[str]()
    with (
        another_run(path) as other,
        pytest.raises(HostBusyError, match=rf"run of other \(process {other.pid}\).*since 2026-10-25.*Remedy"),
        host_lock("mine", stop=StopFlag(), clock=FakeClock(), say=said.append, patience_s=0.1, path=path),
    ):
        pass
    assert len(said) == 1
    assert f"(process {other.pid}) measures on this host" in said[0]


def test_case_06_runs_wait_in_turn(tmp_path: Path) -> None:
    """Three runs started at once all measure, one after the other, never two at a time."""
    path, inside, most, done = tmp_path / "lock", [0], [0], list[bool]()

    def run() -> None:
        with host_lock("run", stop=StopFlag(), clock=FakeClock(), say=lambda _text: None, path=path) as held:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            threading.Event().wait(0.05)
            inside[0] -= 1
            done.append(held)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (done, most) == ([True] * 3, [1])


def test_a_killed_run_lets_the_host_go(tmp_path: Path) -> None:
    """After `kill -9` of its holder the lock is free at once, and what the dead one wrote misleads nobody."""
    path = tmp_path / "lock"
    with another_run(path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        with host_lock("m", stop=StopFlag(), clock=FakeClock(), say=pytest.fail, patience_s=0, path=path) as held:
            assert held


def test_a_program_the_holder_started_does_not_keep_the_lock(tmp_path: Path) -> None:
    """An arm that outlives its harness does not hold the host: the lock's descriptor is closed at exec."""
    path = tmp_path / "lock"
    with host_lock("first", stop=StopFlag(), clock=FakeClock(), say=pytest.fail, path=path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with host_lock("next", stop=StopFlag(), clock=FakeClock(), say=pytest.fail, patience_s=0, path=path) as held:
            assert held
    finally:
        child.kill()
        child.wait()


def test_case_03_waiting_ends_when_asked_to_stop(tmp_path: Path) -> None:
    """A signal while waiting in turn ends the waiting: nothing is held and nothing was measured."""
    path = tmp_path / "lock"
    with another_run(path), stopped_by_signals() as stop:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        with host_lock("mine", stop=stop, clock=FakeClock(), say=lambda _text: None, path=path) as held:
            assert not held
        timer.join()
        assert stop.name == "SIGTERM"


def test_every_user_can_open_the_lock(tmp_path: Path) -> None:
    """The file is made for everybody whatever the umask, and a symbolic link in its place is refused."""
    path, old = tmp_path / "lock", os.umask(0o077)
    try:
        with host_lock("mine", stop=StopFlag(), clock=FakeClock(), say=pytest.fail, path=path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(old)
    (tmp_path / "link").symlink_to(path)
    with (
        pytest.raises(Exception, match=r"cannot open the lock .*ELOOP"),
        host_lock("mine", stop=StopFlag(), clock=FakeClock(), say=pytest.fail, path=tmp_path / "link"),
    ):
        pass


def test_the_lock_stands_where_all_users_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is in a folder that everybody may write to and nobody may clear; a variable names another for tests."""
    monkeypatch.delenv("HARNESS_HOST_LOCK", raising=False)
    mode = lock_path().parent.stat().st_mode
    assert mode & stat.S_IWOTH
    assert mode & stat.S_ISVTX
    monkeypatch.setenv("HARNESS_HOST_LOCK", "/somewhere/else")
    assert lock_path() == Path("/somewhere/else")


def test_case_03_signals_set_the_flag_and_nothing_is_raised() -> None:
    """SIGINT, SIGTERM and SIGHUP become a request; a second one is urgent; handlers come back afterwards."""
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    before = signal.getsignal(signal.SIGINT)
    with stopped_by_signals() as stop:
        assert not stop.wait(0)
        signal.raise_signal(signal.SIGINT)
        assert (stop.requested, stop.urgent, stop.name) == (True, False, "SIGINT")
        signal.raise_signal(signal.SIGHUP)
        assert (stop.urgent, stop.name) == (True, "SIGINT")
        assert stop.wait(3600)
    assert signal.getsignal(signal.SIGINT) == before
    signal.signal(signal.SIGHUP, hangup)


def test_only_an_ignored_hangup_stays_ignored() -> None:
    """`nohup harness run` outlives its terminal, but a run that a script started with `&` can still be interrupted."""
    former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        with stopped_by_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
            signal.raise_signal(signal.SIGINT)
            assert stop.name == "SIGINT"
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
