"""The memory (and freezer) hierarchy of cgroup v1. Standard library only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from harness.run.cgroup_mounts import Backend, CgroupError, Files, folder_of, mounts, own_path

FILES: Final = Files(
    usage="memory.usage_in_bytes",
    mark="memory.max_usage_in_bytes",
    limit="memory.limit_in_bytes",
    swap_limit="memory.memsw.limit_in_bytes",
)


def find(proc: Path) -> Backend:
    """Where trial cgroups can be made, as far as reading tells. Raise `CgroupError` with the reason why not."""
    mount = next((each for each in mounts(proc) if each.kind == "cgroup" and "memory" in each.options), None)
    if mount is None:
        raise CgroupError("no memory hierarchy of cgroup v1 is mounted")
    parent = folder_of(mount, own_path(proc, "memory"))
    freezer = None
    freezing = next((each for each in mounts(proc) if each.kind == "cgroup" and "freezer" in each.options), None)
    if freezing is not None:
        with contextlib.suppress(CgroupError):
            freezer = folder_of(freezing, own_path(proc, "freezer"))
    return Backend(
        name="cgroup_v1",
        why=f"the memory hierarchy of cgroup v1 at {mount.point} is writable",
        parent=parent,
        freezer=freezer,
    )
