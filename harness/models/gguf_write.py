"""From a llama-like Hugging Face directory to llama.cpp's format, Q4_K_M. Runs in the arms' interpreter.

Weights are read and written one at a time, as bfloat16 into a file beside the result, which llama-quantize of the
recipe `llama-cpp` turns into Q4_K_M: memory holds no more than the largest matrix.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf_llama import LAYER  # type: ignore[import-not-found]  # beside this file on the path of make.py

#: What llama-quantize makes, and with how many threads: which thread has which rows does not change the bytes.
_TYPE, _THREADS = "Q4_K_M", "2"

Shape = tuple[int, ...]
#: A weight by its Hugging Face name: float32, or bfloat16 as uint16.
Weight = Callable[[str], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Llama:
    """Sizes of a llama, as its header says them. `rope_base`: theta of the rotary embedding."""

    name: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float
    rope_base: float


def sizes(name: str, config: Mapping[str, Any]) -> Llama:
    """Sizes from a `config.json`. Raise `SystemExit` for an untied output matrix, which no recipe here has."""
    if not config.get("tie_word_embeddings"):
        raise SystemExit(f"{name}: its output matrix is not its embedding; this recipe writes tied models only")
    heads = int(config["num_attention_heads"])
    return Llama(
        name=name,
        vocabulary=int(config["vocab_size"]),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config["num_key_value_heads"]),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        context=int(config["max_position_embeddings"]),
        norm_eps=float(config["rms_norm_eps"]),
        rope_base=float(config.get("rope_theta", 10000.0)),
    )


def shapes(model: Llama) -> dict[str, Shape]:
    """Shape of every tensor by its GGUF name, rows first."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    layer: dict[str, Shape] = {
        "attn_norm": (model.hidden,),
        "attn_q": (q, model.hidden),
        "attn_k": (kv, model.hidden),
        "attn_v": (kv, model.hidden),
        "attn_output": (model.hidden, q),
        "ffn_norm": (model.hidden,),
        "ffn_gate": (model.intermediate, model.hidden),
        "ffn_up": (model.intermediate, model.hidden),
        "ffn_down": (model.hidden, model.intermediate),
    }
    found: dict[str, Shape] = {"token_embd.weight": (model.vocabulary, model.hidden)}
    for number in range(model.layers):
        found |= {f"blk.{number}.{part}.weight": shape for part, shape in layer.items()}
    return found | {"output_norm.weight": (model.hidden,)}


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k projection from Hugging Face's order of the rotary halves (x0 x1 ... y0 y1 ...) to GGUF's
    (x0 y0 x1 y1 ...). `rows`: [heads * head_dim, hidden].
    """
    out, hidden = rows.shape
    return rows.reshape(heads, 2, out // heads // 2, hidden).swapaxes(1, 2).reshape(out, hidden)


def tensor(model: Llama, name: str, weight: Weight) -> np.ndarray:
    """One tensor by its GGUF name, from the weight that it is in the Hugging Face directory."""
    if name in {"token_embd.weight", "output_norm.weight"}:
        return weight({"token_embd.weight": "model.embed_tokens.weight"}.get(name, "model.norm.weight"))
    _, layer, part, _ = name.split(".")
    values = weight(f"model.layers.{layer}.{LAYER[part]}.weight")
    heads = {"attn_q": model.heads, "attn_k": model.kv_heads}
    return permute(values, heads[part]) if part in heads else values


def spark(model: Llama, weight: Weight) -> Weight:
    """The weights of a Spark2_5 under the names of a llama: q, k and v are one matrix there, two names differ."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    rows = {"q_proj": slice(0, q), "k_proj": slice(q, q + kv), "v_proj": slice(q + kv, q + 2 * kv)}

    def renamed(name: str) -> np.ndarray:
        prefix, _, part = name.removesuffix(".weight").rpartition(".")
        if part in rows:
            return weight(f"{prefix}.q_k_v_proj.weight")[rows[part]]
        name = name.replace("model.embed_tokens.", "model.embedding.").replace(".o_proj.", ".out_proj.")
        return weight(name)

    return renamed


