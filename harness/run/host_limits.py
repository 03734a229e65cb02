"""What bounds a process on this host: memory, huge pages, swap, NUMA nodes, and the limits of its own cgroup."""

from __future__ import annotations

import re
from typing import Any

from harness.run.facts import Facts
from harness.units import KIB

#: A cgroup v1 without a limit states the largest page-aligned 63-bit number; anything near it means "none".
_V1_NO_LIMIT = 2**60
#: "No limit" must not look like "not readable", so it has a word of its own.
UNLIMITED = "unlimited"


def memory_facts(facts: Facts, page_bytes: int) -> dict[str, Any]:
    """Sizes in bytes; huge-page modes as the kernel names them."""
    info = facts.text("memory.total_bytes", "/proc/meminfo") or ""
    thp = "/sys/kernel/mm/transparent_hugepage"
    return {
        "total_bytes": _meminfo(facts, info, "memory.total_bytes", "MemTotal"),
        "swap_total_bytes": _meminfo(facts, info, "memory.swap_total_bytes", "SwapTotal"),
        "page_bytes": page_bytes,
        "thp": _chosen(facts, "memory.thp", f"{thp}/enabled"),
        "thp_defrag": _chosen(facts, "memory.thp_defrag", f"{thp}/defrag"),
        "thp_shmem": _chosen(facts, "memory.thp_shmem", f"{thp}/shmem_enabled"),
        "thp_khugepaged_pages": facts.number("memory.thp_khugepaged_pages", f"{thp}/khugepaged/pages_to_scan"),
        "swappiness": facts.number("memory.swappiness", "/proc/sys/vm/swappiness"),
        "overcommit": facts.number("memory.overcommit", "/proc/sys/vm/overcommit_memory"),
    }


def _meminfo(facts: Facts, info: str, name: str, field: str) -> int | None:
    found = re.search(rf"^{field}:\s*(\d+) kB", info, re.MULTILINE)
    value = int(found.group(1)) * KIB if found else None  # /proc says kB and means KiB
    return facts.known(name, value, f"/proc/meminfo has no line {field}")


def _chosen(facts: Facts, name: str, path: str) -> str | None:
    """`always [madvise] never` -> `madvise`."""
    text = facts.text(name, path)
    found = re.search(r"\[([^\]]+)\]", text or "")
    return facts.known(name, found.group(1) if found else None, f"{path} marks no mode as chosen")


def numa_facts(facts: Facts) -> dict[str, Any]:
    """The nodes with their CPUs and memory, and whether the kernel moves pages between them by itself."""
    nodes = []
    for folder in facts.folders("/sys/devices/system/node", "node"):
        base = f"/sys/devices/system/node/{folder.name}"
        total = re.search(r"MemTotal:\s*(\d+) kB", facts.peek(f"{base}/meminfo") or "")
        nodes.append({
            "node": int(folder.name[4:]),
            "cpus": facts.peek(f"{base}/cpulist") or "",
            "memory_bytes": int(total.group(1)) * KIB if total else None,
        })  # fmt: skip
    return {
        "nodes": facts.known("numa.nodes", nodes or None, "/sys/devices/system/node lists none"),
        "balancing": facts.number("numa.balancing", "/proc/sys/kernel/numa_balancing"),
    }


def cgroup_version(facts: Facts) -> str | None:
    """`v2`, `v1`, `hybrid` (v1 controllers beside a v2 tree), or None with the reason."""
    base = "/sys/fs/cgroup"
    if facts.at(f"{base}/cgroup.controllers").exists():
        return "v2"
    if any(facts.at(f"{base}/{name}").is_dir() for name in ("memory", "cpu", "cpu,cpuacct")):
        return "hybrid" if facts.at(f"{base}/unified/cgroup.controllers").exists() else "v1"
    return facts.known("cgroup.version", None, f"no cgroup file system is mounted at {base}")


def own_cgroups(facts: Facts, controller: str) -> list[str]:
    """Folders of this process's cgroup for that controller, innermost first, up to the root that is mounted here.

    A container may see its own group as the mounted root while /proc/self/cgroup names the path outside: then the
    root is all there is.
    """
    version = cgroup_version(facts)
    paths = dict(_membership(facts.peek("/proc/self/cgroup") or ""))
    if version is None:
        return []
    if version == "v2":
        base, path = "/sys/fs/cgroup", paths.get("", "/")
    else:
        names = [n for n in (controller, "cpu,cpuacct") if facts.at(f"/sys/fs/cgroup/{n}").is_dir()]
        if not names:
            return []
        base, path = f"/sys/fs/cgroup/{names[0]}", paths.get(controller, "/")
    pieces = [piece for piece in path.split("/") if piece and piece != ".."]
    chain = ["/".join([base, *pieces[:depth]]) for depth in range(len(pieces), -1, -1)]
    return [folder for folder in chain if facts.at(folder).is_dir()]


def _membership(text: str) -> list[tuple[str, str]]:
    """(controller, path) of each line of /proc/self/cgroup; the v2 line has the controller ''."""
    found = []
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found += [(controller, path) for controller in controllers.split(",")]
    return found


def cgroup_facts(facts: Facts) -> dict[str, Any]:
    """The limits that hold for this process: the tightest of its own cgroup and all above it. No path is recorded."""
    version = cgroup_version(facts)
    v2 = version == "v2"
    quotas = [_quota(facts, folder, v2=v2) for folder in own_cgroups(facts, "cpu")]
    limits = [_limit(facts, folder, v2=v2) for folder in own_cgroups(facts, "memory")]
    names = ("cpuset.cpus.effective",) if v2 else ("cpuset.effective_cpus", "cpuset.cpus")
    sets = [
        text for folder in own_cgroups(facts, "cpuset") for name in names if (text := facts.peek(f"{folder}/{name}"))
    ]
    hidden = facts.missing.get("cgroup.version", "this process's cgroup does not state it: the controller is not here")
    return {
        "version": version,
        "cpu_quota_cores": facts.known("cgroup.cpu_quota_cores", _tightest(quotas), hidden),
        "memory_limit_bytes": facts.known("cgroup.memory_limit_bytes", _tightest(limits), hidden),
        "cpuset": facts.known("cgroup.cpuset", next(iter(sets), None), hidden),
    }


def _tightest(found: list[float | str | None]) -> float | str | None:
    """The least number; UNLIMITED if every level that was readable says so; None if none was readable.

    The root cgroup of v2 has no limit files, so an unreadable level says nothing.
    """
    numbers = [value for value in found if isinstance(value, int | float)]
    return min(numbers) if numbers else next((value for value in found if value is not None), None)


def _quota(facts: Facts, folder: str, *, v2: bool) -> float | str | None:
    if v2:
        quota, _, period = (facts.peek(f"{folder}/cpu.max") or "").partition(" ")
    else:
        quota = facts.peek(f"{folder}/cpu.cfs_quota_us") or ""
        period = facts.peek(f"{folder}/cpu.cfs_period_us") or ""
    if quota in {"max", "-1"}:
        return UNLIMITED
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _limit(facts: Facts, folder: str, *, v2: bool) -> float | str | None:
    text = facts.peek(f"{folder}/{'memory.max' if v2 else 'memory.limit_in_bytes'}") or ""
    if text == "max" or (text.isdigit() and int(text) >= _V1_NO_LIMIT):
        return UNLIMITED
    return int(text) if text.isdigit() else None
