"""Whole models through vLLM's own classes and loader, layer by layer against the bf16 weights that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import inside
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from cpu_int4.fields import SettingsError
from cpu_int4.format import CheckpointError

FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}


def applied(layer: Any, rows: torch.Tensor) -> torch.Tensor:
    """Rows through a layer's method, without bias."""
    out: torch.Tensor = layer.quant_method.apply(layer, rows, None)
    return out


def weight_of(layer: Any, columns: int) -> torch.Tensor:
    """The bf16 weight [N, K] that a layer multiplies with, read by multiplying with the identity (a wide batch)."""
    return applied(layer, torch.eye(columns).bfloat16()).t()


def check_layers(model: torch.nn.Module, meant: tiny.Weights) -> None:
    """Every linear layer of the model holds its parts' weights bit for bit, and its parts' biases."""
    for index, layer in enumerate(model.model.layers):
        for fused, parts in FUSED.items():
            module = layer.get_submodule(fused)
            names = [f"model.layers.{index}.{part}" for part in parts]
            expected = torch.cat([meant[f"{name}.weight"] for name in names])
            assert torch.equal(weight_of(module, expected.shape[1]), expected), fused
            biases = [meant[f"{name}.bias"] for name in names if f"{name}.bias" in meant]
            assert module.bias is None if not biases else torch.equal(module.bias, torch.cat(biases)), fused


def check_embedding(model: torch.nn.Module, meant: tiny.Weights) -> None:
    """Lookup and logits use the weights that they stand for."""
    embedding = meant["model.embed_tokens.weight"]
    head = meant.get("lm_head.weight", embedding)
    ids = torch.tensor([0, 63, 64, 200, embedding.shape[0] - 1])
    assert torch.equal(model.model.embed_tokens(ids), embedding[ids])
    logits = applied(model.lm_head, torch.eye(embedding.shape[1]).bfloat16())
    assert torch.equal(logits[:, : head.shape[0]].t(), head)