def header(writer: Any, model: Llama) -> None:
    """The sizes."""
    writer.add_name(model.name)
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.hidden)
    writer.add_feed_forward_length(model.intermediate)
    writer.add_block_count(model.layers)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_vocab_size(model.vocabulary)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_rope_freq_base(model.rope_base)
    writer.add_layer_norm_rms_eps(model.norm_eps)


def tokenizer(writer: Any, folder: Path, config: Mapping[str, Any], kind: str) -> None:
    """The byte-level BPE of a `tokenizer.json`. `kind`: llama.cpp's name of the rule that splits text beforehand.

    Its loader wants a merge; a tokenizer that has none gets one of its two last tokens, fillers that no text holds.
    """
    from gguf import TokenType

    value = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = value["model"]["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    special = {added["content"] for added in value["added_tokens"] if added["special"]}
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in value["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges or [" ".join(tokens[-2:])])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def write(path: Path, model: Llama, describe: Callable[[Any], None], weight: Weight) -> None:
    """Write `path`: vectors in float32, matrices in bfloat16. `describe`: adds the tokenizer."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, "llama")
    header(writer, model)
    describe(writer)
    announced = shapes(model)
    for name, shape in announced.items():
        if len(shape) == 1:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * shape[0])
        else:  # numpy has no bfloat16: two bytes each
            row = (*shape[:-1], 2 * shape[-1])
            size = int(np.prod(row))
            writer.add_tensor_info(name, row, np.dtype(np.uint8), size, GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in announced.items():
        values = tensor(model, name, weight)
        if values.shape != shape:
            raise SystemExit(f"{name}: the weight has shape {values.shape}, the configuration says {shape}")
        writer.write_tensor_data(float32(values) if values.ndim == 1 else np.ascontiguousarray(values))
    writer.close()


def float32(bits: np.ndarray) -> np.ndarray:
    """Bfloat16 bits (uint16) as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def weights(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of every weight of a Hugging Face directory."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            yield from ((name, path) for name in file.keys())  # noqa: SIM118  safe_open is no mapping


def reader(folder: Path) -> Weight:
    """Read weights by name; each call reads from the file, nothing is kept. Only bfloat16 is taken."""
    import torch
    from safetensors import safe_open

    where = dict(weights(folder))

    def read(name: str) -> np.ndarray:
        with safe_open(where[name], framework="pt") as file:
            found = file.get_tensor(name)
        if found.dtype != torch.bfloat16:
            raise SystemExit(f"{name} is {found.dtype}; this recipe reads torch.bfloat16 only")
        bits: np.ndarray = found.view(torch.int16).numpy().view(np.uint16)
        return bits

    return read


def quantize(engine: Path, source: Path, target: Path) -> None:
    """Let llama-quantize of the `engine` folder make Q4_K_M. Raise `SystemExit` with what it said if it fails."""
    program = [str(engine / "bin" / "llama-quantize"), str(source), str(target), _TYPE, _THREADS]
    done = subprocess.run(program, capture_output=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()[-2000:]
        raise SystemExit(f"llama-quantize ended with exit code {done.returncode}; it said:\n{said}")


def convert(name: str, source: Path, engine: Path, target: Path) -> None:
    """Write `target`/model.gguf from the Hugging Face directory `source`."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    model = sizes(name, config)
    read = reader(source)
    weight = spark(model, read) if config["model_type"] == "spark2_5" else read
    kind = "smollm" if name.startswith("smollm2") else "gpt-2"
    wide = target / "wide.gguf"
    print(f"{name}: writing {model.layers} layers in bfloat16", file=sys.stderr, flush=True)
    write(wide, model, lambda writer: tokenizer(writer, source, config, kind), weight)
    print(f"{name}: quantizing to {_TYPE}", file=sys.stderr, flush=True)
    quantize(engine, wide, target / "model.gguf")
    wide.unlink()
