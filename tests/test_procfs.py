"""Readers of /proc against made-up files, and against real processes in every state."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.run import procfs
from harness.run.procfs import Memory, Reading, State
from harness.run.tracker import Tracker

STATUS = (
    "Name:\tpython\nState:\tS (sleeping)\nTgid:\t7\nThreads:\t1\nVmSize:\t 900 kB\nVmHWM:\t  500 kB\nVmRSS:\t  400 kB\n"
    "RssAnon:\t  300 kB\nRssFile:\t  90 kB\nRssShmem:\t  10 kB\nVmData:\t 1 kB\nVmSwap:\t  4 kB\nHugetlbPages:\t 0 kB\n"
)


def fake(folder: Path, pid: int, status: str, *, flags: int = 0, letter: str = "S", ppid: int = 1) -> Path:
    """One process below a made-up /proc."""
    process = folder / str(pid)
    process.mkdir(parents=True)
    (process / "status").write_text(status)
    (process / "statm").write_text("225 100 25 1 0 9 0\n")
    rest = " ".join("0" for _ in range(30))
    (process / "stat").write_text(
        f"{pid} (a (b) c) {letter} {ppid} {pid} {pid} 0 -1 {flags} 0 0 0 0 1 2 0 0 20 0 1 0 4242 {rest}\n"
    )
    (process / "environ").write_bytes(b"A=1\0HARNESS_TRIAL=tok\0B=2\0")
    return process


def test_status_is_read_by_name_in_kib() -> None:
    """Every number is the one that its own line holds."""
    assert procfs.parse_status(STATUS.encode()) == Reading(State.OK, Memory(500, 300, 90, 10, 4))


@pytest.mark.parametrize("name", procfs.NEEDED)
def test_case_30_a_missing_field_is_unknown_and_never_zero(name: str, tmp_path: Path) -> None:
    """Without any one of the needed fields there is no reading, and the field is named."""
    status = "".join(f"{line}\n" for line in STATUS.splitlines() if not line.startswith(name))
    fake(tmp_path, 7, status)
    files = procfs.ProcessFiles(7, str(tmp_path))
    assert files.read() == Reading(State.FIELD_MISSING, None, (name,))
    files.close()


def test_case_30_a_host_without_the_fields_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A kernel that shows VmRSS alone cannot be measured; the probe says which field is missing and what to do."""
    status = "".join(f"{line}\n" for line in STATUS.splitlines() if not line.startswith(("Rss", "VmHWM")))
    process = fake(tmp_path, 7, status)
    (tmp_path / "self").symlink_to(process.name)
    problems = procfs.probe(str(tmp_path))
    assert len(problems) == 4
    assert "cannot measure RssAnon" in "\n".join(problems)
    assert "Linux kernel directly" in problems[0]
    assert procfs.probe() == ()


def test_case_30_a_mark_of_zero_is_no_reading(tmp_path: Path) -> None:
    """`VmHWM: 0 kB` of a running process is a kernel that does not count, not a small program."""
    process = fake(tmp_path, 7, STATUS.replace("VmHWM:\t  500", "VmHWM:\t  0"))
    (tmp_path / "self").symlink_to(process.name)
    assert "VmHWM 0" in procfs.probe(str(tmp_path))[0]