@pytest.mark.parametrize("embedding", [True, False], ids=["embedding-int4", "embedding-bf16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", [tiny.llama, tiny.qwen2], ids=["llama", "qwen2"])
def test_case_50_embeddings_tied_or_not_quantized_or_not_equal_what_they_stand_for(
    tmp_path: Path, kind: Any, *, tied: bool, embedding: bool
) -> None:
    """Llama (which passes no name for its embedding) and Qwen2 (with biases): lookup, logits, layers, bit for bit."""
    config = kind(tie_word_embeddings=tied)
    leave = () if embedding else ("embed_tokens", "lm_head")
    folder, plain = tiny.pair(tmp_path, config, leave=leave, quantize_embedding=embedding)
    meant = load_file(plain / "model.safetensors")
    model, method = inside.loaded(folder)
    check_layers(model, meant)
    check_embedding(model, meant)
    heads = {(True, True): "int4_tied_head", (True, False): "int4_head"}
    counts = {"int4_linear": 8}
    if embedding:
        counts |= {"int4_embedding": 1, heads[embedding, tied]: 1}
    else:
        counts |= {"bf16:quantize_embedding_off": 2}
    assert method.engagement(model)["modules"] == counts


def test_case_50_one_packed_copy_serves_lookup_and_head(tmp_path: Path) -> None:
    """A tied head has no tensor of its own, and the model holds one tensor of the embedding's packed size."""
    folder, _ = tiny.pair(tmp_path, tiny.llama())
    model, _ = inside.loaded(folder)
    assert not list(model.lm_head.parameters())
    assert not list(model.lm_head.buffers())
    owner = model.lm_head.quant_method.owner
    assert owner is model.model.embed_tokens
    held = {t.untyped_storage().data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()] if t.dim() == 2}
    assert sorted(held.values()).count(320 * 128 // 2) == 1
    assert owner.packed.data_ptr() in held


def test_case_50_an_untied_head_quantized_beside_a_bf16_embedding(tmp_path: Path) -> None:
    """Each is served as the checkpoint holds it, the embedding left in bf16 by name."""
    config = tiny.llama(tie_word_embeddings=False)
    listed = ["model.embed_tokens"]
    folder, plain = tiny.pair(tmp_path, config, leave=("embed_tokens",), modules_not_converted=listed)
    model, method = inside.loaded(folder)
    check_embedding(model, load_file(plain / "model.safetensors"))
    assert method.engagement(model)["modules"] == {"int4_linear": 8, "int4_head": 1, "bf16:listed": 1}


def test_a_vocabulary_that_vllm_pads_is_looked_up_and_multiplied(tmp_path: Path) -> None:
    """304 rows are padded to 320: rows keep their places, padding stays out of the logits."""
    folder, plain = tiny.pair(tmp_path, tiny.llama(vocab_size=304))
    model, _ = inside.loaded(folder)
    check_embedding(model, load_file(plain / "model.safetensors"))


@pytest.mark.parametrize("field", [{"direct_dequant": False}, {"prefill_dequant": False}, {"dequant_threshold": 200}])
def test_every_way_of_dequantizing_gives_the_same_model(tmp_path: Path, field: dict[str, Any]) -> None:
    """Copy, no dequantization and a high threshold all multiply with the same weights."""
    folder, plain = tiny.pair(tmp_path, tiny.qwen2(), **field)
    meant = load_file(plain / "model.safetensors")
    model, _ = inside.loaded(folder)
    layer = model.model.layers[1].mlp.down_proj
    expected = meant["model.layers.1.mlp.down_proj.weight"]
    # the 4-bit kernel sums in another order, and rounds once: one bf16 rounding of a weight
    assert torch.allclose(weight_of(layer, 256).float(), expected.float(), rtol=2**-8, atol=0)
    assert (layer.halves is not None) is (field == {"direct_dequant": False})


def test_case_65_parts_start_inside_a_block(tmp_path: Path) -> None:
    """Heads of 24 and two KV heads: k starts at row 96 and v at row 144 of blocks of 64."""
    config = tiny.llama(head_dim=24, num_attention_heads=4, num_key_value_heads=2, intermediate_size=160)
    config |= {"hidden_size": 96}
    folder, plain = tiny.pair(tmp_path, config)
    model, _ = inside.loaded(folder)
    check_layers(model, load_file(plain / "model.safetensors"))


LISTS = {
    "parts by full name": [f"model.layers.{i}.self_attn.{p}_proj" for i in range(2) for p in "qkv"],
    "parts by last name": ["q_proj", "k_proj", "v_proj"],
    "fused name": ["qkv_proj"],
    "pattern on parts": [r"re:.*\.[qkv]_proj$"],
    "pattern on the fused name": [r"re:.*qkv_proj"],
    "a whole block by name": ["self_attn.q_proj", "self_attn.k_proj", "qkv_proj"],
}


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
def test_case_65_a_fused_layer_left_in_bf16_may_be_listed_in_either_naming(tmp_path: Path, listed: list[str]) -> None:
    """Part names, the fused name and patterns mean the same layer; it is bf16, counted with its reason."""
    leave = ("q_proj", "k_proj", "v_proj")
    folder, plain = tiny.pair(tmp_path, tiny.llama(), leave=leave, modules_not_converted=listed)
    model, method = inside.loaded(folder)
    assert method.engagement(model)["modules"] == {
        "bf16:listed": 2,
        "int4_embedding": 1,
        "int4_linear": 6,
        "int4_tied_head": 1,
    }
    del plain


@pytest.mark.parametrize("listed", [["k_proj"], ["q_proj", "v_proj", "k_proj"]])
def test_case_65_parts_quantized_differently_are_refused_with_their_names(tmp_path: Path, listed: list[str]) -> None:
    """One bf16 part in a fused layer: both sides are named, whatever is listed."""
    folder, _ = tiny.pair(tmp_path, tiny.llama(), leave=("k_proj",), modules_not_converted=listed)
    with pytest.raises(SettingsError) as caught:
        inside.loaded(folder)
    message = str(caught.value)
    assert "model.layers.0.self_attn.qkv_proj: its parts are one matrix here" in message
    assert "quantized in the checkpoint: model.layers.0.self_attn.q_proj, model.layers.0.self_attn.v_proj" in message
    assert "not: model.layers.0.self_attn.k_proj" in message


@pytest.mark.parametrize("listed", [["k_proj"], ["qkv_proj"], ["re:.*down_proj"], ["model.layers.1"]])
def test_case_65_a_list_that_contradicts_the_checkpoint_is_refused_with_names(
    tmp_path: Path, listed: list[str]
) -> None:
    """A list added to a checkpoint that holds the module quantized cannot be honoured, and is not ignored."""
    folder, _ = tiny.pair(tmp_path, tiny.llama(), modules_not_converted=listed)
    with pytest.raises(SettingsError, match=r"modules_not_converted lists .*, but the checkpoint holds model\.layers"):
        inside.loaded(folder)


def test_case_48_a_layer_in_bf16_that_nobody_listed_is_refused(tmp_path: Path) -> None:
    """A layer silently left unquantized is an error that names it."""
    folder, _ = tiny.pair(tmp_path, tiny.llama(), leave=("layers.1.mlp.down_proj",))
    with pytest.raises(SettingsError, match=r"the checkpoint holds model\.layers\.1\.mlp\.down_proj in bf16, and"):
        inside.loaded(folder)


def test_case_48_a_layer_that_lost_its_method_shows_in_the_report(tmp_path: Path) -> None:
    """Engagement is counted on the model that runs: a layer with another method than was chosen is `unexplained`."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    folder, _ = tiny.pair(tmp_path, tiny.llama())
    model, method = inside.loaded(folder)
    model.model.layers[0].mlp.down_proj.quant_method = UnquantizedLinearMethod()
    counts = method.engagement(model)["modules"]
    assert counts["bf16:unexplained"] == 1
    assert counts["int4_linear"] == 7


def test_calls_come_from_inside_the_operators(tmp_path: Path) -> None:
    """One row and two rows through a layer count on different paths, a lookup on a third."""
    folder, _ = tiny.pair(tmp_path, tiny.llama())
    model, method = inside.loaded(folder)
    before = method.engagement(model)["calls"]
    layer = model.model.layers[0].mlp.down_proj
    applied(layer, torch.ones(1, 256).bfloat16())
    applied(layer, torch.ones(2, 256).bfloat16())
    model.model.embed_tokens(torch.tensor([1]))
    after = method.engagement(model)["calls"]
    grown = {path: after[path] - before[path] for path in after if after[path] != before[path]}
    assert grown == {"tinygemm": 1, "dequant_direct": 1, "embedding_direct": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quantize_embedding": False}, r"quantize_embedding is false, but the checkpoint holds model\.embed_tokens"),
        ({"modules_not_converted": ["lm_head"]}, r"'lm_head' means lm_head, which is tied to the quantized model\.emb"),
        ({"modules_not_converted": ["embed_tokens"]}, r"lists embed_tokens, but the checkpoint holds model\.embed_tok"),
    ],
)
def test_what_the_checkpoint_holds_cannot_be_changed_by_a_field(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """Fields that describe the checkpoint are held against it."""
    folder, _ = tiny.pair(tmp_path, tiny.llama(), **change)
    with pytest.raises(SettingsError, match=words):
        inside.loaded(folder)


def dropped(folder: Path, *names: str) -> Path:
    """The checkpoint without these tensors, its index and manifest rewritten to match: only the model misses them."""
    tensors = load_file(folder / "model-00001-of-00001.safetensors")
    return tiny.write(folder, json.loads((folder / "config.json").read_text()), {
        name: tensor for name, tensor in tensors.items() if name not in names
    })  # fmt: skip


@pytest.mark.parametrize(
    "name", ["model.layers.1.input_layernorm.weight", "model.norm.weight", "model.layers.0.self_attn.k_proj.bias"]
)
def test_case_64_a_tensor_that_the_model_needs_and_nobody_promised_is_named(tmp_path: Path, name: str) -> None:
    """Norms and biases that would stay uninitialised are found by a census over every parameter of the model."""
    folder, _ = tiny.pair(tmp_path, tiny.qwen2())
    dropped(folder, name)
    expected = name.replace("k_proj.bias", r"qkv_proj.bias \(parts k\)")
    with pytest.raises(CheckpointError, match=rf"1 tensors were not loaded: {expected}"):
        inside.loaded(folder)


def test_case_64_a_module_missing_altogether_is_named(tmp_path: Path) -> None:
    """No tensor of a module, and no promise of one: the layer and what it lacks are named."""
    folder, _ = tiny.pair(tmp_path, tiny.llama())
    dropped(folder, *(f"model.layers.1.mlp.down_proj.{part}" for part in ("qweight", "scales", "zeros")))
    with pytest.raises(SettingsError, match=r"holds model\.layers\.1\.mlp\.down_proj not at all"):
        inside.loaded(folder)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            "model.layers.2.mlp.down_proj",
            r"model\.layers\.2\.mlp\.down_proj\.\{qweight,scales,zeros\}: no module of Ll",
        ),
        ("lm_head", r"lm_head\.\{qweight,scales,zeros\}: no module of LlamaForCausalLM takes them"),
    ],
)
def test_case_64_quantized_tensors_that_no_module_takes_are_refused(tmp_path: Path, extra: str, words: str) -> None:
    """A third layer's tensors in a model of two, or a head's own in a tied model: named, with the model's class."""
    stored, _ = tiny.convert(tiny.weights(tiny.llama()), (), 32)
    parts = tiny.quantized(torch.randn(320, 128), 32)
    stored |= {f"{extra}.{part}": tensor for part, tensor in parts.items()}
    folder = tiny.write(tmp_path, {**tiny.llama(), "quantization_config": tiny.fields()}, stored)
    with pytest.raises(CheckpointError, match=words):
        inside.loaded(folder)


def test_case_64_a_bias_that_the_model_would_drop_is_refused(tmp_path: Path) -> None:
    """Unexpected biases are dropped without a word by the loader: here they are an error with their name."""
    stored, _ = tiny.convert(tiny.weights(tiny.llama()), (), 32)
    stored["model.layers.0.self_attn.k_proj.bias"] = torch.zeros(64).bfloat16()
    folder = tiny.write(tmp_path, {**tiny.llama(), "quantization_config": tiny.fields()}, stored)
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.self_attn\.k_proj\.bias: the module has no bias in"):
        inside.loaded(folder)


def test_case_59_changed_bytes_stop_the_load(tmp_path: Path) -> None:
    """A flipped bit in a scale is found before any tensor is used, by name."""
    folder, _ = tiny.pair(tmp_path, tiny.llama())
    shard = folder / "model-00001-of-00001.safetensors"
    tensors = load_file(shard)
    name = "model.layers.1.mlp.up_proj.scales"
    tensors[name].view(torch.int16)[7, 2] ^= 1
    save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=rf"tensor {name}: SHA-256 is"):
        inside.loaded(folder)


