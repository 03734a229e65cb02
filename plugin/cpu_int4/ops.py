"""The operators that a compiled graph calls; the choice of path stays inside them, where tracing does not look.

Counters are kept inside the operators, so that they tell what ran and not what was asked for.

They are defined through `torch.library.Library`: the wrapper of `torch.library.custom_op` costs 2 us more a call
(5.8 against 3.8 us around the same body), and one token makes more than a hundred calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from cpu_int4.layout import dequantize_panel, halves_layout, panels, probe, supports_direct_dequant, take_rows

if TYPE_CHECKING:
    from cpu_int4.pack import PackedWeight

#: Calls per path since the process started or since `reset_calls`; no call is counted under two paths.
_calls = dict.fromkeys(
    (
        "tinygemm",  # one row through PyTorch's 4-bit kernel
        "tinygemm_rows",  # several rows in one call of it
        "dequant_direct",  # ordinary product, weights read back out of the packed layout
        "dequant_halves",  # ordinary product, weights from the row-major copy
        "embedding_direct",  # lookup out of the packed layout
        "embedding_halves",  # lookup in the copy, where the packed layout cannot be read back
        "empty",  # no rows, or no ids: nothing was computed
    ),
    0,
)


def calls() -> dict[str, int]:
    """How often each path ran in this process since it started or since `reset_calls`."""
    return dict(_calls)


def reset_calls() -> None:
    """Start counting anew."""
    _calls.update(dict.fromkeys(_calls, 0))


@contextmanager
def uncounted() -> Iterator[None]:
    """What runs inside is nobody's work: the counters stand afterwards as they stood before."""
    before = calls()
    try:
        yield
    finally:
        _calls.update(before)


def linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, *, threshold: int, prefill_dequant: bool
) -> torch.Tensor:
    """Product of x bf16 [..., K] with the packed weight [N, K], plus bias bf16 [N]: bf16 [..., N].

    Fewer rows than `threshold` take PyTorch's 4-bit kernel, as do all rows where `prefill_dequant` is False; the others
    dequantize the weight to bf16, a panel at a time, and take the ordinary product.
    """
    product: torch.Tensor = torch.ops.cpu_int4.linear.default(
        x, weight.packed, weight.scales_and_zeros, weight.halves, bias, weight.group_size, threshold, prefill_dequant
    )
    return product


def embedding(ids: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    """Rows `ids` (any integer type, [...]) of the packed weight [N, K]: bf16 [..., K]. IndexError outside 0..N-1."""
    rows: torch.Tensor = torch.ops.cpu_int4.embedding.default(
        ids, weight.packed, weight.scales_and_zeros, weight.halves, weight.group_size
    )
    return rows


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
    n, half_k = packed.shape
    _check_fit(x, packed, scales_and_zeros, group_size)
    rows = x.reshape(-1, 2 * half_k)
    count = rows.shape[0]
    if count == 0:
        _calls["empty"] += 1
        product = x.new_empty(0, n)
    elif count < threshold or not prefill_dequant:
        _calls["tinygemm" if count == 1 else "tinygemm_rows"] += 1
        product = torch.ops.aten._weight_int4pack_mm_for_cpu.default(  # noqa: SLF001 (it has no public name)
            rows.contiguous(), packed, group_size, scales_and_zeros
        )
        if bias is not None:
            product += bias
    else:
        product = _multiply_by_panels(rows, packed, scales_and_zeros, halves, bias, group_size)
    return product if x.dim() == 2 else product.view(*x.shape[:-1], n)


def _check_fit(x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int) -> None:
    """Refuse what the kernel would read out of bounds: it checks neither K nor the number of groups nor strides."""
    if (
        x.shape[-1] != 2 * packed.shape[1]
        or scales_and_zeros.numel() * group_size != 4 * packed.numel()
        or not scales_and_zeros.is_contiguous()
        or x.dtype is not torch.bfloat16
    ):
        raise ValueError(
            f"x {x.dtype} {tuple(x.shape)}, packed {tuple(packed.shape)} and scales_and_zeros "
            f"{tuple(scales_and_zeros.shape)} do not fit one another at group size {group_size}: wanted are bfloat16 "
            "[..., K], [N, K/2] and a contiguous [K/group, N, 2]"
        )


def _multiply_by_panels(
    rows: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    halves: torch.Tensor | None,
    bias: torch.Tensor | None,
    group_size: int,
) -> torch.Tensor:
    """The ordinary bf16 product of rows [M, K], M > 1, with a weight that exists one panel [K, w] at a time.

    Both sources fill the same panels, so both give the same product bit for bit.
    """
    _calls["dequant_direct" if halves is None else "dequant_halves"] += 1
    n, k = packed.shape[0], rows.shape[1]
    product = rows.new_empty(rows.shape[0], n)
    cut = panels(n, k)
    scratch = rows.new_empty(k * cut[0].stop)
    for channels in cut:
        width = channels.stop - channels.start
        source, layout = (packed, probe()) if halves is None else (halves, halves_layout(width))
        panel = scratch[: k * width].view(k, width)
        dequantize_panel(source[channels], scales_and_zeros[:, channels], group_size, layout, panel)
        if bias is None:
            torch.mm(rows, panel, out=product[:, channels])
        else:
            torch.addmm(bias[channels], rows, panel, out=product[:, channels])
    return product


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
        return scales_and_zeros.new_empty(*ids.shape, k)
    low, high = (int(bound) for bound in flat.aminmax())
    if low < 0 or high >= n:
        raise IndexError(f"ids from {low} to {high}: the embedding has rows 0 to {n - 1}")
    if supports_direct_dequant(n, probe()):
        _calls["embedding_direct"] += 1
        rows = take_rows(packed, scales_and_zeros, group_size, probe(), flat)
    elif halves is not None:
        _calls["embedding_halves"] += 1
        rows = _take_from_halves(halves, scales_and_zeros, group_size, flat)
    else:
        raise ValueError(f"an embedding of {n} rows in layout {probe()} cannot be read back and has no copy in halves")
    return rows.view(*ids.shape, k)


def _take_from_halves(
    halves: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int, ids: torch.Tensor
) -> torch.Tensor:
    n, k = halves.shape[0], halves.shape[1] * 2
    rows = scales_and_zeros.new_empty(len(ids), k)
    width = panels(n, k)[0].stop
    whole = n // width * width  # channels in panels of full width; the rest is one panel of its own
    for part, layout in ((slice(0, whole), halves_layout(width)), (slice(whole, n), halves_layout(n - whole))):
        mine = (ids >= part.start) & (ids < part.stop)
        if mine.any():
            rows[mine] = take_rows(halves[part], scales_and_zeros[:, part], group_size, layout, ids[mine] - part.start)
    return rows


def _linear_shape(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    halves: torch.Tensor | None,
    bias: torch.Tensor | None,
    group_size: int,
    threshold: int,
    prefill_dequant: bool,
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


def _embedding_shape(
    ids: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    halves: torch.Tensor | None,
    group_size: int,
) -> torch.Tensor:
    return scales_and_zeros.new_empty(*ids.shape, packed.shape[1] * 2)


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
torch.library.register_fake("cpu_int4::linear", _linear_shape, lib=_library)
torch.library.register_fake("cpu_int4::embedding", _embedding_shape, lib=_library)
