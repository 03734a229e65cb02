"""Whether the kernel exists here and computes what it should, asked before any weight is loaded."""

from __future__ import annotations

import torch


class Unusable(RuntimeError):
    """This PyTorch on this CPU cannot run cpu_int4; the message says why and what to do."""


def check() -> None:
    """Return if the kernel is there and right; raise Unusable with a sentence if not."""
    for op in ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu"):
        if not hasattr(torch.ops.aten, op):
            raise Unusable(f"torch {torch.__version__} has no aten::{op}; cpu_int4 needs torch 2.6 or later")
