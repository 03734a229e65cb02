"""A weight as the package packs it, and as PyTorch's own kernel reads it."""

from __future__ import annotations

import torch
from int4_reference import Stored  # noqa: TC002 (as cheap as torch)

from cpu_int4.pack import PackedWeight, pack


def packed(weight: Stored, *, keep_halves: bool = False) -> PackedWeight:
    """The weight as the package packs it."""
    return pack(
        weight.qweight,
        weight.scales,
        weight.zeros,
        group_size=weight.group_size,
        keep_halves=keep_halves,
        repack_bytes=1 << 16,
    )


def kernel_reads(weight: PackedWeight, *, every: int = 1) -> torch.Tensor:
    """The weight [N, K/every] as PyTorch's own kernel multiplies by it: its product with rows of the identity."""
    rows = torch.eye(weight.k, dtype=torch.bfloat16)[::every].contiguous()
    mm = torch.ops.aten._weight_int4pack_mm_for_cpu
    return mm(rows, weight.packed, weight.group_size, weight.scales_and_zeros).t()