@pytest.mark.parametrize(("dtype", "shown"), [("float16", "torch.float16"), ("float32", "torch.float32")])
def test_case_53_another_dtype_is_refused_with_the_flag_to_pass(tmp_path: Path, dtype: str, shown: str) -> None:
    """Supported is bfloat16 alone, said while the configuration is read, with the flag that mends it."""
    folder, _ = tiny.pair(tmp_path, tiny.llama())
    with pytest.raises(ValueError, match=rf'{shown} is not supported .*pass dtype="bfloat16" \(--dtype bfloat16\)'):
        inside.engine_config(folder, dtype=dtype)


def test_case_53_a_checkpoint_whose_own_dtype_is_another_is_refused_with_the_flag(tmp_path: Path) -> None:
    """`dtype: auto` follows the checkpoint; float16 there is refused, and loads where the flag is passed."""
    folder, _ = tiny.pair(tmp_path, tiny.llama(torch_dtype="float16"))
    with pytest.raises(ValueError, match=r'pass dtype="bfloat16"'):
        inside.engine_config(folder, dtype="auto")
    inside.loaded(folder)


def test_case_54_unsupported_fields_are_refused_while_the_configuration_is_read(tmp_path: Path) -> None:
    """The refusal comes from reading the configuration: no weight is touched (the shard is not even there)."""
    folder, _ = tiny.pair(tmp_path, tiny.llama(), sym=True)
    (folder / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(ValueError, match=r"sym: True is not supported"):
        inside.engine_config(folder)


def test_case_54_one_field_alone_through_hf_overrides_is_refused(tmp_path: Path) -> None:
    """hf_overrides replaces the whole dictionary; what is left names no method, and is refused rather than ignored."""
    folder, _ = tiny.pair(tmp_path, tiny.llama())
    with pytest.raises(ValueError, match=r"hf_overrides replaces the whole dictionary"):
        inside.engine_config(folder, hf_overrides={"quantization_config": {"direct_dequant": False}})


def test_an_unquantized_checkpoint_is_refused_where_the_method_is_asked_for(tmp_path: Path) -> None:
    """`quantization="cpu_int4"` on a plain checkpoint says what is missing and how to make it."""
    _, plain = tiny.pair(tmp_path, tiny.llama())
    with pytest.raises(ValueError, match=r"no quantization_config in its config\.json\. Make one with `cpu-int4 quant"):
        inside.engine_config(plain, quantization="cpu_int4")


def test_other_tools_checkpoints_are_left_alone(tmp_path: Path) -> None:
    """A checkpoint of another method is read as if this plugin were not there."""
    config = tiny.llama(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    tmp_path.joinpath("config.json").write_text(json.dumps(config))
    assert inside.engine_config(tmp_path).quant_config.get_name() == "fp8"
