"""From a checkpoint's tensors to what the kernel reads, a few rows at a time.

Packing expands each 4-bit code to int32, eight times the packed form: 1 GiB for an embedding of 131072 x 2048. Blocks
of channels are independent, so the expansion goes block by block and stays within a few MiB, byte for byte the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cpu_int4.layout import OPAQUE, convert, probe, supports_direct_dequant, to_split_halves, unpack_nibbles

#: Groups that the kernel knows.
GROUP_SIZES = (32, 64, 128, 256)
#: The kernel packs channels sixteen at a time.
N_MULTIPLE = 16


@dataclass(frozen=True)
class PackedWeight:
    """One weight [N, K] as the operators of this package take it."""

    packed: torch.Tensor  # uint8 [N, K/2] by shape; by bytes as `cpu_int4.layout` says
    scales_and_zeros: torch.Tensor  # bfloat16 [K/g, N, 2]: w = (q - 8) * scale + zero
    halves: torch.Tensor | None  # uint8 [N, K/2], row-major copy; None where the packed bytes are read back directly
    n: int
    k: int
    group_size: int


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

    `keep_halves` asks for the row-major copy; a weight that cannot be read back out of the kernel's layout (N no
    multiple of the block) keeps it in any case. `repack_bytes` bounds what is allocated beyond the result (at least one
    block's worth; 0 packs the whole matrix at once). `name` stands in errors. Raises ValueError where shape, dtype or
    values cannot be packed.
    """
    _check(qweight, scales, zeros, group_size, name)
    n, k = qweight.shape[0], qweight.shape[1] * 2
    halved = keep_halves or not supports_direct_dequant(n, probe())
    packed = torch.empty_like(qweight, memory_format=torch.contiguous_format)
    halves = torch.empty_like(packed) if halved else None
    for rows in chunks(n, k, repack_bytes):
        packed[rows] = _pack_rows(qweight[rows])
        if halves is not None:
            halves[rows] = to_split_halves(qweight[rows], group_size)
    scales_and_zeros = torch.stack((scales.t(), zeros.t()), dim=-1).contiguous()
    return PackedWeight(packed, scales_and_zeros, halves, n, k, group_size)


def chunks(n: int, k: int, repack_bytes: int) -> list[slice]:
    """Runs of whole blocks that cover n channels of k inputs, the last one ragged, each within `repack_bytes`."""
    layout = probe()
    if repack_bytes == 0 or layout == OPAQUE:
        return [slice(0, n)]
    # 4 bytes an int32 code, half a byte for the nibbles being spread, half for the packed chunk
    blocks = max(1, repack_bytes // (5 * k * layout.block))
    step = blocks * layout.block
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _pack_rows(qweight: torch.Tensor) -> torch.Tensor:
    codes = torch.empty((qweight.shape[0], qweight.shape[1] * 2), dtype=torch.int32)
    codes[:, 0::2] = qweight & 15
    codes[:, 1::2] = qweight >> 4
    return convert(codes)


def _check(qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int, name: str) -> None:
    if group_size not in GROUP_SIZES:
        raise ValueError(f"{name}: group size {group_size} is not supported; the kernel knows {GROUP_SIZES}")
    if qweight.dtype != torch.uint8 or qweight.dim() != 2:
        raise ValueError(f"{name}: qweight is {qweight.dtype} {tuple(qweight.shape)}, not uint8 [N, K/2]")
    n, k = qweight.shape[0], qweight.shape[1] * 2
    if n % N_MULTIPLE:
        raise ValueError(f"{name}: {n} output channels are no multiple of {N_MULTIPLE}; leave this module in bf16")
    if k % group_size:
        raise ValueError(f"{name}: {k} inputs are no multiple of the group size {group_size}")
    for what, tensor in (("scales", scales), ("zeros", zeros)):
        if tensor.dtype != torch.bfloat16 or tensor.shape != (n, k // group_size):
            raise ValueError(
                f"{name}: {what} are {tensor.dtype} {tuple(tensor.shape)}, not bfloat16 [{n}, {k // group_size}]"
            )
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name}: {what} hold inf or NaN")
