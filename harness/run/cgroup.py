"""A memory cgroup of its own for each trial: v2, v1 or none, chosen by trying. Standard library only.

A trial's cgroup is entered before the arm's exec, so that every page of the arm is charged to it and membership is the
kernel's word. What the host lets us do is found by doing it once: a writable-looking mount may still refuse.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: Names of our cgroups: prefix, pid of the harness that made it, a word.
PREFIX: Final = "harness-"
_NAME = re.compile(rf"{PREFIX}(\d+)-")
#: A cgroup whose last process was just reaped may stay busy for some milliseconds.
_REMOVE_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What this host offers. `name`: `cgroup_v2`, `cgroup_v1` or `none`; `why`: what the probe found, one sentence.
    `parent`: where trial cgroups are made. `freezer`: the same in the freezer hierarchy of v1. `tried`: a sentence on
    each back end that was not chosen.
    """

    name: str
    why: str
    parent: Path | None = None
    freezer: Path | None = None
    tried: tuple[str, ...] = ()


NONE: Final = Backend(name="none", why="asked for")


class CgroupError(Exception):
    """A cgroup that cannot be made or used; the message names path and cause."""


@dataclass(frozen=True)
class _Mount:
    kind: str
    root: str
    point: Path
    options: frozenset[str]


def probe(proc: Path = Path("/proc"), only: str | None = None) -> Backend:
    """The best back end that works here: v2, then v1, then none. `only` leaves out the others."""
    tried: list[str] = []
    if only == "none":
        return NONE
    for name, find in (("cgroup_v2", _find_v2), ("cgroup_v1", _find_v1)):
        if only not in (None, name):
            continue
        try:
            backend = find(proc)
            _try(backend)
        except (CgroupError, OSError) as error:
            tried.append(f"{name}: {error}")
            continue
        return Backend(
            name=backend.name, why=backend.why, parent=backend.parent, freezer=backend.freezer, tried=tuple(tried)
        )
    return Backend(name="none", why="no memory cgroup can be used: " + "; ".join(tried), tried=tuple(tried))


def _try(backend: Backend) -> None:
    """Make a cgroup, read what is needed, remove it."""
    group = create(backend, "probe")
    try:
        if group.usage() is None:
            raise CgroupError(f"{group.path} does not tell its memory usage")
        if not os.access(group.path / "cgroup.procs", os.W_OK):
            raise CgroupError(f"{group.path / 'cgroup.procs'} cannot be written")
    finally:
        problem = group.remove()
    if problem:
        raise CgroupError(problem)


def _mounts(proc: Path) -> list[_Mount]:
    """Mounts as this process sees them; blanks in paths are written as octal numbers there."""
    found = []
    for line in (proc / "self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 6 or len(kind) < 3:
            continue
        root, point = (re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), part) for part in fields[3:5])
        found.append(_Mount(kind[0], root, Path(point), frozenset(fields[5].split(",") + kind[2].split(","))))
    return found


