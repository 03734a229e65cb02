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

from harness.run import cgroup_v1, cgroup_v2
from harness.run.cgroup_mounts import Backend, CgroupError, Files, number, table, words

__all__ = [
    "NONE",
    "Backend",
    "CgroupError",
    "TrialCgroup",
    "adopt",
    "cannot_limit",
    "ceiling",
    "create",
    "leftovers",
    "probe",
]

#: Names of our cgroups: prefix, pid of the harness that made it, a word.
PREFIX: Final = "harness-"
_NAME = re.compile(rf"{PREFIX}(\d+)-")
#: A cgroup whose last process was just reaped may stay busy for some milliseconds.
_REMOVE_S: Final = 2.0
_FILES: Final = {"cgroup_v2": cgroup_v2.FILES, "cgroup_v1": cgroup_v1.FILES}
NONE: Final = Backend(name="none", why="asked for")


def probe(proc: Path = Path("/proc"), only: str | None = None) -> Backend:
    """The best back end that works here: v2, then v1, then none. `only` leaves out the others."""
    tried: list[str] = []
    if only == "none":
        return NONE
    for name, find in (("cgroup_v2", cgroup_v2.find), ("cgroup_v1", cgroup_v1.find)):
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


@dataclass(frozen=True, kw_only=True)
class TrialCgroup:
    """The cgroup of one trial. `path`: its folder in the memory hierarchy; `freezer`: in v1's freezer hierarchy."""

    backend: str
    path: Path
    freezer: Path | None = None
    limit: int | None = None

    @property
    def _files(self) -> Files:
        return _FILES[self.backend]

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
            found.update(int(word) for word in words(folder / "cgroup.procs"))
        return frozenset(found)

    def usage(self) -> int | None:
        """Bytes charged now."""
        return number(self.path / self._files.usage)

    def mark(self) -> int | None:
        """Largest number of bytes charged; None before Linux 5.19 with v2."""
        return number(self.path / self._files.mark)

    def oom_kills(self) -> int | None:
        """Processes that the kernel killed here for want of memory; None if it does not count them."""
        name = "memory.events" if self.backend == "cgroup_v2" else "memory.oom_control"
        return table(self.path / name).get("oom_kill")

    def pressure(self) -> Mapping[str, str]:
        """Pressure stall lines of the cgroup (v2 only), by resource."""
        found = {}
        for resource in ("cpu", "memory", "io"):
            with contextlib.suppress(OSError):
                found[resource] = (self.path / f"{resource}.pressure").read_text()
        return found

    def gauge_config(self) -> dict[str, Any]:
        """What the sampler needs to read it."""
        return {
            "version": 2 if self.backend == "cgroup_v2" else 1,
            "usage": str(self.path / self._files.usage),
            "mark": str(self.path / self._files.mark),
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
                left = ", ".join(words(folder / "cgroup.procs")) or "none"
                return f"{folder} cannot be removed: {error.strerror} (processes in it: {left})"
            time.sleep(0.01)
        else:
            return None


#: Bytes of the limit that is set to see whether one can be: a whole number of pages everywhere.
_TRIED_LIMIT: Final = 1 << 28


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
    files = _FILES[group.backend]
    (group.path / files.limit).write_text(str(limit))
    with contextlib.suppress(FileNotFoundError):
        # v1 counts memory and swap together, v2 swap alone.
        (group.path / files.swap_limit).write_text("0" if group.backend == "cgroup_v2" else str(limit))


def cannot_limit(backend: Backend) -> str | None:
    """What this host lacks for a trial under a memory limit, found by setting one; None where it works."""
    if backend.parent is None:
        return f"no trial can run under a memory limit here: {backend.why}"
    try:
        group = create(backend, "limit", _TRIED_LIMIT)
    except CgroupError as error:
        return f"no trial can run under a memory limit here: {error}"
    taken = number(group.path / _FILES[group.backend].limit)
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
