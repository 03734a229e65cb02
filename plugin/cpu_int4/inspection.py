"""`cpu-int4 inspect`: what a checkpoint holds. Headers and the manifest suffice; weights are read only to verify."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpu_int4 import format as fmt
from cpu_int4.opened import Opened
from cpu_int4.selection import grouped, is_embedding, kind, tied


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A checkpoint in numbers. Sizes in bytes; bits a weight include scales and zeros."""

    group_size: int
    quantize_embedding: bool
    tied: bool
    modules: Mapping[str, tuple[int, int]]  # quantized module -> its weight's [N, K]
    left: Mapping[str, str]  # module in bfloat16 -> reason
    quantized_weights: int  # count
    quantized_bytes: int
    other_weights: int  # count
    other_bytes: int
    shards: int

    @property
    def bits_quantized(self) -> float:
        """Bits a weight of the quantized modules."""
        return 8 * self.quantized_bytes / self.quantized_weights

    @property
    def bits_model(self) -> float:
        """Bits a weight of the whole model."""
        return 8 * (self.quantized_bytes + self.other_bytes) / (self.quantized_weights + self.other_weights)


def summarise(opened: Opened) -> Summary:
    """Count what the manifest lists."""
    modules, entries = opened.checkpoint.quantized, opened.checkpoint.tensors
    parts = {name for module in modules for name in fmt.part_names(module)}
    sizes = {name: math.prod(entry.shape) * fmt.DTYPE_BYTES[entry.dtype] for name, entry in entries.items()}
    return Summary(
        group_size=opened.settings.group_size,
        quantize_embedding=opened.settings.quantize_embedding,
        tied=tied(opened.source.config),
        modules=modules,
        left=opened.left,
        quantized_weights=sum(n * k for n, k in modules.values()),
        quantized_bytes=sum(size for name, size in sizes.items() if name in parts),
        other_weights=sum(math.prod(entry.shape) for name, entry in entries.items() if name not in parts),
        other_bytes=sum(size for name, size in sizes.items() if name not in parts),
        shards=len({entry.file for entry in entries.values()}),
    )


def document(summary: Summary, *, verified: bool) -> dict[str, Any]:
    """The summary for programs. `verified`: all checksums were compared and agreed."""
    return {
        "quant_method": fmt.QUANT_METHOD,
        "format_version": fmt.FORMAT_VERSION,
        "group_size": summary.group_size,
        "bits_per_weight": {"quantized": summary.bits_quantized, "model": summary.bits_model},
        "bytes": {"quantized": summary.quantized_bytes, "other": summary.other_bytes},
        "weights": {"quantized": summary.quantized_weights, "other": summary.other_weights},
        "shards": summary.shards,
        "tied": summary.tied,
        "quantize_embedding": summary.quantize_embedding,
        "quantized": {module: list(shape) for module, shape in summary.modules.items()},
        "left_in_bf16": dict(summary.left),
        "verified": verified,
    }


def text(summary: Summary) -> str:
    """The summary for people."""
    modules = summary.modules
    total = summary.quantized_bytes + summary.other_bytes
    head = "embedding, which is the head too" if summary.tied else "embedding"
    embedded = any(is_embedding(module) for module in summary.modules)
    lines = [
        f"cpu_int4, format version {fmt.FORMAT_VERSION}: 4 bits, asymmetric, groups of {summary.group_size}",
        f"  bits a weight, scales and zeros included: {summary.bits_quantized:.3f} in {len(modules)} quantized modules",
        f"  bits a weight of the whole model: {summary.bits_model:.3f}",
        f"  size: {megabytes(total)} in {summary.shards} shard{'s' if summary.shards > 1 else ''}",
        f"    quantized {megabytes(summary.quantized_bytes)}, {summary.quantized_weights:,} weights",
        f"    in bf16 {megabytes(summary.other_bytes)}, {summary.other_weights:,} weights",
        f"  {head}: {'quantized' if embedded else 'in bf16'}",
        "quantized:",
    ]
    lines += [f"  {count:4} x {name} {n} x {k}" for (name, n, k), count in _kinds(summary.modules).items()]
    if summary.left:
        lines.append(f"left in bf16: {len(summary.left)} modules")
        lines += [f"  {count:4} x {name}: {reason}" for (name, reason), count in grouped(summary.left).items()]
    return "\n".join(lines)


def _kinds(modules: Mapping[str, tuple[int, int]]) -> dict[tuple[str, int, int], int]:
    counts: dict[tuple[str, int, int], int] = {}
    for module, (n, k) in modules.items():
        counts[kind(module), n, k] = counts.get((kind(module), n, k), 0) + 1
    return counts


def megabytes(size: int) -> str:
    """Bytes in words, decimal as disks count."""
    return f"{size / 1e6:,.1f} MB"
