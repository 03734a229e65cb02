"""The true shape of Spark2_5 with seeded random weights: speed and memory are the model's, its words are noise.

Runs in the arms' interpreter. Names and configuration are those that the package `vllm-spark2-5-plugin` reads: q, k
and v are one matrix in the checkpoint too, gate and up are two, the embedding is the output matrix as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HIDDEN, _INTERMEDIATE, _LAYERS, _HEADS, _KV_HEADS, _HEAD, _VOCABULARY = 2048, 6656, 28, 8, 2, 256, 131_072
_SEED = 20_260_201
#: Bytes of weights in a shard, at most (a single larger matrix aside; the embedding is just as large). A shard is what
#: is held in memory while the model is written.
_SHARD = 512 << 20
_BF16 = 2  # bytes

Shape = tuple[int, ...]


def config() -> dict[str, Any]:
    """`config.json`. Its class leaves the embedding untied unless told; the model of the published figures ties it."""
    return {
        "architectures": ["Spark2_5ForCausalLM"],
        "model_type": "spark2_5",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "headwise_attn_output_gate": True,
        "sliding_window": 512,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "vocab_size": _VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def shapes() -> dict[str, Shape]:
    """Every weight's name and shape, rows (output channels) first."""
    found: dict[str, Shape] = {"model.embedding.weight": (_VOCABULARY, _HIDDEN)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        found |= {
            prefix + "input_layernorm.weight": (_HIDDEN,),
            prefix + "self_attn.g_proj.weight": (_HEADS, _HIDDEN),
            prefix + "self_attn.q_k_v_proj.weight": ((_HEADS + 2 * _KV_HEADS) * _HEAD, _HIDDEN),
            prefix + "self_attn.out_proj.weight": (_HIDDEN, _HEADS * _HEAD),
            prefix + "post_attention_layernorm.weight": (_HIDDEN,),
            prefix + "mlp.gate_proj.weight": (_INTERMEDIATE, _HIDDEN),
            prefix + "mlp.up_proj.weight": (_INTERMEDIATE, _HIDDEN),
            prefix + "mlp.down_proj.weight": (_HIDDEN, _INTERMEDIATE),
        }
    return found | {"model.norm.weight": (_HIDDEN,)}


def shards(found: dict[str, Shape], limit: int = _SHARD) -> list[list[str]]:
    """Names of the weights of each shard, in order. `limit`: bytes; only a matrix that alone is larger goes past it."""
    groups: list[list[str]] = []
    held = limit + 1
    for name, shape in found.items():
        size = _BF16 * math.prod(shape)
        if held + size > limit:
            groups, held = [*groups, []], 0
        groups[-1].append(name)
        held += size
    return groups


def write(folder: Path) -> None:
    """Write the model into `folder`, a shard at a time. Each weight has a random stream of its own, seeded by its place
    among the names: the same bytes whatever the shards.
    """
    import byte_tokenizer  # type: ignore[import-not-found]  # beside this file on the path of make.py
    from gguf_llama import write_json  # type: ignore[import-not-found]  # beside this file too
    from safetensors.torch import save_file

    found = shapes()
    groups = shards(found)
    where: dict[str, str] = {}
    for number, names in enumerate(groups, start=1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        save_file(dict(weights(found, names)), folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(names, file)
    total = sum(_BF16 * math.prod(shape) for shape in found.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})
    write_json(folder / "config.json", config())
    byte_tokenizer.write(folder, _VOCABULARY)


def weights(found: dict[str, Shape], names: list[str]) -> Iterator[tuple[str, Any]]:
    """Norms are ones; a matrix is normal with variance 1/K, so that activations keep their size through 28 layers."""
    import numpy as np
    import torch

    place = {name: number for number, name in enumerate(found)}
    for name in names:
        shape = found[name]
        if len(shape) == 1:
            yield name, torch.ones(shape, dtype=torch.bfloat16)
            continue
        random = np.random.Generator(np.random.PCG64([_SEED, place[name]]))
        values = torch.from_numpy(random.standard_normal(shape, dtype=np.float32))
        yield name, values.mul_(shape[-1] ** -0.5).to(torch.bfloat16)
