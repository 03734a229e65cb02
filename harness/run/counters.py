"""Readings of what a host counts: CPU time, pressure, faults, swap, throttling, frequency. Totals since boot."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.run.facts import Facts
from harness.run.host_limits import cgroup_version, own_cgroups


@dataclass(frozen=True, kw_only=True)
class Counters:
    """One reading of everything. `at`: CLOCK_MONOTONIC seconds. `values`: totals since boot by name, seconds or bytes
    as the name says; `missing`: why a name has none. Beside the names of `DISTURBANCE_COUNTERS`: `cpus` (online),
    `busy_s` (all CPUs, steal and idle excluded), `self_cpu_s` (this process), `children_cpu_s` (its reaped children and
    what those reaped).
    """

    at: float
    values: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path = Path("/"), *, clock: Callable[[], float] = time.monotonic) -> Counters:
        """Read the host below `root`. 0.5 ms here with 2 CPUs; never raises for what a host hides."""
        facts = Facts(root)
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        values = {
            **_cpu_times(facts),
            **_pressure(facts),
            **_vmstat(facts),
            **_load(facts),
            **_throttling(facts),
            **_frequency(facts),
            "self_cpu_s": own.ru_utime + own.ru_stime,
            "children_cpu_s": children.ru_utime + children.ru_stime,
        }
        known = {name: value for name, value in values.items() if value is not None}
        return cls(at=clock(), values=known, missing=dict(facts.missing))


def read_counters(root: Path = Path("/")) -> Counters:
    """`Counters.read` under the name of what it does."""
    return Counters.read(root)


def _cpu_times(facts: Facts) -> dict[str, float | None]:
    """Busy and stolen seconds, context switches, and the number of CPUs, of /proc/stat."""
    names = ("busy_s", "steal_s", "cpus", "context_switches")
    text = facts.peek("/proc/stat")
    line = re.search(r"^cpu +([\d ]+)$", text or "", re.MULTILINE)
    fields = [int(piece) for piece in line.group(1).split()] if line else []
    if len(fields) < 7 or not any(fields):
        # A sandbox kernel shows the file with zeros in it: an idle machine would show idle time.
        why = "is not there" if text is None else "counts no CPU time" if len(fields) < 7 else "is all zeros"
        for name in names:
            facts.unknown(name, f"/proc/stat {why}: this kernel hides it")
        return dict.fromkeys(names)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, *rest = fields  # guest time is in user and nice already
    steal = rest[0] * tick if rest else facts.known("steal_s", None, "/proc/stat has no column for steal")
    switches = re.search(r"^ctxt (\d+)$", text or "", re.MULTILINE)
    switched = int(switches.group(1)) if switches and int(switches.group(1)) else None
    return {
        "busy_s": (user + nice + system + irq + softirq) * tick,
        "steal_s": steal,
        "cpus": len(re.findall(r"^cpu\d+ ", text or "", re.MULTILINE)) or None,
        "context_switches": facts.known("context_switches", switched, "/proc/stat counts no context switches"),
    }


def _pressure(facts: Facts) -> dict[str, float | None]:
    """Stall seconds: `some avg10=... total=<microseconds>`."""
    found: dict[str, float | None] = {}
    for kind in ("cpu", "memory", "io"):
        name, path = f"psi_{kind}_some_s", f"/proc/pressure/{kind}"
        total = re.search(r"^some .*total=(\d+)", facts.text(name, path) or "", re.MULTILINE)
        found[name] = facts.known(name, int(total.group(1)) / 1e6 if total else None, f"{path} states no total")
    return found


def _vmstat(facts: Facts) -> dict[str, float | None]:
    page = os.sysconf("SC_PAGE_SIZE")
    fields = {
        "faults": ("pgfault", 1),
        "major_faults": ("pgmajfault", 1),
        "swap_in_bytes": ("pswpin", page),
        "swap_out_bytes": ("pswpout", page),
        "thp_faults": ("thp_fault_alloc", 1),
        "thp_collapses": ("thp_collapse_alloc", 1),
        "oom_kills": ("oom_kill", 1),
    }
    text = facts.peek("/proc/vmstat")
    read = dict(line.split(" ", 1) for line in (text or "").splitlines() if re.fullmatch(r"\w+ \d+", line))
    why = "/proc/vmstat does not exist on this kernel" if text is None else "/proc/vmstat has no line {}"
    return {
        name: facts.known(name, int(read[key]) * factor if key in read else None, why.format(key))
        for name, (key, factor) in fields.items()
    }


def _load(facts: Facts) -> dict[str, float | None]:
    text = facts.text("load_1min", "/proc/loadavg") or ""
    found = re.match(r"\d+\.\d+", text)
    return {"load_1min": facts.known("load_1min", float(found.group()) if found else None, "/proc/loadavg is no load")}


def _throttling(facts: Facts) -> dict[str, float | None]:
    """Thermal events of all cores and packages, and what a CPU quota took from our own cgroup."""
    counts = []
    for cpu in facts.folders("/sys/devices/system/cpu", "cpu"):
        for kind in ("core", "package"):
            text = facts.peek(f"/sys/devices/system/cpu/{cpu.name}/thermal_throttle/{kind}_throttle_count")
            counts += [int(text)] if text and text.isdigit() else []
    hidden = "/sys/devices/system/cpu/cpu*/thermal_throttle does not exist: no Intel processor, or a virtual machine"
    events = facts.known("throttle_events", sum(counts) if counts else None, hidden)
    return {"throttle_events": events, "quota_throttled_s": _quota_throttled(facts)}


def _quota_throttled(facts: Facts) -> float | None:
    for folder in own_cgroups(facts, "cpu")[:1]:
        text = facts.peek(f"{folder}/cpu.stat") or ""
        microseconds = re.search(r"^throttled_usec (\d+)$", text, re.MULTILINE)  # v2
        nanoseconds = re.search(r"^throttled_time (\d+)$", text, re.MULTILINE)  # v1
        if microseconds:
            return int(microseconds.group(1)) / 1e6
        if nanoseconds:
            return int(nanoseconds.group(1)) / 1e9
    version = cgroup_version(Facts(facts.root)) or "no"
    facts.unknown("quota_throttled_s", f"the cpu controller of this process's cgroup ({version}) keeps no such count")
    return None


def _frequency(facts: Facts) -> dict[str, float | None]:
    """Mean current frequency. /proc/cpuinfo's `cpu MHz` is no substitute: a virtual machine shows a constant there."""
    found = []
    for cpu in facts.folders("/sys/devices/system/cpu", "cpu"):
        text = facts.peek(f"/sys/devices/system/cpu/{cpu.name}/cpufreq/scaling_cur_freq")
        found += [int(text) * 1000] if text and text.isdigit() else []  # sysfs counts in kHz
    hidden = "/sys/devices/system/cpu/cpu*/cpufreq does not exist: the frequency is not shown to this system"
    return {"frequency_hz": facts.known("frequency_hz", sum(found) / len(found) if found else None, hidden)}
