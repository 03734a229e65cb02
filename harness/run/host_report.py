"""What `harness host` says: what this host can measure, what it cannot and why, and what would make it quieter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.metrics import DISTURBANCE_COUNTERS
from harness.run.counters import Counters
from harness.run.disturbance import difference
from harness.run.facts import parse_cpu_list
from harness.run.host_limits import UNLIMITED
from harness.units import format_bytes

#: Load above this, before anything was started, is somebody else's work: half a CPU moves a two-CPU decode by a quarter.
_QUIET_LOAD = 0.5


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing that would make the host quieter. `why`: what it does to a measurement; `do`: a command or setting."""

    what: str
    why: str
    do: str


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """`can`: what this host can measure; `cannot`: the rest with its reason; `advice`: what would make it quieter."""

    can: tuple[str, ...]
    cannot: Mapping[str, str]
    advice: tuple[Advice, ...]


def abilities(
    fingerprint: Mapping[str, Any], counters: Counters, probes: Mapping[str, str | None] | None = None
) -> Abilities:
    """Judge a host by its fingerprint, one reading of its counters, and probes of other parts.

    `probes`: by name of what was tried (a memory back end, a field of /proc/PID/status), None where it works, else the
    reason why not.
    """
    later = replace(counters, at=counters.at + 1)  # one reading is enough to see what is hidden
    sample = difference(counters, later, own_cpu_s=0.0)
    found: dict[str, str | None] = {name: sample.missing.get(name) for name in DISTURBANCE_COUNTERS}
    found |= probes or {}
    cannot = {name: reason for name, reason in found.items() if reason is not None}
    cannot |= {f"host: {name}": reason for name, reason in fingerprint["missing"].items()}
    if fingerprint["kernel"]["virtual"] and counters.values.get("steal_s") == 0:
        cannot["steal (doubtful)"] = "0 since the start of a virtual machine: perhaps the hypervisor does not report it"
    can = tuple(name for name, reason in found.items() if reason is None)
    return Abilities(can=can, cannot=cannot, advice=tuple(_advice(fingerprint, counters)))


def _advice(host: Mapping[str, Any], counters: Counters) -> list[Advice]:
    return [
        *_frequency_advice(host["cpu"]),
        *_topology_advice(host),
        *_memory_advice(host),
        *_load_advice(host, counters),
    ]


def _frequency_advice(cpu: Mapping[str, Any]) -> list[Advice]:
    found = []
    if cpu["governor"] not in {None, "performance"}:
        found.append(Advice(
            what=f"the frequency governor is {cpu['governor']}",
            why="the clock follows the load: the first seconds of a phase run slower than the rest",
            do="sudo cpupower frequency-set --governor performance",
        ))  # fmt: skip
    if cpu["turbo"]:
        intel = "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
        other = "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
        found.append(Advice(
            what="turbo is on",
            why="the clock depends on temperature and on how many cores are busy: the order of trials can show",
            do=intel if cpu["frequency_driver"] in {"intel_pstate", "intel_cpufreq"} else other,
        ))  # fmt: skip
    return found


def _topology_advice(host: Mapping[str, Any]) -> list[Advice]:
    found, cpu = [], host["cpu"]
    if cpu["smt"]:
        found.append(Advice(
            what="two threads share a core (SMT)",
            why="a thread's speed depends on what its sibling does",
            do=f"bind one thread a core in every arm, e.g. VLLM_CPU_OMP_THREADS_BIND: \"{cpu['one_thread_a_core']}\";"
               " or: echo off | sudo tee /sys/devices/system/cpu/smt/control",
        ))  # fmt: skip
    nodes = host["numa"]["nodes"] or []
    if len(nodes) > 1:
        first = nodes[0]
        found.append(Advice(
            what=f"memory lies on {len(nodes)} NUMA nodes",
            why="where pages land decides the bandwidth, and it may differ from trial to trial",
            do=f"keep every arm on one node: bind its threads to {first['cpus']} and start the harness under numactl"
               f" --membind={first['node']}",
        ))  # fmt: skip
    if len(nodes) > 1 and host["numa"]["balancing"]:
        found.append(Advice(
            what="the kernel moves pages between NUMA nodes by itself",
            why="it faults pages on purpose while a phase is timed",
            do="echo 0 | sudo tee /proc/sys/kernel/numa_balancing",
        ))  # fmt: skip
    allowed, online = host["allowed_cpus"], cpu["online"]
    if online and allowed != online:
        found.append(Advice(
            what=f"this process may use the CPUs {allowed}, the host has {online}",
            why="an engine that counts the host's CPUs starts too many threads",
            do=f"name the CPUs in every arm, e.g. VLLM_CPU_OMP_THREADS_BIND: \"{allowed}\"",
        ))  # fmt: skip
    return found