def test_case_29_a_zombie_is_a_zombie() -> None:
    """A process that ended and was not asked for has no memory lines: state zombie, not unknown and not gone."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    try:
        until = time.monotonic() + 10
        stat = procfs.read_stat(child.pid)
        while isinstance(stat, procfs.Stat) and stat.state != "Z" and time.monotonic() < until:
            time.sleep(0.005)
            stat = procfs.read_stat(child.pid)
        files = procfs.ProcessFiles(child.pid)
        assert files.read().state is State.ZOMBIE
        child.wait()
        assert files.read().state is State.GONE
        files.close()
        assert procfs.read_stat(child.pid) is State.GONE
    finally:
        child.wait()


def test_case_29_a_kernel_thread_is_unknown() -> None:
    """A living process without memory lines is unknown, whatever it is."""
    if not isinstance(stat := procfs.read_stat(2), procfs.Stat) or not stat.flags & procfs.PF_KTHREAD:
        pytest.skip("no kernel thread can be seen from this pid namespace")
    files = procfs.ProcessFiles(2)
    assert files.read().state is State.FIELD_MISSING
    files.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process can be made by root only")
def test_case_29_denied_is_its_own_state() -> None:
    """smaps_rollup of a process that dropped dumpable is denied to another user, while its status can be read."""
    code = (
        "import os,sys,ctypes\nfrom harness.run import procfs\n"
        "pid=int(sys.argv[1]); os.setgid(65534); os.setuid(65534)\n"
        "print(procfs.read_rollup(pid), procfs.ProcessFiles(pid).read().state)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\n{code}", str(os.getpid())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ModuleNotFoundError" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("the checkout cannot be read by another user")
    assert done.stdout.split() == ["denied", "ok"], done.stderr


def test_a_main_thread_that_ended_first_is_no_zombie() -> None:
    """A process whose main thread is gone while others live shows Z and holds its memory: unknown."""
    assert procfs.parse_status(b"Name:\tx\nState:\tZ (zombie)\nThreads:\t3\n").state is State.FIELD_MISSING
    assert procfs.parse_status(b"Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n").state is State.ZOMBIE


def test_an_exiting_process_holds_nothing(tmp_path: Path) -> None:
    """On its way out a process has no memory lines and still says R: its flags tell."""
    fake(tmp_path, 7, "Name:\tx\nState:\tR (running)\nThreads:\t1\n", flags=procfs.PF_EXITING, letter="R")
    files = procfs.ProcessFiles(7, str(tmp_path))
    assert files.read().state is State.ZOMBIE
    files.close()


def test_a_name_may_hold_anything() -> None:
    """Blanks and brackets in a process's name do not move the fields behind it."""
    stat = procfs.parse_stat(b"9 (x) R (y) S 3 4 5 0 -1 64 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n")
    seen = (stat.pid, stat.name, stat.state, stat.parent, stat.session, stat.start_ticks)
    assert seen == (9, "x) R (y", "S", 3, 5, 77)
    assert stat.forked


def test_a_glance_counts_the_same_pages(tmp_path: Path) -> None:
    """Between two looks at status, statm gives anonymous memory as resident less file and shared; a look that finds
    nothing new says nothing.
    """
    process = fake(tmp_path, 7, STATUS)
    tracker = Tracker(7, session=0, token="", proc=str(tmp_path), cgroup_procs=None, events=None)
    tracker.tick(everything=True)
    page = os.sysconf("SC_PAGE_SIZE") // 1024
    (process / "statm").write_bytes(b"900 110 25 3 0 9 0\n")
    glances: list[str] = []
    for _ in range(2):  # status is due at the 4th tick
        tracker.lines.clear()
        tracker.tick()
        glances += [line for line in tracker.lines if line.startswith("W")]
    assert glances == [f"W 0,{85 * page},{25 * page}"]
    assert tracker.total == 85 * page
    tracker.close()


def test_members_are_children_session_token_and_cgroup(tmp_path: Path) -> None:
    """A trial's processes are found by descent, session, token and cgroup; a bystander is not among them."""
    root = fake(tmp_path, 100, STATUS)
    fake(tmp_path, 101, STATUS, ppid=100)
    fake(tmp_path, 102, STATUS, ppid=101)
    orphan = fake(tmp_path, 103, STATUS)
    grouped = fake(tmp_path, 104, STATUS)
    bystander = fake(tmp_path, 105, STATUS)
    for process in (root, grouped, bystander):
        (process / "environ").write_bytes(b"HARNESS_TRIAL=other\0")
    assert orphan.exists()
    found = procfs.members(100, session=0, token="tok", cgroup=[104], proc=str(tmp_path))  # noqa: S106  # no secret
    assert sorted(pid for pid, _ in found) == [100, 101, 102, 103, 104]
    assert all(start == 4242 for _, start in found)
