"""The unified hierarchy of cgroup v2 with its memory controller. Standard library only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from harness.run.cgroup_mounts import Backend, CgroupError, Files, folder_of, mounts, own_path, words

FILES: Final = Files(usage="memory.current", mark="memory.peak", limit="memory.max", swap_limit="memory.swap.max")


def find(proc: Path) -> Backend:
    """Where trial cgroups can be made, as far as reading tells. Raise `CgroupError` with the reason why not."""
    mount = next((each for each in mounts(proc) if each.kind == "cgroup2"), None)
    if mount is None:
        raise CgroupError("cgroup v2 is not mounted")
    own = folder_of(mount, own_path(proc, ""))
    if "memory" not in words(own / "cgroup.controllers"):
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
    if "memory" in words(control):
        return None
    try:
        control.write_text("+memory")
    except OSError as error:
        return f"{control} refuses memory: {error.strerror}"
    return None if "memory" in words(control) else f"{control} does not take memory"
