"""What one process of an engine looks like from outside: threads and where they may run, allocator, mapped weights.

Meant for the settled moment, outside timed phases: `numa_maps` walks the process's page tables (like smaps).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from harness.run.facts import Facts, format_cpu_list, parse_cpu_list
from harness.units import KIB

#: Library names of allocators in /proc/PID/maps. A program linked statically against one shows none of them.
_ALLOCATORS = {
    "tcmalloc": re.compile(r"/libtcmalloc[^/]*\.so"),
    "jemalloc": re.compile(r"/libjemalloc[^/]*\.so"),
    "mimalloc": re.compile(r"/libmimalloc[^/]*\.so"),
    "tbbmalloc": re.compile(r"/libtbbmalloc_proxy[^/]*\.so"),
    "glibc": re.compile(r"/libc(?:\.so\.6|-2\.\d+\.so)"),
    "musl": re.compile(r"/(?:ld-musl-[^/]*|libc\.musl-[^/]*)\.so"),
}
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")


def engine_facts(pid: int, proc_root: Path = Path("/proc")) -> dict[str, Any]:
    """Facts of one live process as a JSON value; None with the reason in `missing` where the kernel does not tell.

    `affinity`: threads by the CPU list they may run on; `cpus`: all of those together. `allocator`: the one that
    serves malloc by what is mapped; `allocators`: all that are mapped. `malloc_trim`: whether that call means anything
    to it. `numa_policy`: mappings by policy; `numa_bytes`: bytes by node. `mapped_weights`: base names of weight files
    that are still mapped. Page faults and context switches are totals of all its threads so far.
    """
    facts = Facts(proc_root)
    base = f"/{pid}"
    found = {
        "pid": pid,
        "name": facts.text("name", f"{base}/comm"),
        **_threads(facts, base),
        **_faults(facts, base),
        **_mappings(facts, base),
        **_numa(facts, base),
    }
    ended = _ended(facts, base)
    missing = {name: ended or reason.replace(base, f"/proc{base}", 1) for name, reason in facts.missing.items()}
    return {**found, "missing": missing}


def _ended(facts: Facts, base: str) -> str | None:
    """Why a process that is no longer running shows nothing; None while it runs."""
    state = re.search(r"^State:\s*(\S)", facts.peek(f"{base}/status") or "", re.MULTILINE)
    if not facts.at(base).is_dir():
        return "the process is gone"
    return "the process is a zombie: it has ended and was not reaped yet" if state and state.group(1) in "ZX" else None


def _threads(facts: Facts, base: str) -> dict[str, Any]:
    """One reading of each thread's status. A thread that ends in between is simply not counted."""
    affinity: Counter[str] = Counter()
    switches = {"voluntary": 0, "involuntary": 0}
    counted = 0
    for text in _thread_texts(facts, base):
        allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", text, re.MULTILINE)
        affinity.update([allowed.group(1)] if allowed else [])
        for kind, name in (("voluntary", "voluntary"), ("involuntary", "nonvoluntary")):
            found = re.search(rf"^{name}_ctxt_switches:\s*(\d+)", text, re.MULTILINE)
            switches[kind] += int(found.group(1)) if found else 0
            counted += bool(found)
    names = facts.folders(f"{base}/task", "")
    cpus = format_cpu_list({cpu for allowed in affinity for cpu in parse_cpu_list(allowed)})
    hidden = "the threads' status files do not state it"
    return {
        "threads": facts.known("threads", len(names) or None, f"{base}/task lists no thread: the process is gone"),
        "affinity": facts.known("affinity", dict(sorted(affinity.items())) or None, hidden),
        "cpus": facts.known("cpus", cpus or None, hidden),
        "context_switches": facts.known("context_switches", switches if counted else None, hidden),
    }


def _thread_texts(facts: Facts, base: str) -> list[str]:
    paths = [f"{base}/task/{folder.name}/status" for folder in facts.folders(f"{base}/task", "")]
    return [text for path in paths if (text := facts.peek(path))]


def _faults(facts: Facts, base: str) -> dict[str, Any]:
    """Fields 10 and 12 of stat, counted behind the last bracket: a program's name may hold blanks and brackets."""
    text = facts.text("faults", f"{base}/stat")
    fields = (text or "").rpartition(")")[2].split()
    pair = {"minor": int(fields[7]), "major": int(fields[9])} if len(fields) > 9 else None
    return {"faults": facts.known("faults", pair, f"{base}/stat is too short")}


def _mappings(facts: Facts, base: str) -> dict[str, Any]:
    text = facts.text("allocators", f"{base}/maps")
    if text is None:
        for name in ("allocator", "malloc_trim", "mapped_weights"):
            facts.unknown(name, facts.missing["allocators"])
        return {"allocator": None, "allocators": None, "malloc_trim": None, "mapped_weights": None}
    files = {found.group(1) for line in text.splitlines() if (found := re.search(r"\s(/.*)$", line))}
    present = [name for name, pattern in _ALLOCATORS.items() if any(pattern.search(file) for file in files)]
    serving = present[0] if present else None  # a preloaded one stands before the C library's own
    static = "no known allocator is mapped as a library: the program is linked statically, or has one of its own"
    weights = sorted(Path(file.removesuffix(" (deleted)")).name for file in files if _is_weights(file))
    return {
        "allocator": facts.known("allocator", serving, static),
        "allocators": present,
        "malloc_trim": facts.known("malloc_trim", None if serving is None else serving == "glibc", static),
        "mapped_weights": weights,
    }


def _is_weights(file: str) -> bool:
    return file.removesuffix(" (deleted)").endswith(_WEIGHTS)


def _numa(facts: Facts, base: str) -> dict[str, Any]:
    """`<address> <policy> ... N0=<pages> ... kernelpagesize_kB=<size>`, one mapping a line."""
    text = facts.text("numa_policy", f"{base}/numa_maps")
    if text is None:
        facts.unknown("numa_bytes", facts.missing["numa_policy"])
        return {"numa_policy": None, "numa_bytes": None}
    policies: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for line in text.splitlines():
        pieces = line.split()
        policies.update(pieces[1:2])
        size = re.search(r"kernelpagesize_kB=(\d+)", line)
        for node, pages in re.findall(r"\bN(\d+)=(\d+)", line):
            held[node] += int(pages) * (int(size.group(1)) if size else 4) * KIB
    return {"numa_policy": dict(sorted(policies.items())), "numa_bytes": dict(sorted(held.items()))}