def _memory_advice(host: Mapping[str, Any]) -> list[Advice]:
    found, memory = [], host["memory"]
    if memory["thp"] == "always":
        found.append(Advice(
            what="transparent huge pages are on for everything (always)",
            why="partly used huge pages count in full in RssAnon, and khugepaged changes it while nothing is allocated;"
                " two hosts with different modes are not compared on memory",
            do="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ))  # fmt: skip
    if memory["swap_total_bytes"]:
        found.append(Advice(
            what=f"there is swap ({format_bytes(memory['swap_total_bytes'])})",
            why="memory that is swapped out is missing in RssAnon, and reading it back is timed",
            do="sudo swapoff --all",
        ))  # fmt: skip
    limit = host["cgroup"]["memory_limit_bytes"]
    if isinstance(limit, int):
        found.append(Advice(
            what=f"a memory limit of {format_bytes(limit)} holds for this process",
            why="near it the kernel drops the page cache of the weights, and beyond it kills",
            do="raise the container's memory limit above the largest arm's peak plus the size of the model",
        ))  # fmt: skip
    return found


def _load_advice(host: Mapping[str, Any], counters: Counters) -> list[Advice]:
    found, quota = [], host["cgroup"]["cpu_quota_cores"]
    allowed = len(parse_cpu_list(host["allowed_cpus"]))
    if quota not in {None, UNLIMITED} and quota < allowed:
        found.append(Advice(
            what=f"a quota of {quota:g} CPUs holds for {allowed} allowed CPUs",
            why="threads are stopped in the middle of a kernel once the quota of 100 ms is used up",
            do="pin the container to whole CPUs (a cpuset) instead of a quota",
        ))  # fmt: skip
    load = counters.values.get("load_1min", 0.0)
    if load > _QUIET_LOAD:
        found.append(Advice(
            what=f"the load average is {load:g} before anything was started",
            why="other processes take CPU time and memory bandwidth from the arms",
            do="find and stop them: ps -eo pcpu,pid,comm --sort=-pcpu | head",
        ))  # fmt: skip
    if host["cgroup"]["version"] == "v2":
        found.append(Advice(
            what="memory of a trial is counted by the kernel only in a cgroup that was delegated",
            why="without it there is no upper bound on unique memory, and no survival limit",
            do="if the probes above say so: systemd-run --user --scope --property=Delegate=yes harness run FILE",
        ))  # fmt: skip
    if host["kernel"]["virtual"]:
        found.append(Advice(
            what="this is a virtual machine",
            why="neighbours take CPU time (steal), and frequency and thermal events are hidden",
            do="set a threshold in the experiment, e.g. disturbance: {steal_fraction: 0.01}, with repeat_passes: 2",
        ))  # fmt: skip
    return found


def host_lines(fingerprint: Mapping[str, Any], found: Abilities) -> list[str]:
    """The text of `harness host`, line by line, without colour."""
    cpu, memory, kernel = fingerprint["cpu"], fingerprint["memory"], fingerprint["kernel"]
    total = memory["total_bytes"]
    kind = {True: "virtual machine", False: "no virtual machine", None: "virtual or not: unknown"}[kernel["virtual"]]
    lines = [
        f"Host {fingerprint['host_id']}: {_or(cpu['model'])}, {_or(cpu['sockets'])} socket(s), {_or(cpu['cores'])} cores,"
        f" {_or(cpu['threads'])} CPUs online, {format_bytes(total) if total else 'unknown'} of memory",
        f"  Linux {_or(kernel['release'])}, {kind}, cgroup {_or(fingerprint['cgroup']['version'])},"
        f" huge pages {_or(memory['thp'])}, governor {_or(cpu['governor'])}",
        f"  instruction sets: {', '.join(cpu['isa'] or ['unknown'])}",
        "",
        "Can be measured here:",
        *(f"  {name}" for name in found.can),
        "",
        "Cannot be measured or is unknown here:",
        *(f"  {name}: {reason}" for name, reason in found.cannot.items()),
        "",
        "Would make it quieter (nothing was changed):",
    ]
    for advice in found.advice:
        lines += [f"  {advice.what}: {advice.why}", f"    {advice.do}"]
    return lines if found.advice else [*lines[:-1], "Nothing known would make it quieter."]


def _or(value: object) -> str:
    return "unknown" if value is None else str(value)


def host_json(fingerprint: Mapping[str, Any], found: Abilities, counters: Counters) -> dict[str, Any]:
    """What `harness host --json` prints: `{"host", "can", "cannot", "advice", "counters"}`."""
    return {
        "host": dict(fingerprint),
        "can": list(found.can),
        "cannot": dict(found.cannot),
        "advice": [asdict(advice) for advice in found.advice],
        "counters": {"values": dict(counters.values), "missing": dict(counters.missing)},
    }
