"""How 4-bit codes lie in memory: PyTorch's own arrangement, the copy beside it, and the way back from both.

Symbols: N output channels, K inputs, g the group size, G = K / g groups, b the channels of one block.

The packed weight is uint8 [N, K/2] by its shape, but [N/b][K][b/2] by its bytes: K stands in the middle, and each run
of b/2 bytes holds the b channels of one block for one k. Which two channels share a byte, and how wide a block is,
depends on the instruction set that the running PyTorch chose:

    ATen capability   b    byte d of a run: low nibble, high nibble
    AVX512            64   d, d + 32
    AVX2              32   d, d + 16
    DEFAULT           32   2 d, 2 d + 1

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
    """An arrangement [N/b][K][b/2] of codes, two channels to a byte."""

    block: int  # b: channels in one run of b/2 bytes
    pairing: Pairing  # split: d and d + b/2 share byte d; adjacent: 2d and 2d + 1 do; opaque: none that we know

    def __str__(self) -> str:
        """The word for it in cache keys and reports: `split-64`."""
        return f"{self.pairing}-{self.block}"

    def nibbles(self, runs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of runs [..., b] in channel order, the views [..., b/2] that low nibbles and that high nibbles hold."""
        if self.pairing == "split":
            half = self.block // 2
            return runs[..., :half], runs[..., half:]
        return runs[..., 0::2], runs[..., 1::2]


#: Every arrangement we can read; `probe` picks the one that reproduces the kernel's own bytes.
KNOWN = (Layout(64, "split"), Layout(32, "split"), Layout(32, "adjacent"), Layout(64, "adjacent"))
#: What `probe` answers when none of them does: weights still multiply, but only a copy can be dequantized.
OPAQUE = Layout(64, "opaque")


def convert(codes: torch.Tensor) -> torch.Tensor:
    """PyTorch's own packing of codes int32 [N, K], N a multiple of 16, to uint8 [N, K/2]."""
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)  # noqa: SLF001
    return packed


