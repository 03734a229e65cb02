"""The processor part of a host's fingerprint: model, instruction sets, topology, caches, frequency policy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.run.facts import Facts, format_cpu_list, parse_cpu_list

_CPU = "/sys/devices/system/cpu"

#: Flags of /proc/cpuinfo that compiled code chooses a kernel by. The rest (mitigations, power, virtualisation) changes
#: with the running kernel on one and the same processor, so it may not be part of an identity.
_ISA = re.compile(
    r"(?:(?:sse|pni$|ssse|avx|amx|fma|f16c|bmi|popcnt|gfni|vaes|vpclmul|sha_ni|movbe|adx)"  # x86
    r"|(?:asimd|sve|sme(?!p)|i8mm|bf16|fphp|fcma|atomics|jscvt))"  # ARM; `smep` is an x86 guard of the kernel
)

#: Arm's own part numbers, Main ID Register: the cores that servers are built from.
_ARM_PARTS = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
_ARM_VENDORS = {"0x41": "ARM", "0x48": "HiSilicon", "0x51": "Qualcomm", "0x61": "Apple", "0xc0": "Ampere"}


def cpu_facts(facts: Facts, architecture: str) -> dict[str, Any]:
    """Everything about the processors. Sizes in bytes, frequencies in Hz; None where `facts.missing` has the reason."""
    blocks = parse_cpuinfo(facts.text("cpu.cpuinfo", "/proc/cpuinfo") or "")
    flags = sorted(set((_field(blocks, "flags") or _field(blocks, "Features") or "").split()))
    found: dict[str, Any] = {
        "architecture": architecture,
        **_names(facts, blocks),
        "flags": facts.known("cpu.flags", flags or None, "/proc/cpuinfo has neither `flags` nor `Features`"),
        "isa": [flag for flag in flags if _ISA.match(flag)] if flags else None,
        **_topology(facts, blocks),
        "caches": _caches(facts),
        **_frequency(facts),
        "isolated": facts.peek(f"{_CPU}/isolated") or "",
    }
    if found["isa"] is None:
        facts.unknown("cpu.isa", facts.missing["cpu.flags"])
    return found


def parse_cpuinfo(text: str) -> list[dict[str, str]]:
    """/proc/cpuinfo as one map per processor; lines without a colon are skipped."""
    blocks: list[dict[str, str]] = []
    for chunk in re.split(r"\n\s*\n", text):
        pairs = [line.partition(":") for line in chunk.splitlines() if ":" in line]
        block = {name.strip(): value.strip() for name, _, value in pairs}
        if "processor" in block:
            blocks.append(block)
    return blocks


def _field(blocks: list[dict[str, str]], name: str) -> str | None:
    """The field's value; where processors of one host differ, all of them joined, so that a mixture is visible."""
    return _joined(block[name] for block in blocks if block.get(name))


def _joined(values: Iterable[str]) -> str | None:
    return " + ".join(sorted(set(values))) or None


def _names(facts: Facts, blocks: list[dict[str, str]]) -> dict[str, Any]:
    implementer, part = _field(blocks, "CPU implementer"), _field(blocks, "CPU part")
    arm = f"{_ARM_PARTS.get(part or '', 'part ' + (part or '?'))}" if implementer else None
    values = {
        "model": _field(blocks, "model name") or arm,
        "vendor": _field(blocks, "vendor_id") or (_ARM_VENDORS.get(implementer, implementer) if implementer else None),
        "family": _field(blocks, "cpu family") or _field(blocks, "CPU architecture"),
        "model_number": _field(blocks, "model") or part,
        "stepping": _field(blocks, "stepping") or _field(blocks, "CPU revision"),
        "microcode": _field(blocks, "microcode"),
    }
    hidden = f"/proc/cpuinfo does not state it ({len(blocks)} processors listed)"
    return {name: facts.known(f"cpu.{name}", value, hidden) for name, value in values.items()}


