"""Tiny models with seeded random weights, and a writer of the checkpoint format that shares no code with the plugin's.

Rounding to nearest in ten lines, so that loading is tested against an independent hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Weights = dict[str, torch.Tensor]


def llama(**changes: Any) -> dict[str, Any]:
    """`config.json` of a llama of two layers; every dimension a multiple of 64."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "vocab_size": 320,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **changes,
    }


def qwen2(**changes: Any) -> dict[str, Any]:
    """The same with Qwen2's biases on q, k and v."""
    return llama(architectures=["Qwen2ForCausalLM"], model_type="qwen2", **changes)


def weights(config: Mapping[str, Any], seed: int = 0) -> Weights:
    """Every weight of a llama or Qwen2 by its Hugging Face name, bf16."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    biased = config["model_type"] == "qwen2" or config.get("attention_bias", False)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{norm}.weight"] = (hidden,)
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            shapes[f"{prefix}.self_attn.{name}.weight"] = (rows, hidden)
            if biased:
                shapes[f"{prefix}.self_attn.{name}.bias"] = (rows,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, q)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, inner)
    return random_weights(shapes, seed)


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> Weights:
    """Seeded bf16 weights: norms near one, biases of a tenth, matrices that keep a vector's length."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            value /= shape[1] ** 0.5
        else:
            value = value / 10 + (0 if name.endswith(".bias") else 1)
        made[name] = value.bfloat16()
    return made


def quantized(weight: torch.Tensor, group: int) -> dict[str, torch.Tensor]:
    """A weight [N, K] rounded to the nearest of 16 steps in each group of K: qweight, scales, zeros."""
    n, k = weight.shape
    groups = weight.float().view(n, k // group, group)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 15).clamp(min=1e-8).bfloat16()
    zeros = (low + 8 * scales.float()).bfloat16()
    codes = ((groups - zeros.float()[..., None]) / scales.float()[..., None] + 8).round().clamp(0, 15)
    codes = codes.to(torch.uint8).view(n, k)
    return {"qweight": codes[:, 0::2] | codes[:, 1::2] << 4, "scales": scales, "zeros": zeros}


def dequantized(parts: Mapping[str, torch.Tensor], group: int) -> torch.Tensor:
    """The bf16 weight [N, K] that parts of a quantized one stand for."""
    n, half = parts["qweight"].shape
    codes = torch.stack((parts["qweight"] & 15, parts["qweight"] >> 4), -1).view(n, half * 2 // group, group).float()
    value = (codes - 8) * parts["scales"].float()[..., None] + parts["zeros"].float()[..., None]
    return value.bfloat16().view(n, half * 2)


def fields(group: int = 32, **changes: Any) -> dict[str, Any]:
    """A `quantization_config`."""
    return {
        "quant_method": "cpu_int4",
        "format_version": 1,
        "bits": 4,
        "group_size": group,
        "sym": False,
        "quantize_embedding": True,
        "modules_not_converted": [],
        **changes,
    }


def convert(plain: Weights, leave: tuple[str, ...], group: int) -> tuple[Weights, Weights]:
    """Weights in the checkpoint format, and the bf16 ones that they stand for. `leave`: ends of names kept in bf16."""
    stored: Weights = {}
    meant: Weights = {}
    for name, weight in plain.items():
        module = name.removesuffix(".weight")
        if weight.dim() != 2 or module.endswith(leave or ("\0",)):
            stored[name] = meant[name] = weight
            continue
        parts = quantized(weight, group)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
        meant[name] = dequantized(parts, group)
    return stored, meant


def write(folder: Path, config: Mapping[str, Any], tensors: Weights, *, shards: int = 1) -> Path:
    """A checkpoint folder: shards, index, manifest, `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    names = list(tensors)
    files = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(files.values())):
        save_file({n: tensors[n].contiguous() for n in names if files[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    manifest(folder, tensors, files)
    return folder


def manifest(folder: Path, tensors: Weights, files: Mapping[str, str]) -> None:
    """`cpu_int4.json` for these tensors."""
    kinds = {torch.uint8: "U8", torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32"}
    entries = {
        name: {
            "dtype": kinds[tensor.dtype],
            "shape": list(tensor.shape),
            "sha256": hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest(),
            "file": files[name],
        }
        for name, tensor in tensors.items()
    }
    (folder / "cpu_int4.json").write_text(json.dumps({"format_version": 1, "tensors": entries}))


def pair(
    folder: Path, config: Mapping[str, Any], *, group: int = 32, leave: tuple[str, ...] = (), **changes: Any
) -> tuple[Path, Path]:
    """A quantized checkpoint and the bf16 one that it stands for."""
    stored, meant = convert(weights(config), leave, group)
    int4 = write(folder / "int4", {**config, "quantization_config": fields(group, **changes)}, stored)
    plain = folder / "bf16"
    plain.mkdir(parents=True, exist_ok=True)
    (plain / "config.json").write_text(json.dumps(dict(config)))
    save_file(meant, plain / "model.safetensors")
    return int4, plain