def arrange(codes: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Pack codes uint8 [N, K], N a multiple of the block, as `layout` says: uint8 [N, K/2]."""
    low, high = layout.nibbles(codes.unflatten(0, (-1, layout.block)).transpose(1, 2))
    return torch.bitwise_left_shift(high, 4).bitwise_or_(low).reshape(codes.shape[0], -1)


@functools.cache
def probe() -> Layout:
    """The layout of the running PyTorch, found by packing a pattern in which every position has its own number."""
    number = torch.arange(128 * 32, dtype=torch.int32).view(128, 32)
    digits = [(number >> shift) & 15 for shift in (0, 4, 8)]  # 4096 positions: three codes tell each from all others
    fits = (known for known in KNOWN if all(torch.equal(convert(d), arrange(d.byte(), known)) for d in digits))
    return next(fits, OPAQUE)


def supports_direct_dequant(n: int, layout: Layout) -> bool:
    """Whether a packed weight of n channels can be read back without a copy.

    It cannot where n leaves a tail narrower than a block: 80 channels are packed as 64 and 16, and the reshape would
    misread both.
    """
    return layout.pairing != "opaque" and n > 0 and n % layout.block == 0


def unpack_nibbles(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The low and the high code, 0..15, of each byte: two new uint8 tensors of the shape of `packed`."""
    return packed & 15, packed >> 4


def unpack_rows(qweight: torch.Tensor) -> torch.Tensor:
    """Codes uint8 [N, K] of a checkpoint's qweight uint8 [N, K/2], whose low nibbles are the even k."""
    return torch.stack(unpack_nibbles(qweight), dim=-1).flatten(-2)


def panels(n: int, k: int) -> list[slice]:
    """Runs of channels that are dequantized together, multiples of 64 but for the last."""
    width = max(64, _panel_weights() // k // 64 * 64)
    return [slice(start, min(start + width, n)) for start in range(0, n, width)]


@functools.cache
def _panel_weights() -> int:
    """How many weights one panel holds: 2 MiB of bf16, which stays in the L2 cache, or up to 8 MiB.

    On 2 cores (AVX-512, gate_up 13312 x 2048, 512 rows) panels of half, once and twice this size ran equally fast, at
    0.85 of the bf16 product alone, where dequantizing the whole matrix first ran at 0.62: page faults of 54 MB. More
    threads want more work between barriers; that they get it in proportion is a choice, not a measurement. The first
    answer is kept, as the copy in halves is cut along panels.
    """
    threads: int = torch.get_num_threads()
    return min(max(threads << 18, 1 << 20), 1 << 22)


def to_split_halves(qweight: torch.Tensor) -> torch.Tensor:
    """One panel of the copy for weights that are not read back: uint8 [w, K/2] from qweight uint8 [w, K/2].

    The same arrangement with the whole panel as its block: [K][w/2] bytes, the first half of the channels in the low
    nibbles, so that unpacking writes long runs whatever the kernel's own block is.
    """
    return arrange(unpack_rows(qweight), halves_layout(qweight.shape[0]))


def halves_layout(width: int) -> Layout:
    """The layout of a panel of `width` channels in the copy."""
    return Layout(width, "split")


def dequantize_panel(
    packed: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int, layout: Layout, out: torch.Tensor
) -> torch.Tensor:
    """Weights of w channels into `out`, bf16 [K, w]: w = (q - 8) s + z, computed in float32, rounded once.

    `packed` is uint8 [w, K/2] in `layout`, w a multiple of its block; `scales_and_zeros` is bf16 [G, w, 2].
    (q - 8) s is exact in float32 (4 by 8 bits), so whether the sum is fused changes nothing.
    """
    k, width = out.shape
    runs = layout.nibbles(out.view(k, -1, layout.block))
    codes = unpack_nibbles(packed.view(-1, k, layout.block // 2))
    for place, code in zip(runs, codes, strict=True):
        place.copy_(code.view(torch.int8).sub_(8).transpose(0, 1))
    scales, zeros = scales_and_zeros.permute(2, 0, 1).unsqueeze(2).contiguous()
    grouped = out.view(-1, group_size, width)
    # ATen's bf16 addcmul multiplies and adds in float32 and rounds once; [K, w] keeps all its operands contiguous
    torch.addcmul(zeros, grouped, scales, out=grouped)
    return out


def _dequantize_from_int4pack(
    packed: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int, layout: Layout
) -> torch.Tensor:
    """Weights bf16 [N, K] from the kernel's own bytes, uint8 [N, K/2], and scales_and_zeros bf16 [G, N, 2].

    Its price as a chain of ATen operators, as it was measured when the copy in halves was dropped (Xeon 8480C, 32
    cores): prefill of 512 tokens 2272 -> 1210 tokens/s, because the copy had already been deinterleaved at load. That
    chain made the whole matrix before each product. The operator makes one panel at a time and never the matrix
    (`cpu_int4.ops`); this function joins the same panels for those who want the matrix. N must be a multiple of the
    layout's block (`supports_direct_dequant`), or ValueError is raised.
    """
    n, k = packed.shape[0], packed.shape[1] * 2
    if not supports_direct_dequant(n, layout):
        raise ValueError(f"{n} channels in layout {layout} cannot be read back: {n} is no multiple of {layout.block}")
    weight = scales_and_zeros.new_empty(n, k)
    for rows in panels(n, k):
        out = scales_and_zeros.new_empty(k, rows.stop - rows.start)
        dequantize_panel(packed[rows], scales_and_zeros[:, rows], group_size, layout, out)
        weight[rows] = out.t()
    return weight


def take_rows(
    packed: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int, layout: Layout, ids: torch.Tensor
) -> torch.Tensor:
    """Weights bf16 [len(ids), K] of single channels, the same bits as `dequantize_panel` gives them.

    `ids` int64 lie within 0..N-1, N a multiple of the layout's block. Only the bytes asked for are read.
    """
    k = packed.shape[1] * 2
    within = ids % layout.block
    low, high = layout.nibbles(torch.arange(layout.block))
    place = torch.cat((low, high)).argsort()[
        within
    ]  # of each channel: its byte, plus half a block if its nibble is high
    half = layout.block // 2
    bytes_ = packed.view(-1, k, half)[ids // layout.block, :, place % half]
    low_codes, high_codes = unpack_nibbles(bytes_)
    codes = torch.where((place >= half).unsqueeze(1), high_codes, low_codes)
    scales, zeros = scales_and_zeros.index_select(1, ids).permute(2, 1, 0).float().unsqueeze(3)
    centred = codes.view(torch.int8).sub_(8).float().view(len(ids), -1, group_size)
    return centred.mul_(scales).add_(zeros).bfloat16().view(len(ids), k)
