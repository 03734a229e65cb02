"""Hugging Face directories to quantize: any dtype, one file or shards, and a way to read a directory back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiny
import torch
from safetensors.torch import load_file, save_file


def write(folder: Path, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], *, shards: int = 1) -> Path:
    """A directory as `save_pretrained` leaves it, with a tokenizer and generation settings beside the weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    (folder / "tokenizer.json").write_text('{"made": "up"}')
    names = list(weights)
    if shards == 1:
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files = {
        name: f"model-{i * shards // len(names) + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)
    }
    for file in set(files.values()):
        save_file({name: weights[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def llama(folder: Path, *, dtype: torch.dtype = torch.bfloat16, shards: int = 1, **changes: Any) -> Path:
    """A llama of two layers, K a multiple of 128 everywhere."""
    config = tiny.llama(**changes)
    return write(folder, config, {n: w.to(dtype) for n, w in tiny.weights(config).items()}, shards=shards)


def spark(folder: Path, **changes: Any) -> Path:
    """The names and proportions of Spark2_5: fused q_k_v_proj, g_proj of 8 rows, an embedding called `embedding`."""
    shapes: dict[str, tuple[int, ...]] = {"model.embedding.weight": (320, 128), "model.norm.weight": (128,)}
    for layer in range(2):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        shapes |= {
            f"{attention}.{n}.weight": (r, 128) for n, r in (("q_k_v_proj", 192), ("g_proj", 8), ("out_proj", 128))
        }
        shapes |= {f"{mlp}.gate_proj.weight": (256, 128), f"{mlp}.up_proj.weight": (256, 128)}
        shapes |= {f"{mlp}.down_proj.weight": (128, 256), f"model.layers.{layer}.input_layernorm.weight": (128,)}
    config = {
        "architectures": ["Spark2_5ForCausalLM"],
        "model_type": "spark2_5",
        "tie_word_embeddings": True,
        **changes,
    }
    return write(folder, config, tiny.random_weights(shapes))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a directory, read by the safetensors library."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def document(folder: Path, file: str = "config.json") -> dict[str, Any]:
    """A JSON file of a directory."""
    loaded: dict[str, Any] = json.loads((folder / file).read_text())
    return loaded


def tensors_of(file: Path) -> dict[str, torch.Tensor]:
    """Every tensor of one shard."""
    found: dict[str, torch.Tensor] = load_file(file)
    return found
