"""What differs between a recorded host and provenance and those of now: sentences, for a resumed or repeated run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Conditions of a host that move numbers, as dotted paths of the fingerprint with the words for them.
_HOST_CONDITIONS = {
    "host_id": "processor (identity)",
    "machine": "machine",
    "cpu.model": "CPU model",
    "cpu.isa": "instruction sets",
    "cpu.microcode": "microcode",
    "cpu.cores": "cores",
    "cpu.threads": "online CPUs",
    "cpu.smt": "SMT",
    "cpu.governor": "frequency governor",
    "cpu.turbo": "turbo",
    "cpu.min_hz": "least frequency allowed",
    "cpu.max_hz": "largest frequency allowed",
    "usable_cores": "cores this process may use",
    "allowed_cpus": "CPUs this process may use",
    "memory.page_bytes": "page size",
    "memory.thp": "transparent huge pages",
    "memory.thp_defrag": "huge-page defragmentation",
    "memory.thp_shmem": "huge pages of shared memory",
    "memory.swap_total_bytes": "swap",
    "numa.balancing": "NUMA balancing",
    "cgroup.version": "cgroup version",
    "cgroup.cpu_quota_cores": "CPU quota",
    "cgroup.memory_limit_bytes": "memory limit",
    "cgroup.cpuset": "cpuset",
    "kernel.release": "kernel",
    "kernel.hypervisor": "hypervisor",
    "kernel.clock_source": "clock source",
    "kernel.aslr": "address space randomisation",
    "software.libc": "C library",
    "software.compiler": "compiler",
}
#: MemTotal moves by some MiB with the kernel and more with a balloon; beyond this fraction it is another size.
_MEMORY_FRACTION = 0.02


def host_differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A sentence for each condition in which two fingerprints differ; empty if they are of one host in one state."""
    found = [
        _sentence(words, _at(recorded, path), _at(now, path))
        for path, words in _HOST_CONDITIONS.items()
        if _at(recorded, path) != _at(now, path)
    ]
    then, there = _at(recorded, "memory.total_bytes"), _at(now, "memory.total_bytes")
    if (then is None) != (there is None) or (
        then and there and abs(then - there) > _MEMORY_FRACTION * max(then, there)
    ):
        found.append(_sentence("memory", then, there))
    return found


def provenance_differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A sentence for each version, source, environment, model or text that differs.

    The git state is not compared: the source digests say whether what runs is the same, a commit message does not.
    """
    found = []
    for group, words in (("versions", "version of"), ("sources", "sources of"), ("texts", "the text")):
        then, there = recorded.get(group) or {}, now.get(group) or {}
        named = then if group == "sources" else {**then, **there}  # a digest that older runs did not take is no change
        found += _map_differences(words, then, {name: value for name, value in there.items() if name in named})
    for name in _names(recorded.get("environments"), now.get("environments")):
        then, there = _at(recorded, f"environments.{name}") or {}, _at(now, f"environments.{name}") or {}
        if then.get("python") != there.get("python"):
            found.append(_sentence(f"Python of the {name} environment", then.get("python"), there.get("python")))
        for part, words in (("packages", "package"), ("local", "build of the package")):
            found += _map_differences(
                f"in the {name} environment, {words}", then.get(part) or {}, there.get(part) or {}
            )
    for name in _names(recorded.get("models"), now.get("models")):
        then, there = ((side.get("models") or {}).get(name) or {} for side in (recorded, now))
        if then.get("digest") != there.get("digest"):
            found.append(_sentence(f"content of the model {name}", then.get("digest"), there.get("digest")))
    return found


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What forbids to go on with a recorded run here: sentences, empty if host and provenance are the same.

    Both are `{"host": fingerprint, "provenance": provenance}`, as host.json holds them.
    """
    host = host_differences(recorded.get("host") or {}, now.get("host") or {})
    return host + provenance_differences(recorded.get("provenance") or {}, now.get("provenance") or {})


def _at(value: Mapping[str, Any], path: str) -> Any:
    """The item of a dotted path; None if any part of it is not there."""
    found: Any = value
    for piece in path.split("."):
        found = found.get(piece) if isinstance(found, Mapping) else None
    return found


def _names(*maps: Mapping[str, Any] | None) -> list[str]:
    return sorted(set().union(*(found or {} for found in maps)))


def _map_differences(words: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = _names(then, now)
    return [_sentence(f"{words} {n}", then.get(n), now.get(n)) for n in names if then.get(n) != now.get(n)]


def _sentence(what: str, then: Any, now: Any) -> str:
    if isinstance(then, list) and isinstance(now, list):
        lost, won = [v for v in then if v not in now], [v for v in now if v not in then]
        parts = [f"{', '.join(map(str, v))} only {when}" for v, when in ((lost, "then"), (won, "now")) if v]
        return f"{what}: {'; '.join(parts)}"
    return f"{what}: recorded {_shown(then)}, now {_shown(now)}"


def _shown(value: Any) -> str:
    text = "unknown" if value is None else str(value)
    return f"{text[:12]}..." if re.fullmatch(r"[0-9a-f]{64}", text) else text
