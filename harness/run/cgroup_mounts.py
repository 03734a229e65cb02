"""Where the cgroup hierarchies of this host lie, and how their files are read. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


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


class CgroupError(Exception):
    """A cgroup that cannot be made or used; the message names path and cause."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Names of the files in a memory cgroup, as this version of cgroups has them. `swap_limit`: with v1 memory and
    swap together, with v2 swap alone.
    """

    usage: str
    mark: str
    limit: str
    swap_limit: str


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo. `kind`: of file system. `root`: what of it is mounted. `point`: where."""

    kind: str
    root: str
    point: Path
    options: frozenset[str]


def mounts(proc: Path) -> list[Mount]:
    """Mounts as this process sees them; blanks in paths are written as octal numbers there."""
    found = []
    for line in (proc / "self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 6 or len(kind) < 3:
            continue
        root, point = (re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), part) for part in fields[3:5])
        found.append(Mount(kind[0], root, Path(point), frozenset(fields[5].split(",") + kind[2].split(","))))
    return found


def own_path(proc: Path, controller: str) -> str:
    """This process's cgroup in the hierarchy of `controller`; the empty word is v2's."""
    for line in (proc / "self/cgroup").read_text(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    raise CgroupError(f"/proc/self/cgroup names no hierarchy for {controller or 'cgroup v2'}")


def folder_of(mount: Mount, path: str) -> Path:
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


def words(path: Path) -> list[str]:
    """What a file holds, word by word; nothing where it cannot be read."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def number(path: Path) -> int | None:
    """The one number in a file; None where there is none or it cannot be read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no number either
        return None


def table(path: Path) -> dict[str, int]:
    """A file of `name number` lines."""
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    except OSError:
        return {}
