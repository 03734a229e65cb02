"""From a llama-like GGUF file to a Hugging Face directory in bfloat16. Runs in the arms' interpreter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: GGUF tensor name to Hugging Face name; `{}` is the layer.
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of a q or k projection back into the order of Hugging Face's rotary embedding.

    GGUF interleaves the two halves of each head (x0 y0 x1 y1 ...), Hugging Face keeps them apart (x0 x1 ... y0 y1 ...).
    `rows`: [heads * head_dim, hidden].
    """
    out, hidden = rows.shape
    pairs = rows.reshape(heads, out // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(out, hidden)


def name_of(tensor: str) -> str:
    """Hugging Face's name of a GGUF tensor. Raise `KeyError` for one that a llama model does not have."""
    if tensor.startswith("blk."):
        _, layer, part, suffix = tensor.split(".")
        return f"model.layers.{layer}.{LAYER[part]}.{suffix}"
    part, suffix = tensor.split(".")
    return f"{_TOP[part]}.{suffix}"


def config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """`config.json` from the GGUF's own fields."""
    heads = int(fields["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": int(fields["llama.embedding_length"]),
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": int(fields["llama.embedding_length"]) // heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": round(float(fields["llama.attention.layer_norm_rms_epsilon"]), 12),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }


def write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """`tokenizer.json` and its configuration: byte-level BPE that splits digits, as `smollm` wants."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if (found := (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])) != ("gpt2", "smollm"):
        raise ValueError(f"tokenizer {found}; this recipe knows ('gpt2', 'smollm') only")
    tokens = list(fields["tokenizer.ggml.tokens"])
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF token type of special tokens
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[int(fields["tokenizer.ggml.bos_token_id"])],
            "eos_token": tokens[int(fields["tokenizer.ggml.eos_token_id"])],
            "pad_token": tokens[int(fields["tokenizer.ggml.padding_token_id"])],
            "unk_token": tokens[int(fields["tokenizer.ggml.unknown_token_id"])],
            "model_max_length": int(fields["llama.context_length"]),
            "clean_up_tokenization_spaces": False,
            "chat_template": fields.get("tokenizer.chat_template"),
        },
    )


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _weights(reader: Any, fields: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    from gguf.quants import dequantize

    heads = {
        "attn_q": int(fields["llama.attention.head_count"]),
        "attn_k": int(fields["llama.attention.head_count_kv"]),
    }
    for tensor in reader.tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        part = tensor.name.split(".")[-2]
        yield name_of(tensor.name), unpermute(values, heads[part]) if part in heads else values


def convert(source: Path, folder: Path) -> None:
    """Write a Hugging Face directory into `folder` (which is empty). Weights become bfloat16, nearest even."""
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(source)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    weights = {
        name: torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
        for name, values in _weights(reader, fields)
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config(fields, tied="lm_head.weight" not in weights))
    write_json(
        folder / "generation_config.json",
        {key: int(fields[f"tokenizer.ggml.{key}"]) for key in ("bos_token_id", "eos_token_id")},
    )
    write_tokenizer(fields, folder)
