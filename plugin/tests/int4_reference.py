"""An independent account of the checkpoint format and of both products, in NumPy.

Nothing here is taken from the package: nibbles are read as the format's page says, bf16 is rounded by hand on the bits,
and a product is a float64 sum. What the package makes of the same tensors must agree with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

#: What one rounding to bf16 (8 significant bits) may change, relative to the value.
BF16_ROUNDING = 2.0**-8


@dataclass(frozen=True)
class Stored:
    """A weight as a checkpoint holds it."""

    qweight: torch.Tensor  # uint8 [N, K/2], low nibble the even k
    scales: torch.Tensor  # bfloat16 [N, G]
    zeros: torch.Tensor  # bfloat16 [N, G]
    group_size: int

    @property
    def n(self) -> int:
        """Output channels."""
        return self.qweight.shape[0]

    @property
    def k(self) -> int:
        """Inputs."""
        return self.qweight.shape[1] * 2


def stored(n: int, k: int, group_size: int, generator: torch.Generator) -> Stored:
    """A random weight whose scale doubles from group to group (over eight octaves) and whose zeros all differ."""
    groups = k // group_size
    octave = 2.0 ** (torch.arange(groups) % 8 - 4)
    scales = (torch.rand(n, groups, generator=generator) + 0.5) * octave
    zeros = torch.randn(n, groups, generator=generator) * octave
    qweight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    return Stored(qweight, scales.bfloat16(), zeros.bfloat16(), group_size)


def codes(weight: Stored) -> np.ndarray:
    """Codes 0..15, int32 [N, K]."""
    bytes_ = weight.qweight.numpy()
    out = np.empty((weight.n, weight.k), dtype=np.int32)
    out[:, 0::2] = bytes_ % 16
    out[:, 1::2] = bytes_ // 16
    return out


def exact(weight: Stored) -> np.ndarray:
    """W = (q - 8) s + z in float32 [N, K], where the product is exact and the sum is rounded once."""
    scales, zeros = (np.repeat(_widen(t), weight.group_size, axis=1) for t in (weight.scales, weight.zeros))
    centred = (codes(weight) - 8).astype(np.float32)
    return np.add(np.multiply(centred, scales, out=centred), zeros, out=centred)


def rounded(weight: Stored) -> torch.Tensor:
    """The same, rounded to the nearest bf16, ties to even: bfloat16 [N, K]."""
    bits = exact(weight).view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return torch.from_numpy((bits >> 16).astype(np.uint16).view(np.int16)).view(torch.bfloat16)


def product(x: torch.Tensor, weight: Stored) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of x bf16 [M, K]: x w in float64 [M, N], the sum of |x w|, and what rounding each weight to bf16 can change.

    The last is exact: the sum of |x| times the distance of each weight from its bf16, at most 2^-8 of the second.
    """
    rows, weights = _widen(x).astype(np.float64), exact(weight).astype(np.float64)
    distance = np.abs(_widen(rounded(weight)) - weights)
    return rows @ weights.T, np.abs(rows) @ np.abs(weights).T, np.abs(rows) @ distance.T


def _widen(tensor: torch.Tensor) -> np.ndarray:
    """float32 of bf16, by its bits."""
    return (tensor.contiguous().view(torch.int16).numpy().astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