def _topology(facts: Facts, blocks: list[dict[str, str]]) -> dict[str, Any]:
    """Counts of online processors. Siblings come from sysfs, else from /proc/cpuinfo's physical and core ids."""
    online = _cpu_list(facts.text("cpu.online", f"{_CPU}/online"))
    present = _cpu_list(facts.text("cpu.present", f"{_CPU}/present"))
    threads = len(online) if online else len(blocks) or None
    siblings = core_siblings(facts)
    cores: set[object] = set(siblings)
    packages: set[str] = set()
    for folder in facts.folders(_CPU, "cpu"):
        package = _read(folder / "topology/physical_package_id")
        packages |= {package} if package and package != "-1" else set()
    if not cores:
        cores = {f"{b['physical id']}/{b['core id']}" for b in blocks if "physical id" in b and "core id" in b}
        packages = {b["physical id"] for b in blocks if "physical id" in b}
    hidden = "neither sysfs topology nor /proc/cpuinfo states it"
    smt = facts.peek(f"{_CPU}/smt/active")
    active = smt == "1" if smt else (threads > len(cores) if threads and cores else None)
    return {
        "online": format_cpu_list(online) if online else None,
        "present": format_cpu_list(present) if present else None,
        "threads": facts.known("cpu.threads", threads, hidden),
        "cores": facts.known("cpu.cores", len(cores) or None, hidden),
        "sockets": facts.known("cpu.sockets", len(packages) or None, hidden),
        "smt": facts.known("cpu.smt", active, hidden),
        "one_thread_a_core": format_cpu_list([min(core) for core in siblings]) or None,
    }


def core_siblings(facts: Facts) -> set[tuple[int, ...]]:
    """The CPUs of each core, once a core, by sysfs; empty where it does not tell."""
    found = set()
    for folder in facts.folders(_CPU, "cpu"):
        names = ("topology/core_cpus_list", "topology/thread_siblings_list")  # the older name is the second
        found.add(next((cpus for name in names if (cpus := _cpu_list(_read(folder / name)))), ()))
    return found - {()}


def _cpu_list(text: str | None) -> tuple[int, ...]:
    try:
        return parse_cpu_list(text or "")
    except ValueError:
        return ()


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _caches(facts: Facts) -> list[dict[str, Any]] | None:
    """Each kind of cache once: level, type, bytes of one, how many of them the host has."""
    instances: dict[tuple[int, str, int], set[str]] = {}
    for folder in facts.folders(_CPU, "cpu"):
        for index in facts.folders(f"{_CPU}/{folder.name}/cache", "index"):
            level, kind, size = _read(index / "level"), _read(index / "type"), _read(index / "size")
            if level and kind and size and size.rstrip("KM").isdigit():
                factor = {"K": 1024, "M": 1024**2}.get(size[-1], 1)  # sysfs writes K and means KiB
                key = (int(level), kind.lower(), int(size.rstrip("KM")) * factor)
                instances.setdefault(key, set()).add(_read(index / "shared_cpu_list") or folder.name)
    found = [{"level": level, "type": kind, "bytes": size, "count": len(shared)}
             for (level, kind, size), shared in sorted(instances.items())]  # fmt: skip
    return facts.known("cpu.caches", found or None, f"{_CPU}/cpu*/cache states none")


def _frequency(facts: Facts) -> dict[str, Any]:
    """The policy, not the moment's reading: that wanders, and is a counter of disturbance."""
    policies = [folder / "cpufreq" for folder in facts.folders(_CPU, "cpu") if (folder / "cpufreq").is_dir()]
    hidden = f"{_CPU}/cpu*/cpufreq does not exist: the hypervisor or the firmware sets the frequency"

    def all_of(name: str) -> list[str]:
        return [text for policy in policies if (text := _read(policy / name))]

    least = [int(text) * 1000 for text in all_of("scaling_min_freq") if text.isdigit()]  # sysfs counts in kHz
    most = [int(text) * 1000 for text in all_of("scaling_max_freq") if text.isdigit()]
    values = {
        "governor": _joined(all_of("scaling_governor")),
        "frequency_driver": _joined(all_of("scaling_driver")),
        "min_hz": min(least, default=None),
        "max_hz": max(most, default=None),
    }
    found: dict[str, Any] = {name: facts.known(f"cpu.{name}", value, hidden) for name, value in values.items()}
    no_turbo, boost = facts.peek(f"{_CPU}/intel_pstate/no_turbo"), facts.peek(f"{_CPU}/cpufreq/boost")
    turbo = no_turbo == "0" if no_turbo else boost == "1" if boost else None
    reason = "neither intel_pstate/no_turbo nor cpufreq/boost exists"
    return {**found, "turbo": facts.known("cpu.turbo", turbo, reason)}
