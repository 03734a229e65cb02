"""From a checkpoint's tensors to what the kernel reads, a few rows at a time.

Packing expands each 4-bit code to int32, eight times the packed form: 1 GiB for an embedding of 131072 x 2048. Blocks
of channels are independent, so the expansion goes block by block and stays within a few MiB, byte for byte the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cpu_int4.format import GROUP_SIZES, ROWS_MULTIPLE
from cpu_int4.layout import convert, panels, probe, supports_direct_dequant, to_split_halves, unpack_nibbles


@dataclass(frozen=True)
class PackedWeight:
    """One weight [N, K] as the operators of this package take it."""

    packed: torch.Tensor  # uint8 [N, K/2] by shape; by bytes as `cpu_int4.layout` says
    scales_and_zeros: torch.Tensor  # bfloat16 [K/g, N, 2]: w = (q - 8) * scale + zero
    halves: torch.Tensor | None  # uint8 [N, K/2], the copy in panels; None where the packed bytes are read back
    n: int  # output channels
    k: int  # inputs
    group_size: int  # g: inputs that share a scale and a zero


def pack(
    qweight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    group_size: int,
    keep_halves: bool,
    repack_bytes: int,
    name: str = "weight",
) -> PackedWeight:
    """Pack qweight uint8 [N, K/2] (even k in the low nibble) with scales and zeros bfloat16 [N, K/g].

    `keep_halves` asks for the copy in halves; a weight that cannot be read back out of the kernel's layout (N no
    multiple of its block) keeps it in any case. `repack_bytes` bounds what is allocated beyond the result, but one
    block is the least; 0 packs the whole matrix at once. `name` stands in errors. Raises ValueError where shape, dtype
    or values cannot be packed.
    """
    _check(qweight, scales, zeros, group_size, name)
    n, k = qweight.shape[0], qweight.shape[1] * 2
    copied = keep_halves or not supports_direct_dequant(n, probe())
    return PackedWeight(
        packed=_repack(qweight, repack_bytes),
        scales_and_zeros=torch.stack((scales.t(), zeros.t()), dim=-1),
        halves=_copy_in_halves(qweight, repack_bytes) if copied else None,
        n=n,
        k=k,
        group_size=group_size,
    )


def repack_chunks(n: int, k: int, repack_bytes: int) -> list[slice]:
    """Runs of whole blocks that cover n channels of k inputs, each repacked within `repack_bytes`, the last ragged.

    A weight takes 4 bytes as an int32 code, half a byte for each of its nibbles while they are spread, and half a byte
    once packed, when one of the nibbles is gone. What an allocator keeps of freed scratch (up to 2 MiB were seen) is
    beside it.
    """
    layout = probe()
    if repack_bytes == 0 or layout.pairing == "opaque":  # blocks that we do not know may not be cut
        return [slice(0, n)]
    step = max(1, repack_bytes // (5 * k * layout.block)) * layout.block
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _repack(qweight: torch.Tensor, repack_bytes: int) -> torch.Tensor:
    """The kernel's own bytes, uint8 [N, K/2]."""
    packed = torch.empty_like(qweight, memory_format=torch.contiguous_format)
    cut = repack_chunks(qweight.shape[0], qweight.shape[1] * 2, repack_bytes)
    scratch = torch.empty((cut[0].stop, qweight.shape[1] * 2), dtype=torch.int32)
    for rows in cut:
        codes = scratch[: rows.stop - rows.start]
        for parity, nibble in enumerate(unpack_nibbles(qweight[rows])):
            codes[:, parity::2] = nibble
        packed[rows] = convert(codes)
    return packed


def _copy_in_halves(qweight: torch.Tensor, repack_bytes: int) -> torch.Tensor:
    """The copy in panels, uint8 [N, K/2]; also cut along K, as a panel alone may pass the bound: 2 bytes a weight."""
    halves = torch.empty_like(qweight, memory_format=torch.contiguous_format)
    k = qweight.shape[1] * 2
    for rows in panels(qweight.shape[0], k):
        width = rows.stop - rows.start
        panel = halves[rows].view(k, width // 2)
        step = max(1, repack_bytes // (4 * width)) * 2 if repack_bytes else k
        for start in range(0, k, step):
            stop = min(start + step, k)
            panel[start:stop] = to_split_halves(qweight[rows, start // 2 : stop // 2]).view(-1, width // 2)
    return halves


def _check(qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int, name: str) -> None:
    if group_size not in GROUP_SIZES:
        raise ValueError(f"{name}: group size {group_size} is not supported; the kernel knows {GROUP_SIZES}")
    if qweight.dtype != torch.uint8 or qweight.dim() != 2 or not qweight.numel():
        raise ValueError(f"{name}: qweight is {qweight.dtype} {tuple(qweight.shape)}; wanted is uint8 [N, K/2]")
    n, k = qweight.shape[0], qweight.shape[1] * 2
    if n % ROWS_MULTIPLE:
        raise ValueError(
            f"{name}: {n} output channels are no multiple of {ROWS_MULTIPLE}, as the kernel wants; leave it in bf16"
        )
    if k % group_size:
        raise ValueError(f"{name}: {k} inputs are no multiple of the group size {group_size}; leave it in bf16")
    for what, tensor in (("scales", scales), ("zeros", zeros)):
        _check_groups(tensor, (n, k // group_size), f"{name}: {what}")


def _check_groups(tensor: torch.Tensor, shape: tuple[int, int], what: str) -> None:
    if tensor.dtype != torch.bfloat16 or tensor.shape != shape:
        raise ValueError(f"{what} are {tensor.dtype} {tuple(tensor.shape)}; wanted is bfloat16 {list(shape)}")
    # the extremes carry NaN and inf along and, unlike isfinite, allocate nothing of the tensor's size
    if not all(math.isfinite(bound) for bound in tensor.aminmax()):
        raise ValueError(f"{what} hold inf or NaN at row, group {_first_not_finite(tensor)}")


def _first_not_finite(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(torch.isfinite(tensor).logical_not().nonzero()[0].tolist())
