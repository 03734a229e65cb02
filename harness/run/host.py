"""The fingerprint of a host: everything about it that can move a measurement, and an identity that does not wander.

Nothing in it names the machine or its people: no host name, user, path, serial number or network address.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.experiment.types import digest
from harness.run.facts import Facts, format_cpu_list, parse_cpu_list
from harness.run.host_cpu import core_siblings, cpu_facts
from harness.run.host_limits import cgroup_facts, memory_facts, numa_facts

#: Version of the fingerprint's shape.
#: 1 (2026-12-01): first.
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Here:
    """Facts that a process knows of itself, apart from /proc and /sys: replaced together with the root in tests.

    `architecture`: as uname says (`x86_64`, `aarch64`). `libc`: `glibc 2.39`. `compiler`: first line of its version,
    None if there is none. `allowed_cpus`: what the scheduler lets this process use.
    """

    architecture: str
    python: str
    libc: str | None
    page_bytes: int
    allowed_cpus: tuple[int, ...]
    compiler: str | None

    @classmethod
    def now(cls) -> Here:
        """This process, on this host. Runs the C compiler once, for its version."""
        return cls(
            architecture=platform.machine(),
            python=f"{platform.python_implementation()} {platform.python_version()}",
            libc=_libc(),
            page_bytes=os.sysconf("SC_PAGE_SIZE"),
            allowed_cpus=tuple(sorted(os.sched_getaffinity(0))),
            compiler=_compiler(),
        )


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # musl has no such name
        return None


def _compiler() -> str | None:
    """First line of `cc --version`: what torch's compiler and the plugin's build would take."""
    program = next((found for name in ("c++", "g++", "cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, timeout=10, check=True, env={"LC_ALL": "C", "PATH": os.defpath}
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").partition("\n")[0].strip() or None


def fingerprint(root: Path = Path("/"), *, here: Here | None = None) -> dict[str, Any]:
    """The host as a JSON value. Every item that cannot be read is None, and `missing` says why under its dotted path.

    `root`: where /proc, /sys and /etc are; tests give a made-up one. Bytes, Hz; CPU sets in the kernel's list format.
    """
    facts, here = Facts(root), here or Here.now()
    cpu = cpu_facts(facts, here.architecture)
    found = {
        "format": FORMAT,
        "host_id": host_id(cpu),
        "machine": _machine(facts),
        "cpu": cpu,
        "allowed_cpus": format_cpu_list(here.allowed_cpus),
        "usable_cores": facts.known("usable_cores", _usable_cores(facts, here, cpu), "the number of cores is unknown"),
        "memory": memory_facts(facts, here.page_bytes),
        "numa": numa_facts(facts),
        "cgroup": cgroup_facts(facts),
        "kernel": _kernel(facts, cpu),
        "software": _software(facts, here),
    }
    return {**found, "missing": dict(sorted(facts.missing.items()))}


def conditions(found: Mapping[str, Any]) -> dict[str, Any]:
    """The flat names by which a claim may ask for a host (`host: {isa: amx_bf16, cores: 32}`), of a fingerprint.

    `cores` are those that the run may use, not those that the host has: a claim for 32 cores holds on 32 of 112.
    """
    cpu, memory = found["cpu"], found["memory"]
    return {
        "host_id": found["host_id"],
        "cpu_flags": cpu["flags"],
        "cores": found["usable_cores"],
        "one_thread_a_core": parse_cpu_list(cpu.get("one_thread_a_core") or "") or None,
        **{name: cpu[name] for name in ("architecture", "vendor", "model", "threads", "sockets", "smt", "turbo")},
        "governor": cpu["governor"],
        "thp": memory["thp"],
        "page_bytes": memory["page_bytes"],
        "memory_bytes": memory["total_bytes"],
        "kernel": found["kernel"]["release"],
        "virtual": found["kernel"]["virtual"],
        "cgroup": found["cgroup"]["version"],
    }


def _usable_cores(facts: Facts, here: Here, cpu: dict[str, Any]) -> int | None:
    """Cores of which at least one thread is allowed; without the siblings, no more than are allowed."""
    allowed, cores = set(here.allowed_cpus), 0
    for siblings in core_siblings(facts):
        cores += bool(allowed & set(siblings))
    return cores or (min(len(allowed), cpu["cores"]) if cpu["cores"] else None)


def host_id(cpu: dict[str, Any]) -> str:
    """16 hex digits that stay the same over reboots, kernel and microcode updates, load and settings: the processor as
    compiled code sees it and how many of them. Two hosts bought alike share it; `machine` tells them apart where it is
    known. Memory is no part of it: a balloon or a hot-plugged module moves MemTotal while a machine runs.
    """
    present = cpu["present"] and len(parse_cpu_list(cpu["present"]))
    stable = {
        "processor": [cpu[name] for name in ("architecture", "vendor", "model", "family", "model_number", "stepping")],
        "isa": cpu["isa"],
        "present": present or cpu["threads"],  # SMT switched off leaves them present
    }
    return digest(stable)[:16]


def _machine(facts: Facts) -> str | None:
    """A salted digest of the machine id: tells two hosts of one kind apart and reveals nothing of the id itself."""
    text = facts.text("machine", "/etc/machine-id")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        facts.unknown("machine", "/etc/machine-id holds no machine id")
        return None
    return hashlib.sha256(b"harness host identity\0" + text.encode()).hexdigest()[:16]


def _kernel(facts: Facts, cpu: dict[str, Any]) -> dict[str, Any]:
    flags, x86 = cpu["flags"] or [], cpu["architecture"] in {"x86_64", "i686", "amd64"}
    virtual = ("hypervisor" in flags) if x86 and flags else None
    names = [facts.peek(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    named = facts.peek("/sys/hypervisor/type") or " ".join(filter(None, names)) or None
    hypervisor = "none" if virtual is False else named if virtual else None
    unnamed = "a virtual machine (CPU flag `hypervisor`), but neither DMI nor /sys/hypervisor names what runs it"
    hidden = "only x86 tells a virtual machine by a CPU flag; here it is not known"
    clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    return {
        "release": facts.text("kernel.release", "/proc/sys/kernel/osrelease"),
        "virtual": facts.known("kernel.virtual", virtual, hidden),
        "hypervisor": facts.known("kernel.hypervisor", hypervisor, unnamed if virtual else hidden),
        "clock_source": facts.text("kernel.clock_source", clock),
        "aslr": facts.number("kernel.aslr", "/proc/sys/kernel/randomize_va_space"),
        "mitigations": _mitigations(facts),
    }


def _mitigations(facts: Facts) -> dict[str, str] | None:
    """Which processor faults the kernel works around: some cost several per cent, and they differ between hosts."""
    base = "/sys/devices/system/cpu/vulnerabilities"
    try:
        names = sorted(entry.name for entry in facts.at(base).iterdir())
    except OSError:
        names = []
    found = {name: text for name in names if (text := facts.peek(f"{base}/{name}"))}
    return facts.known("kernel.mitigations", found or None, f"{base} states none")


def _software(facts: Facts, here: Here) -> dict[str, Any]:
    return {
        "python": here.python,
        "libc": facts.known("software.libc", here.libc, "the C library does not state a version; it is not glibc"),
        "compiler": facts.known("software.compiler", here.compiler, "no C or C++ compiler is on the PATH"),
    }
