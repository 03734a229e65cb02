"""What would make a host quieter: settings that move a measurement, each with the command that changes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.run.counters import Counters
from harness.run.facts import parse_cpu_list
from harness.run.host_limits import UNLIMITED
from harness.units import format_bytes

#: A load above this, before anything was started, is somebody else's work. An idle host decays below 0.1; one process
#: that is busy all the time gives 1.
_QUIET_LOAD = 0.5


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing that would make the host quieter. `why`: what it does to a measurement; `do`: a command or setting."""

    what: str
    why: str
    do: str


def advice_for(host: Mapping[str, Any], counters: Counters) -> list[Advice]:
    """What would help on the host of that fingerprint, the settings that move most first."""
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
            do=f'name the CPUs in every arm, e.g. VLLM_CPU_OMP_THREADS_BIND: "{allowed}"',
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
