"""A llama of two layers with seeded random weights: loads in seconds, speaks nonsense. Arms' interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Sizes that every CPU kernel takes: heads of 64, all dimensions multiples of 128.
_HIDDEN, _INTERMEDIATE, _LAYERS, _HEADS, _KV_HEADS, _VOCABULARY = 256, 512, 2, 4, 2, 512
_SEED = 20_260_101


def config() -> dict[str, Any]:
    """`config.json` of the tiny model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HIDDEN // _HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": _VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def shapes() -> dict[str, tuple[int, ...]]:
    """Every weight's name and shape, rows first."""
    kv = _HIDDEN // _HEADS * _KV_HEADS
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        found |= {
            prefix + "input_layernorm.weight": (_HIDDEN,),
            prefix + "post_attention_layernorm.weight": (_HIDDEN,),
            prefix + "self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            prefix + "self_attn.k_proj.weight": (kv, _HIDDEN),
            prefix + "self_attn.v_proj.weight": (kv, _HIDDEN),
            prefix + "self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
            prefix + "mlp.gate_proj.weight": (_INTERMEDIATE, _HIDDEN),
            prefix + "mlp.up_proj.weight": (_INTERMEDIATE, _HIDDEN),
            prefix + "mlp.down_proj.weight": (_HIDDEN, _INTERMEDIATE),
        }
    return found


def write(folder: Path) -> None:
    """Write the model into `folder`. numpy's PCG64 gives the same bytes on every host."""
    import byte_tokenizer  # type: ignore[import-not-found]  # beside this file on the path of make.py
    import numpy as np
    import torch
    from gguf_llama import write_json  # type: ignore[import-not-found]  # beside this file too
    from safetensors.torch import save_file

    random = np.random.Generator(np.random.PCG64(_SEED))
    weights = {}
    for name, shape in shapes().items():
        values = np.ones(shape) if len(shape) == 1 else random.standard_normal(shape) / np.sqrt(shape[-1])
        weights[name] = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config())
    byte_tokenizer.write(folder, _VOCABULARY)