def _own_path(proc: Path, controller: str) -> str:
    """This process's cgroup in the hierarchy of `controller`; the empty word is v2's."""
    for line in (proc / "self/cgroup").read_text(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    raise CgroupError(f"/proc/self/cgroup names no hierarchy for {controller or 'cgroup v2'}")


def _folder(mount: _Mount, path: str) -> Path:
    """Where a cgroup lies in a mount. In a container the mount's root is a part of the host's tree."""
    inside = path
    if mount.root != "/":
        inside = path[len(mount.root) :] if path.startswith(mount.root) else "/"
    folder = Path(f"{mount.point}/{inside.lstrip('/')}")
    if not folder.is_dir():
        folder = mount.point  # a cgroup namespace, or a path that leads outside: the mount's top is what we have
    if "ro" in mount.options:
        raise CgroupError(f"{mount.point} is mounted read-only")
    return folder


def _find_v1(proc: Path) -> Backend:
    mount = next((each for each in _mounts(proc) if each.kind == "cgroup" and "memory" in each.options), None)
    if mount is None:
        raise CgroupError("no memory hierarchy of cgroup v1 is mounted")
    parent = _folder(mount, _own_path(proc, "memory"))
    freezer = None
    freezing = next((each for each in _mounts(proc) if each.kind == "cgroup" and "freezer" in each.options), None)
    if freezing is not None:
        with contextlib.suppress(CgroupError):
            freezer = _folder(freezing, _own_path(proc, "freezer"))
    return Backend(
        name="cgroup_v1",
        why=f"the memory hierarchy of cgroup v1 at {mount.point} is writable",
        parent=parent,
        freezer=freezer,
    )


def _find_v2(proc: Path) -> Backend:
    mount = next((each for each in _mounts(proc) if each.kind == "cgroup2"), None)
    if mount is None:
        raise CgroupError("cgroup v2 is not mounted")
    own = _folder(mount, _own_path(proc, ""))
    if "memory" not in _words(own / "cgroup.controllers"):
        raise CgroupError(f"cgroup v2 at {own} has no memory controller")
    # Processes may sit in leaves only: a cgroup that holds us cannot hand memory on, so a sibling is the usual place.
    problems = []
    for parent in (own, own.parent):
        if parent != mount.point.parent and (parent / "cgroup.subtree_control").exists():
            problem = _hand_on_memory(parent)
            if problem is None:
                return Backend(name="cgroup_v2", why=f"cgroup v2 with memory below {parent} is writable", parent=parent)
            problems.append(problem)
    raise CgroupError("; ".join(problems) or f"cgroup v2 at {own} cannot be divided")


def _hand_on_memory(parent: Path) -> str | None:
    control = parent / "cgroup.subtree_control"
    if "memory" in _words(control):
        return None
    try:
        control.write_text("+memory")
    except OSError as error:
        return f"{control} refuses memory: {error.strerror}"
    return None if "memory" in _words(control) else f"{control} does not take memory"


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no number either
        return None


def _table(path: Path) -> dict[str, int]:
    """A file of `name number` lines."""
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    except OSError:
        return {}


#: Bytes of the limit that is set to see whether one can be: a whole number of pages everywhere.
_TRIED_LIMIT: Final = 1 << 28
_FILES: Final = {
    "cgroup_v2": ("memory.current", "memory.peak", "memory.max", "memory.swap.max"),
    "cgroup_v1": (
        "memory.usage_in_bytes",
        "memory.max_usage_in_bytes",
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
    ),
}


@dataclass(frozen=True, kw_only=True)
class TrialCgroup:
    """The cgroup of one trial. `path`: its folder in the memory hierarchy; `freezer`: in v1's freezer hierarchy."""

    backend: str
    path: Path
    freezer: Path | None = None
    limit: int | None = None

    @property
    def enter_paths(self) -> tuple[str, ...]:
        """Files a process writes `0` to in order to enter; before its exec."""
        folders = (self.path,) if self.freezer is None else (self.path, self.freezer)
        return tuple(str(folder / "cgroup.procs") for folder in folders)

    def enter(self, pid: int) -> None:
        """Move a process in. Raise `CgroupError` with the path that refused."""
        for path in self.enter_paths:
            try:
                Path(path).write_text(str(pid))
            except OSError as error:
                raise CgroupError(f"{path}: process {pid} cannot enter: {error.strerror}") from error

    def pids(self) -> frozenset[int]:
        """Processes in it and in cgroups below it (an arm may divide its own)."""
        found: set[int] = set()
        for folder in (self.path, *_below(self.path)):
            found.update(int(word) for word in _words(folder / "cgroup.procs"))
        return frozenset(found)

    def usage(self) -> int | None:
        """Bytes charged now."""
        return _number(self.path / _FILES[self.backend][0])

    def mark(self) -> int | None:
        """Largest number of bytes charged; None before Linux 5.19 with v2."""
        return _number(self.path / _FILES[self.backend][1])

    def oom_kills(self) -> int | None:
        """Processes that the kernel killed here for want of memory; None if it does not count them."""
        name = "memory.events" if self.backend == "cgroup_v2" else "memory.oom_control"
        return _table(self.path / name).get("oom_kill")

    def pressure(self) -> Mapping[str, str]:
        """Pressure stall lines of the cgroup (v2 only), by resource."""
        found = {}
        for resource in ("cpu", "memory", "io"):
            with contextlib.suppress(OSError):
                found[resource] = (self.path / f"{resource}.pressure").read_text()
        return found

    def gauge_config(self) -> dict[str, Any]:
        """What the sampler needs to read it."""
        usage, mark, _, _ = _FILES[self.backend]
        return {
            "version": 2 if self.backend == "cgroup_v2" else 1,
            "usage": str(self.path / usage),
            "mark": str(self.path / mark),
            "stat": str(self.path / "memory.stat"),
            "procs": str(self.path / "cgroup.procs"),
        }

    def kill(self) -> int:
        """End every process in it by SIGKILL; the number of processes signalled (v2: found before)."""
        if self.backend == "cgroup_v2" and (self.path / "cgroup.kill").exists():
            count = len(self.pids())
            with contextlib.suppress(OSError):
                (self.path / "cgroup.kill").write_text("1")
                return count
        # Frozen, nothing can fork away from under the signals.
        self._freeze("FROZEN")
        found = self.pids()
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._freeze("THAWED")
        return len(found)

    def _freeze(self, state: str) -> None:
        if self.freezer is not None:
            with contextlib.suppress(OSError):
                (self.freezer / "freezer.state").write_text(state)
        elif self.backend == "cgroup_v2":
            with contextlib.suppress(OSError):
                (self.path / "cgroup.freeze").write_text("1" if state == "FROZEN" else "0")

    def remove(self, within_s: float = _REMOVE_S) -> str | None:
        """Remove it and what an arm made below it; None, or why it is still there."""
        for folder in (self.path, self.freezer):
            problem = _remove(folder, within_s) if folder is not None else None
            if problem:
                return problem
        return None


def _below(folder: Path) -> list[Path]:
    """Cgroups below, deepest first."""
    try:
        inner = [each for each in folder.iterdir() if each.is_dir()]
    except OSError:
        return []
    return [found for each in inner for found in (*_below(each), each)]


def _remove(folder: Path, within_s: float) -> str | None:
    until = time.monotonic() + within_s
    while True:
        try:
            for each in (*_below(folder), folder):
                each.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if time.monotonic() > until:
                left = ", ".join(_words(folder / "cgroup.procs")) or "none"
                return f"{folder} cannot be removed: {error.strerror} (processes in it: {left})"
            time.sleep(0.01)
        else:
            return None


def create(backend: Backend, word: str, limit_bytes: int | None = None) -> TrialCgroup:
    """Make a fresh cgroup. With a limit, swap is shut off too: a limit that pages out is no limit of memory."""
    if backend.parent is None:
        raise CgroupError(f"no cgroup can be made: {backend.why}")
    name = f"{PREFIX}{os.getpid()}-{word}"
    path = backend.parent / name
    freezer = backend.freezer / name if backend.freezer is not None else None
    try:
        path.mkdir()
    except OSError as error:
        raise CgroupError(f"{path} cannot be made: {error.strerror}") from error
    if freezer is not None:
        try:
            freezer.mkdir()
        except OSError:
            freezer = None
    group = TrialCgroup(backend=backend.name, path=path, freezer=freezer, limit=limit_bytes)
    if limit_bytes is not None:
        try:
            _limit(group, limit_bytes)
        except OSError as error:
            group.remove()
            raise CgroupError(f"{path} takes no limit of {limit_bytes} bytes: {error.strerror}") from error
    return group


def _limit(group: TrialCgroup, limit: int) -> None:
    _, _, limit_file, swap_file = _FILES[group.backend]
    (group.path / limit_file).write_text(str(limit))
    with contextlib.suppress(FileNotFoundError):
        # v1 counts memory and swap together, v2 swap alone.
        (group.path / swap_file).write_text("0" if group.backend == "cgroup_v2" else str(limit))


def cannot_limit(backend: Backend) -> str | None:
    """What this host lacks for a trial under a memory limit, found by setting one; None where it works."""
    if backend.parent is None:
        return f"no trial can run under a memory limit here: {backend.why}"
    try:
        group = create(backend, "limit", _TRIED_LIMIT)
    except CgroupError as error:
        return f"no trial can run under a memory limit here: {error}"
    taken = _number(group.path / _FILES[group.backend][2])
    problem = group.remove()
    if taken != _TRIED_LIMIT:
        return f"no trial can run under a memory limit here: {group.path} reads {taken} where {_TRIED_LIMIT} was set"
    return problem


def ceiling() -> int:
    """Memory of this host, bytes: a limit above it limits nothing."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def leftovers(backend: Backend) -> tuple[Path, ...]:
    """Cgroups of a harness that is no more."""
    if backend.parent is None:
        return ()
    found = []
    for folder in sorted(backend.parent.glob(f"{PREFIX}*")):
        match = _NAME.match(folder.name)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            found.append(folder)
    return tuple(found)


def adopt(backend: Backend, path: Path) -> TrialCgroup:
    """A leftover as an object, to end what is in it and remove it."""
    freezer = backend.freezer / path.name if backend.freezer is not None else None
    return TrialCgroup(
        backend=backend.name, path=path, freezer=freezer if freezer is not None and freezer.is_dir() else None
    )


class Gauge:
    """The sampler's view of a trial's cgroup: files kept open."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._v2 = config["version"] == 2
        self._usage = self._open(config["usage"], os.O_RDONLY)
        self._stat = self._open(config["stat"], os.O_RDONLY)
        # v2: a mark is begun anew for this very descriptor (Linux 6.12); v1: for all.
        self._mark = self._open(config["mark"], os.O_RDWR)
        if self._mark < 0:
            self._mark = self._open(config["mark"], os.O_RDONLY)
        self.resets = self._reset()

    @staticmethod
    def _open(path: str, flags: int) -> int:
        try:
            return os.open(path, flags | os.O_CLOEXEC)
        except OSError:
            return -1

    def _reset(self) -> bool:
        try:
            os.pwrite(self._mark, b"0", 0)
        except OSError:
            return False
        return True

    def line(self, *, reset: bool) -> str:
        """One `C` line of the samples file."""
        t = time.monotonic_ns()
        mark = self._read(self._mark)
        done = reset and self.resets and self._reset()
        usage = self._read(self._usage)
        anon, file, shmem = self._classes()
        return f"C {t},{usage},{mark},{anon},{file},{shmem},{int(done)}"

    def _read(self, fd: int) -> int:
        try:
            return int(os.pread(fd, 64, 0))
        except (OSError, ValueError):
            return -1

    def _classes(self) -> tuple[int, int, int]:
        try:
            words = os.pread(self._stat, 16384, 0).split()
            table = dict(zip(words[::2], words[1::2], strict=False))
        except OSError:
            return -1, -1, -1
        # v1's total_ lines hold what lies below too; its `cache` holds shared memory, as v2's `file` does.
        names = (b"anon", b"file", b"shmem") if self._v2 else (b"total_rss", b"total_cache", b"total_shmem")
        anon, file, shmem = (int(table.get(name, b"-1")) for name in names)
        return anon, file, shmem
