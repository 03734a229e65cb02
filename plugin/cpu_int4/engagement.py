"""What really runs: the model's modules by their methods, and the operators' own counters."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from cpu_int4 import native, ops
from cpu_int4.embedding import CpuInt4EmbeddingMethod, TiedHead
from cpu_int4.format import QUANT_METHOD
from cpu_int4.linear import CpuInt4LinearMethod

if TYPE_CHECKING:
    import torch

    from cpu_int4.config import CpuInt4Config


def report(model: torch.nn.Module, config: CpuInt4Config) -> dict[str, Any]:
    """`modules`: counts of `int4_linear`, `int4_embedding`, `int4_head`, `int4_tied_head`, and for every linear layer
    and embedding that is not 4-bit, of `bf16:` and the reason. `calls`: see
    `cpu_int4.ops.calls` and, where that kernel was asked for, `cpu_int4.native.calls`.

    Taken by walking the model, not from what was decided: a layer that lost its method on the way shows as
    `bf16:unexplained`.
    """
    left = config._choices().left  # noqa: SLF001 (its own configuration)
    kinds = Counter(
        _kind(module, left)
        for module in model.modules()
        if isinstance(module, LinearBase | VocabParallelEmbedding)
    )  # fmt: skip
    return {"name": QUANT_METHOD, "modules": dict(sorted(kinds.items())), "calls": _calls(config)}


def _calls(config: CpuInt4Config) -> dict[str, int]:
    return ops.calls() | (native.calls() if config.settings.kernel == "native" else {})


def _kind(module: torch.nn.Module, left: dict[int, str]) -> str:
    match module.quant_method:
        case TiedHead():
            return "int4_tied_head"
        case CpuInt4EmbeddingMethod():
            return "int4_head" if isinstance(module, ParallelLMHead) else "int4_embedding"
        case CpuInt4LinearMethod():
            return "int4_linear"
    if id(module) in left:
        return f"bf16:{left[id(module)]}"
    if getattr(module, "quant_config", None) is None and isinstance(module, LinearBase):
        return "bf16:model"  # the model's class passes no quantization config to it
    return "bf16:unexplained"
