"""The Spark2_5 of `spark.py` with its linear weights in GPTQ's format: 4 bits, groups of 128, symmetric, no act-order.

Runs in the arms' interpreter. The codes are the seeded weights rounded to nearest: GPTQ's own solver would choose other
codes of the same size, and neither speed nor memory depends on which. The embedding and `g_proj` stay in bfloat16, as
the model has them under any quantization. vLLM 0.32 takes only the symmetric grid at 4 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

GROUP = 128
_BITS = 4
_PER_WORD = 32 // _BITS
_ZERO = 8  # the code of 0 on a symmetric grid of 0..15
#: What is quantized, by the end of its name. Not `g_proj`: the model builds it without a quantization config.
LINEAR = ("q_k_v_proj.weight", "out_proj.weight", "gate_proj.weight", "up_proj.weight", "down_proj.weight")


def quantization() -> dict[str, Any]:
    """`quantization_config` of config.json."""
    return {
        "quant_method": "gptq",
        "bits": _BITS,
        "group_size": GROUP,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
        # vLLM looks for q_proj, k_proj and v_proj where it fuses them, and this checkpoint holds them fused: without
        # their names here it takes the matrix for one that was left in bfloat16.
        "modules_in_block_to_quantize": [
            *(f"self_attn.{part}_proj" for part in ("q", "k", "v", "out")),
            *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
        ],
    }


def pack(weight: Any, group: int = GROUP) -> dict[str, Any]:
    """A weight [N, K] as GPTQ stores it, K a multiple of `group` and `group` of 8, N of 8.

    `qweight` int32 [K/8, N]: eight codes along K in a word, the first in the lowest nibble; w = (code - 8) * scale.
    `scales` bfloat16 [K/group, N] (float16 elsewhere; vLLM would round it, with a warning for each matrix).
    `qzeros` int32 [K/group, N/8]: eight zero points along N in a word, each stored less one, so 7. `g_idx` int32 [K]:
    the group of each k.
    """
    import torch

    rows, columns = weight.shape
    grouped = weight.float().view(rows, columns // group, group)
    scales = (grouped.abs().amax(dim=2) / (_ZERO - 1)).clamp_min(2.0**-14).bfloat16()
    codes = (grouped / scales.float().unsqueeze(2)).round_().clamp_(-_ZERO, _ZERO - 1).add_(_ZERO)
    words = codes.view(rows, columns // _PER_WORD, _PER_WORD).to(torch.int64)
    places = 2 ** (_BITS * torch.arange(_PER_WORD))
    zeros = int((_ZERO - 1) * places.sum())
    return {
        "qweight": _as_int32((words * places).sum(dim=2)).t().contiguous(),
        "scales": scales.t().contiguous(),
        "qzeros": torch.full((columns // group, rows // _PER_WORD), zeros, dtype=torch.int32),
        "g_idx": (torch.arange(columns) // group).to(torch.int32),
    }


def _as_int32(words: Any) -> Any:
    """Words of 0 .. 2**32 - 1 as the int32 of the same bits."""
    import torch

    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def write(folder: Path) -> None:
    """Write the model into `folder`, a shard at a time, from the same seeded weights as `spark.write`."""
    import byte_tokenizer  # type: ignore[import-not-found]  # beside this file on the path of make.py
    import spark  # type: ignore[import-not-found]  # beside this file too
    from gguf_llama import write_json  # type: ignore[import-not-found]  # beside this file too
    from safetensors.torch import save_file

    found = spark.shapes()
    groups = spark.shards(found)
    where: dict[str, str] = {}
    total = 0
    for number, names in enumerate(groups, start=1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        tensors = dict(_stored(spark.weights(found, names)))
        save_file(tensors, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})
    write_json(folder / "config.json", {**spark.config(), "quantization_config": quantization()})
    byte_tokenizer.write(folder, spark.config()["vocab_size"])


def _stored(weights: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Linear weights packed, everything else as it is."""
    for name, weight in weights:
        if not name.endswith(LINEAR):
            yield name, weight
            continue
        for part, tensor in pack(weight).items():
            yield f"{name.removesuffix('weight')}{part}", tensor
