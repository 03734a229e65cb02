"""How PyTorch's CPU kernel arranges 4-bit codes, and how to read them back.

Symbols: N output channels, K inputs, g the group size, G = K / g groups, b the channels of one block.

The packed weight is uint8 [N, K/2] by its shape, but [N/b][K][b/2] by its bytes: K stands in the middle, and each run
of b/2 bytes holds the b channels of one block for one k. Which two channels share a byte, and how wide a block is,
depends on the instruction set that the running PyTorch chose:

| ATen capability | b  | byte d of a run: low nibble, high nibble |
| AVX512          | 64 | d, d + 32                                |
| AVX2            | 32 | d, d + 16                                |
| DEFAULT         | 32 | 2 d, 2 d + 1                             |

Channels past the last whole block are packed in a narrower run of their own. So the layout is probed, never assumed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch

Pairing = Literal["split", "adjacent", "opaque"]


@dataclass(frozen=True)
class Layout:
    """The arrangement of one build's packed weights."""

    block: int  # channels in one run of bytes; a weight whose N it divides can be read back
    pairing: Pairing  # split: d and d + b/2 share byte d; adjacent: 2d and 2d + 1 do; opaque: none that we know

    def __str__(self) -> str:
        """The word for it in cache keys and reports: `split-64`."""
        return f"{self.pairing}-{self.block}"


#: Every arrangement we can read; `probe` picks the one that reproduces the kernel's own bytes.
KNOWN = (Layout(64, "split"), Layout(32, "split"), Layout(32, "adjacent"), Layout(64, "adjacent"))
#: What `probe` answers when none of them does: weights still multiply, but only a copy can be dequantized.
OPAQUE = Layout(64, "opaque")


def convert(codes: torch.Tensor) -> torch.Tensor:
    """PyTorch's own packing of codes int32 [N, K] to uint8 [N, K/2]."""
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)  # noqa: SLF001 (no public name)
    return packed


@functools.cache
def probe() -> Layout:
    """The layout of the running PyTorch, found by packing a pattern in which every position has its own number."""
    number = torch.arange(128 * 32, dtype=torch.int32).view(128, 32)
    digits = [(number >> shift) & 15 for shift in (0, 4, 8)]  # 4096 positions: three codes tell each from all others
    fits = (layout for layout in KNOWN if all(torch.equal(convert(d), _arrange(d, layout)) for d in digits))
    return next(fits, OPAQUE)


def supports_direct_dequant(n: int, layout: Layout) -> bool:
    """Whether a packed weight of n channels can be read back without a copy.

    It cannot where n leaves a tail narrower than a block: 80 channels are packed as 64 and 16, and the reshape would
    misread both.
    """
    return layout.pairing != "opaque" and n > 0 and n % layout.block == 0


def unpack_nibbles(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The low and the high code, 0..15, of each byte: two uint8 tensors of the shape of `packed`."""
    return packed & 15, packed >> 4


def to_split_halves(qweight: torch.Tensor, group_size: int) -> torch.Tensor:
    """The row-major copy for weights that cannot be read back: uint8 [N, K/2], each group split in two halves.

    `qweight` uint8 [N, K/2] holds inputs 2j and 2j + 1 in byte j; here byte j of a group holds its inputs j and
    j + g/2, so that unpacking writes two contiguous runs and never interleaves.
    """
    even, odd = unpack_nibbles(qweight.unflatten(1, (-1, group_size // 2)))
    codes = torch.stack((even, odd), dim=-1).flatten(2)
    first, second = codes.chunk(2, dim=-1)
    return (first | second << 4).flatten(1)


def _dequantize_from_int4pack(
    packed: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int, layout: Layout
) -> torch.Tensor:
    """Weights bf16 [N, K] from the kernel's own bytes: w = (q - 8) s + z, computed in float32, rounded once."""
    n, k = packed.shape[0], packed.shape[1] * 2
    low, high = unpack_nibbles(packed.view(n // layout.block, k, layout.block // 2))
    codes = _channels(low, high, layout).transpose(1, 2).reshape(n, k)
    return _affine(codes, scales_and_zeros, group_size)


def dequantize_from_halves(halves: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int) -> torch.Tensor:
    """Weights bf16 [N, K] from the copy that `to_split_halves` made; the same bits as from the packed layout."""
    first, second = unpack_nibbles(halves.unflatten(1, (-1, group_size // 2)))
    return _affine(torch.cat((first, second), dim=-1).flatten(1), scales_and_zeros, group_size)


def _affine(codes: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int) -> torch.Tensor:
    """bf16 [N, K] of codes uint8 [N, K] and scales_and_zeros bf16 [G, N, 2]."""
    scales, zeros = scales_and_zeros.transpose(0, 1).float().unsqueeze(-1).unbind(2)
    centred = codes.unflatten(1, (-1, group_size)).float() - 8
    return (centred * scales + zeros).bfloat16().flatten(1)


def _channels(low: torch.Tensor, high: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Codes of a block in channel order, [..., b], from the two nibbles of each byte, [..., b/2]."""
    if layout.pairing == "split":
        return torch.cat((low, high), dim=-1)
    return torch.stack((low, high), dim=-1).flatten(-2)


def _arrange(codes: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Pack codes int32 [N, K], N a multiple of the block, as `layout` says: uint8 [N, K/2]."""
    runs = codes.to(torch.uint8).unflatten(0, (-1, layout.block)).transpose(1, 2)  # [N/b, K, b]
    if layout.pairing == "split":
        low, high = runs.chunk(2, dim=-1)
    else:
        low, high = runs[..., 0::2], runs[..., 1::2]
    return (low | high << 4).reshape(codes.shape[0], -1)
