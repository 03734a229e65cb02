"""Round to nearest on an asymmetric 4-bit grid, group by group along K. Pure: tensors in, tensors out.

Symbols: N rows (output channels), K columns, g the group size, G = K / g groups a row. A group's grid has sixteen
points, (q - 8) * scale + zero for q in 0..15, its scale and zero stored in bfloat16. `zero` is a float, not an integer
zero point, so a group that lies wholly on one side of 0 keeps its offset and nothing is clamped.

1. step = (high - low) / 15 as scale and (low + high + step) / 2 as zero put the ends on codes 0 and 15. Both are
   rounded to bfloat16 first.
2. Where that rounding left an end more than half a step outside (narrow groups far from 0: at 5.0 bfloat16 has a point
   every 1/32), the scale is widened to reach both ends from the zero as stored.
3. Only then are codes chosen: for each weight the one whose grid point, as stored, is nearest.

So the error is at most half a step of the stored scale. Special groups:

- all zero: code 8 and zero 0, so exactly zero; constant and representable in bfloat16: exact, likewise;
- constant and not representable (a float32 checkpoint): within half a step, the step being the distance to bfloat16;
- tiny: no scale is smaller than the least normal float32 (2^-126), which bfloat16 instructions do not flush to zero;
- huge: no scale exceeds the largest bfloat16 over 8, so that (q - 8) * scale never overflows; and where rounding puts a
  grid point beyond the largest bfloat16, its inner neighbour is taken (up to one step off, within 0.4 % of that limit).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

#: Largest finite bfloat16, (2 - 2^-7) * 2^127; from half a step beyond on, values round to infinity.
LARGEST: Final = torch.finfo(torch.bfloat16).max
_OVERFLOW: Final = 2.0**128 - 2.0**119
_LEAST_SCALE: Final = 2.0**-126
_LARGEST_SCALE: Final = LARGEST / 8


@dataclass(frozen=True, kw_only=True)
class QuantizedRows:
    """Rows of a quantized weight, as `cpu_int4.format` stores them."""

    qweight: torch.Tensor  # uint8 [N, K/2], even k in the low nibble
    scales: torch.Tensor  # bfloat16 [N, G], positive, normal
    zeros: torch.Tensor  # bfloat16 [N, G], finite


@dataclass(frozen=True, kw_only=True)
class Unusable:
    """The first value, in row-major order, that bfloat16 cannot hold: NaN, infinite, or beyond its largest number."""

    position: tuple[int, ...]
    value: float


def quantize_rows(weight: torch.Tensor, group_size: int) -> QuantizedRows | Unusable:
    """Quantize `weight` [N, K], floating; K is a multiple of `group_size`. Rows do not affect each other."""
    groups = weight.to(torch.float32).unflatten(-1, (-1, group_size))
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)  # aminmax takes ten times as long
    if not (low.gt(-_OVERFLOW) & high.lt(_OVERFLOW)).all():  # NaN spreads through both and compares as False
        found = unusable(groups.flatten(-2))
        assert found is not None  # noqa: S101 (the same test, value by value)
        return found
    scales, zeros = fit(low, high)
    return QuantizedRows(qweight=pack(nearest(groups, scales, zeros).flatten(-2)), scales=scales, zeros=zeros)


def dequantize_rows(rows: QuantizedRows, group_size: int) -> torch.Tensor:
    """Weights bfloat16 [N, K]: (q - 8) * scale + zero in float32, rounded once, as the kernels' wide path does it."""
    centred = (unpack(rows.qweight).to(torch.float32) - 8).unflatten(-1, (-1, group_size))
    wide = centred * rows.scales.to(torch.float32).unsqueeze(-1) + rows.zeros.to(torch.float32).unsqueeze(-1)
    return wide.to(torch.bfloat16).flatten(-2)


def fit(low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros, bfloat16, of groups with these least and largest values (float32, finite, any shape)."""
    low, high = low.to(torch.float64), high.to(torch.float64)  # high - low may exceed float32
    step = ((high - low) / 15).clamp(max=_LARGEST_SCALE)
    scale = step.to(torch.bfloat16).to(torch.float64).clamp(min=_LEAST_SCALE)
    zeros = ((low + high + step) / 2).to(torch.bfloat16)
    zero = zeros.to(torch.float64)
    covered = (zero - 8.5 * scale <= low) & (zero + 7.5 * scale >= high)
    reaching = torch.maximum((zero - low) / 8, (high - zero) / 7).clamp(max=_LARGEST_SCALE)
    return torch.where(covered, scale, torch.maximum(scale, reaching)).to(torch.bfloat16), zeros


def nearest(groups: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Codes uint8 [N, G, g]: for each value of `groups` (float32) the nearest point of its group's stored grid."""
    scale, zero = scales.to(torch.float32).unsqueeze(-1), zeros.to(torch.float32).unsqueeze(-1)
    codes = (
        groups.sub(zero).div_(scale).round_().add_(8).clamp_(0, 15)
    )  # an overflow here still clamps to the right end
    if (zero.abs() + 8 * scale > LARGEST).any():
        point = ((codes - 8) * scale + zero).to(torch.bfloat16)
        codes = torch.where(point.isinf(), codes - point.sign(), codes)
    return codes.to(torch.uint8)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes uint8 [N, K] to nibbles uint8 [N, K/2], even k low.

    Two codes are read as one little-endian int16: an order of magnitude faster than slices with a stride of two.
    """
    pairs = codes.contiguous().view(torch.int16)
    return (pairs | (pairs >> 4)).to(torch.uint8)


def unpack(qweight: torch.Tensor) -> torch.Tensor:
    """Nibbles uint8 [N, K/2] to codes uint8 [N, K]."""
    return torch.stack((qweight & 15, qweight >> 4), dim=-1).flatten(-2)


def unusable(values: torch.Tensor) -> Unusable | None:
    """The first value of a floating tensor that bfloat16 cannot hold, or None."""
    bad = ~(values.to(torch.float64).abs() < _OVERFLOW)
    if not bad.any():
        return None
    position = tuple(int(index) for index in bad.nonzero()[0])
    return Unusable(position=position, value=float(values[position]))
