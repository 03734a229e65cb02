"""The operators that a compiled graph calls; the choice of path stays inside them, where tracing does not look.

Counters are kept inside the operators, so that they tell what ran and not what was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from cpu_int4.layout import _dequantize_from_int4pack, dequantize_from_halves, probe, unpack_nibbles

if TYPE_CHECKING:
    from cpu_int4.pack import PackedWeight

#: Calls per path since the last reset.
_calls = dict.fromkeys(
    (
        "tinygemm",  # one row
        "tinygemm_rows",  # several rows in one call
        "dequant_direct",  # several rows, weights read back out of the packed layout
        "dequant_halves",  # several rows, weights from the row-major copy
        "embedding_direct",
        "embedding_halves",
        "empty",  # no rows: nothing was computed
    ),
    0,
)


def calls() -> dict[str, int]:
    """How often each path ran in this process since it started or since `reset_calls`."""
    return dict(_calls)


def reset_calls() -> None:
    """Start counting anew."""
    for path in _calls:
        _calls[path] = 0


def _linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    halves: torch.Tensor | None,
    bias: torch.Tensor | None,
    group_size: int,
    threshold: int,
    prefill_dequant: bool,
) -> torch.Tensor:
    n, k = packed.shape[0], packed.shape[1] * 2
    if x.shape[-1] != k or scales_and_zeros.shape[0] * group_size != k or scales_and_zeros.shape[1] != n:
        raise ValueError(
            f"x {tuple(x.shape)}, packed {tuple(packed.shape)} and scales_and_zeros {tuple(scales_and_zeros.shape)} "
            f"do not fit one another at group size {group_size}"
        )
    rows = x.reshape(-1, k)
    shape = (*x.shape[:-1], n)
    count = rows.shape[0]
    if count == 0:
        _calls["empty"] += 1
        return x.new_empty(shape)
    if prefill_dequant and count >= threshold:
        weight = _weight(packed, scales_and_zeros, halves, group_size)
        return functional.linear(rows, weight, bias).view(shape)
    _calls["tinygemm" if count == 1 else "tinygemm_rows"] += 1
    out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001 (no public name)
        rows.contiguous(), packed, group_size, scales_and_zeros
    )
    return (out if bias is None else out + bias).view(shape)


def _weight(
    packed: torch.Tensor, scales_and_zeros: torch.Tensor, halves: torch.Tensor | None, group_size: int
) -> torch.Tensor:
    if halves is None:
        _calls["dequant_direct"] += 1
        return _dequantize_from_int4pack(packed, scales_and_zeros, group_size, probe())
    _calls["dequant_halves"] += 1
    return dequantize_from_halves(halves, scales_and_zeros, group_size)


def _embedding(
    ids: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    halves: torch.Tensor | None,
    group_size: int,
) -> torch.Tensor:
    n, k = packed.shape[0], packed.shape[1] * 2
    flat = ids.reshape(-1).long()
    if flat.numel() == 0:
        _calls["empty"] += 1
        return scales_and_zeros.new_empty((*ids.shape, k))
    if flat.min() < 0 or flat.max() >= n:
        raise IndexError(f"ids from {flat.min()} to {flat.max()} are outside an embedding of {n} rows")
    mine = scales_and_zeros.index_select(1, flat)
    if halves is not None:
        _calls["embedding_halves"] += 1
        return dequantize_from_halves(halves[flat], mine, group_size).view(*ids.shape, k)
    _calls["embedding_direct"] += 1
    layout = probe()
    block, half = layout.block, layout.block // 2
    channel = flat % block
    split = layout.pairing == "split"
    byte, odd = (channel % half, channel >= half) if split else (channel // 2, channel % 2 == 1)
    low, high = unpack_nibbles(packed.view(n // block, k, half)[flat // block, :, byte])
    from cpu_int4.layout import _affine

    return _affine(torch.where(odd.unsqueeze(1), high, low), mine, group_size).view(*ids.shape, k)


_library = torch.library.Library("cpu_int4", "DEF")
_library.define(
    "linear(Tensor x, Tensor packed, Tensor scales_and_zeros, Tensor? halves, Tensor? bias, int group_size, "
    "int threshold, bool prefill_dequant) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "embedding(Tensor ids, Tensor packed, Tensor scales_and_zeros, Tensor? halves, int group_size) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("linear", _linear, "CPU")
_library.impl("embedding", _embedding, "CPU")


@torch.library.register_fake("cpu_int4::linear", lib=_library)
def _(x, packed, scales_and_zeros, halves, bias, group_size, threshold, prefill_dequant):
    return x.new_empty((*x.shape[:-1], packed.shape[0]))


@torch.library.register_fake("cpu_int4::embedding", lib=_library)
def _(ids, packed, scales_and_zeros, halves, group_size):
    return scales_and_zeros.new_empty((*ids.shape, packed.shape[1] * 2))


def linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, *, threshold: int, prefill_dequant: bool
) -> torch.Tensor:
    """x [..., K] bf16 times the packed weight [N, K], plus bias [N]: bf16 [..., N].

    Fewer rows than `threshold` take PyTorch's 4-bit kernel, as do all rows where `prefill_dequant` is False; the others
    dequantize the weight to bf16 and take the ordinary product.
    """
    out: torch.Tensor = torch.ops.cpu_int4.linear(
        x, weight.packed, weight.scales_and_zeros, weight.halves, bias, weight.group_size, threshold, prefill_dequant
    )
    return out


def embedding(ids: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    """Rows `ids` [...] of the packed weight [N, K]: bf16 [..., K]. Raises IndexError for an id outside 0..N-1."""
    out: torch.Tensor = torch.ops.cpu_int4.embedding(
        ids, weight.packed, weight.scales_and_zeros, weight.halves, weight.group_size
    )
    return out
