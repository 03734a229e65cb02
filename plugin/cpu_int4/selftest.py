"""Whether this PyTorch has the kernel and computes what it should, asked before any weight is loaded.

The operators carry leading underscores: PyTorch promises neither that they stay nor that their arguments keep their
meaning (input dtype and shape have changed before). So a version alone proves nothing; a product does.
"""

from __future__ import annotations

import functools
import re

import torch

from cpu_int4 import ops
from cpu_int4.layout import _dequantize_from_int4pack, probe, supports_direct_dequant
from cpu_int4.pack import PackedWeight, pack

#: The oldest PyTorch that the tests ran with; newer ones are taken at their word if the self-test passes.
OLDEST_TORCH = (2, 13)
KERNELS = ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")
#: Inputs to a group in the self-test, the smallest that the kernel takes.
GROUP = 32
#: What one rounding to bf16 (8 significant bits) may change, relative to the value.
BF16_ROUNDING = 2.0**-8


class UnusableError(RuntimeError):
    """This PyTorch on this CPU cannot run cpu_int4; the message says why and what to do."""


@functools.cache
def check() -> None:
    """Return if the kernel is there and right, which takes under half a second once; raise UnusableError if not."""
    _check_version(torch.__version__)
    _check_kernels()
    codes, scales, zeros = _pattern()
    weight = _pack(codes, scales, zeros)
    exact = ((codes.double() - 8).unflatten(1, (-1, GROUP)) * scales.unsqueeze(2) + zeros.unsqueeze(2)).flatten(1)
    with ops.uncounted():
        for rows in (1, 3):
            _check_products(weight, exact, rows)
    _check_reading_back(weight, exact)


def _pattern() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [128, 256], scales and zeros [128, 8]: neighbouring channels, inputs and groups all differ."""
    channel, k, group = torch.arange(128).unsqueeze(1), torch.arange(256), torch.arange(8)
    codes = (channel * 7 + k * 5 + channel // 16 + k // 32) % 16
    scales = (2.0**group * (1 + channel / 128)).bfloat16()  # grows by group: one that takes group 0 for all is seen
    zeros = ((channel - 64) / 4 + group).bfloat16()
    return codes, scales, zeros


def _check_version(version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UnusableError(f"torch {version} is not supported: cpu_int4 needs torch {oldest} or later; install that")


def _check_kernels() -> None:
    for kernel in KERNELS:
        if not hasattr(torch.ops.aten, kernel):
            raise UnusableError(
                f"torch {torch.__version__} has no operator aten::{kernel}, the 4-bit kernel that cpu_int4 runs on: "
                "install a PyTorch build for x86 CPUs that has it, or serve the checkpoint expanded to bf16 "
                "(`cpu-int4 expand`)"
            )


def _pack(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> PackedWeight:
    qweight = (codes[:, 0::2] | codes[:, 1::2] << 4).byte()
    try:
        return pack(qweight, scales, zeros, group_size=GROUP, keep_halves=False, repack_bytes=0)
    except RuntimeError as refusal:
        raise UnusableError(
            f"aten::{KERNELS[0]} of {_where()} refuses int32 codes [N, K], so its contract has changed: {refusal}"
        ) from refusal


def _check_products(weight: PackedWeight, exact: torch.Tensor, rows: int) -> None:
    """One path after the other against float64, within what its roundings allow."""
    x = ((torch.arange(rows * weight.k).view(rows, weight.k) * 3 % 17) - 8).bfloat16() / 8
    wanted = x.double() @ exact.t()
    magnitude = x.double().abs() @ exact.abs().t()
    for path, dequantize in (("4-bit kernel", False), ("ordinary product", True)):
        try:
            found = ops.linear(x, weight, None, threshold=1, prefill_dequant=dequantize)
        except RuntimeError as refusal:
            raise UnusableError(f"the {path} of {_where()} refuses {rows} rows: {refusal}") from refusal
        # both round the result; the ordinary product rounds each weight, too; sums in float32 add K halves of 2^-23
        allowed = BF16_ROUNDING * wanted.abs() + (BF16_ROUNDING * dequantize + weight.k * 2.0**-24) * magnitude
        worst = ((found.double() - wanted).abs() / allowed).max().item()
        if not worst <= 1:
            raise UnusableError(
                f"the {path} of {_where()} computes wrong numbers for {rows} rows: up to {worst:.3g} times the error "
                "that rounding allows. Do not use cpu_int4 here; serve the checkpoint expanded to bf16"
            )


def _check_reading_back(weight: PackedWeight, exact: torch.Tensor) -> None:
    if not supports_direct_dequant(weight.n, probe()):
        return  # an unknown layout is no fault: every weight then keeps its copy
    read = _dequantize_from_int4pack(weight.packed, weight.scales_and_zeros, GROUP, probe())
    if not torch.equal(read, exact.bfloat16()):
        raise UnusableError(f"weights read back from layout {probe()} of {_where()} differ from those packed")


def _where() -> str:
    return f"torch {torch.__version__} at {torch.backends.cpu.get_cpu_capability()}"
