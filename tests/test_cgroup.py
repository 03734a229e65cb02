"""Memory cgroups: v1 on the host where it is writable, v2 against a made-up file system (no host of ours has it)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.run import cgroup
from harness.run.cgroup import TrialCgroup
from harness.run.cgroup_gauge import Gauge
from harness.run.cgroup_mounts import CgroupError

MIB = 1 << 20


def made_up_v2(folder: Path, *, options: str = "rw", controllers: str = "cpu memory", own: str = "/a/b") -> Path:
    """A /proc that names a cgroup v2 mount, and the mount."""
    mount = folder / "a mount"
    group = Path(f"{mount}{own}")
    group.mkdir(parents=True)
    for each in (group, group.parent):
        (each / "cgroup.controllers").write_text(controllers)
        (each / "cgroup.subtree_control").write_text("memory" if each == group.parent else "")
    (folder / "self").mkdir()
    point = str(mount).replace(" ", "\\040")
    (folder / "self/mountinfo").write_text(f"41 31 0:38 / {point} {options},relatime - cgroup2 cgroup2 {options}\n")
    (folder / "self/cgroup").write_text(f"0::{own}\n")
    return group


def test_v2_a_sibling_is_used_where_our_own_cgroup_holds_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cgroup with processes cannot hand memory on: the trial's is made beside it, below the parent that does."""
    group = made_up_v2(tmp_path)
    (group / "cgroup.subtree_control").unlink()
    monkeypatch.setattr(cgroup, "_try", lambda _backend: None)
    backend = cgroup.probe(tmp_path)
    assert (backend.name, backend.parent) == ("cgroup_v2", group.parent)


def test_v2_without_the_memory_controller_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A v2 mount whose controllers lack memory is no back end; the reason says so."""
    made_up_v2(tmp_path, controllers="cpu io")
    backend = cgroup.probe(tmp_path)
    assert backend.name == "none"
    assert "has no memory controller" in backend.why


def test_a_read_only_mount_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A read-only mount, as containers have it, is no back end; the reason says so."""
    made_up_v2(tmp_path, options="ro")
    assert "read-only" in cgroup.probe(tmp_path).why


def test_no_cgroup_at_all_is_said(tmp_path: Path) -> None:
    """A host without any mount is `none`, with what was tried."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("")
    (tmp_path / "self/cgroup").write_text("")
    backend = cgroup.probe(tmp_path)
    assert (backend.name, len(backend.tried)) == ("none", 2)


def made_up_group(folder: Path) -> TrialCgroup:
    """A v2 cgroup as files."""
    path = folder / "harness-1-x"
    path.mkdir()
    for name, text in {
        "memory.current": "5000\n", "memory.peak": "9000\n", "memory.max": "max\n", "memory.swap.max": "max\n",
        "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n", "cgroup.procs": "11\n12\n", "cgroup.kill": "",
        "memory.stat": "anon 4096\nfile 8192\nkernel 1\nshmem 12\nanon_thp 2097152\n",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
    }.items():  # fmt: skip
        (path / name).write_text(text)
    return TrialCgroup(backend="cgroup_v2", path=path)


def test_v2_figures_come_from_their_files(tmp_path: Path) -> None:
    """Usage, mark, kills and pressure are those of memory.current, memory.peak, memory.events and memory.pressure."""
    group = made_up_group(tmp_path)
    assert (group.usage(), group.mark(), group.oom_kills(), group.pids()) == (5000, 9000, 2, frozenset({11, 12}))
    assert "total=7" in group.pressure()["memory"]
    gauge = Gauge(group.gauge_config())
    _, usage, _, anon, file, shmem, huge, reset = gauge.line(reset=False).split(",")
    assert (usage, anon, file, shmem, huge, reset) == ("5000", "4096", "8192", "12", "2097152", "0")


def test_v2_kill_writes_to_the_cgroups_own_switch(tmp_path: Path) -> None:
    """cgroup.kill ends the whole tree at once: nothing is signalled by pid where it is there."""
    group = made_up_group(tmp_path)
    assert group.kill() == 2
    assert (group.path / "cgroup.kill").read_text() == "1"


def test_v2_a_mark_before_linux_5_19_is_none(tmp_path: Path) -> None:
    """Without memory.peak there is no mark: None, not 0."""
    group = made_up_group(tmp_path)
    (group.path / "memory.peak").unlink()
    assert group.mark() is None


def test_a_limit_shuts_off_swap_too(tmp_path: Path) -> None:
    """A limit that lets pages go to swap would be no limit of memory."""
    group = made_up_group(tmp_path)
    cgroup._limit(group, 77)
    assert (group.path / "memory.max").read_text() == "77"
    assert (group.path / "memory.swap.max").read_text() == "0"


@pytest.fixture
def real() -> cgroup.Backend:
    """The back end of this host, if there is one."""
    backend = cgroup.probe()
    if backend.name == "none":
        pytest.skip(backend.why)
    return backend


def test_a_cgroup_counts_what_its_process_holds_and_is_removed(real: cgroup.Backend) -> None:
    """The kernel's mark holds the 40 MiB that a process touched after it entered; the folder is gone afterwards."""
    group = cgroup.create(real, "test")
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "input(); held = b'x' * (40 << 20); input()"], stdin=subprocess.PIPE
    )
    try:
        group.enter(child.pid)
        assert group.pids() == {child.pid}
        child.communicate(b"\n\n")
    finally:
        child.kill()
        child.wait()
        problem = group.remove()
    assert problem is None
    assert not group.path.exists()


def test_a_process_over_the_limit_is_killed_and_the_cgroup_says_so(real: cgroup.Backend) -> None:
    """Out of memory is the cgroup's own word: its count of kills goes up and the process ends by SIGKILL."""
    group = cgroup.create(real, "limit", limit_bytes=48 * MIB)
    child = subprocess.Popen([sys.executable, "-S", "-c", "input(); held = b'x' * (200 << 20)"], stdin=subprocess.PIPE)
    try:
        group.enter(child.pid)
        child.communicate(b"\n")
        assert child.returncode == -9
        assert group.oom_kills() == 1
    finally:
        child.kill()
        child.wait()
        assert group.remove() is None


def test_leftovers_are_those_of_a_harness_that_is_gone(tmp_path: Path) -> None:
    """A cgroup named after a dead process is a leftover; ours is not."""
    backend = cgroup.Backend(name="cgroup_v1", why="made up", parent=tmp_path)
    (tmp_path / f"harness-{os.getpid()}-x").mkdir()
    (tmp_path / "harness-4194305-x").mkdir()  # above the largest pid of any Linux
    (tmp_path / "other").mkdir()
    assert [path.name for path in cgroup.leftovers(backend)] == ["harness-4194305-x"]


def test_without_a_back_end_making_one_says_why() -> None:
    """A cgroup on a host without any is refused with the probe's reason."""
    with pytest.raises(CgroupError, match="asked for"):
        cgroup.create(cgroup.NONE, "x")
