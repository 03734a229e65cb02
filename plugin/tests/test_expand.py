"""`cpu-int4 expand`: back to a plain checkpoint."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from cpu_int4 import layout
from cpu_int4.expand import expand
from cpu_int4.format import CheckpointError
from cpu_int4.pack import pack
from cpu_int4.quantize import quantize
from cpu_int4.selection import Options


def made(folder: Path, *, group: int = 64, shard_bytes: int = 1 << 30, **changes: object) -> tuple[Path, Path]:
    """A llama and its quantized form."""
    source = models.llama(folder / "m", **changes)  # type: ignore[arg-type]
    quantize(source, folder / "q", Options(group_size=group), shard_bytes=shard_bytes)
    return source, folder / "q"


def test_an_expanded_checkpoint_is_a_plain_one(tmp_path: Path) -> None:
    """The names, shapes and configuration of the original, in bfloat16; no trace of the quantization."""
    source, int4 = made(tmp_path, shard_bytes=30_000, tie_word_embeddings=False)
    expand(int4, tmp_path / "x")
    before, after = models.tensors(source), models.tensors(tmp_path / "x")
    assert {n: (t.shape, t.dtype) for n, t in after.items()} == {n: (t.shape, t.dtype) for n, t in before.items()}
    assert models.document(tmp_path / "x") == models.document(source)
    names = {path.name for path in (tmp_path / "x").iterdir()}
    assert names >= {"tokenizer.json", "generation_config.json", "model.safetensors.index.json"}
    assert "cpu_int4.json" not in names


def test_expanded_weights_are_what_the_stored_numbers_stand_for(tmp_path: Path) -> None:
    """Bit for bit (q - 8) * s + z by an own hand; what was not quantized is unchanged."""
    source, int4 = made(tmp_path)
    expand(int4, tmp_path / "x")
    before, stored, after = models.tensors(source), models.tensors(int4), models.tensors(tmp_path / "x")
    for name, weight in after.items():
        if weight.dim() == 1:
            assert torch.equal(weight, before[name])
        else:
            parts = {p: stored[f"{name.removesuffix('.weight')}.{p}"] for p in ("qweight", "scales", "zeros")}
            assert torch.equal(weight, tiny.dequantized(parts, 64))


def test_expanded_weights_are_what_the_wide_path_multiplies_by(tmp_path: Path) -> None:
    """Bit for bit what the plugin unpacks from the kernel's layout, from one checkpoint on disk."""
    _, int4 = made(tmp_path)
    expand(int4, tmp_path / "x")
    stored, after = models.tensors(int4), models.tensors(tmp_path / "x")
    for module in ("model.embed_tokens", "model.layers.0.mlp.down_proj", "model.layers.1.self_attn.k_proj"):
        qweight, scales, zeros = (stored[f"{module}.{part}"] for part in ("qweight", "scales", "zeros"))
        packed = pack(qweight, scales, zeros, group_size=64, keep_halves=False, repack_bytes=1 << 20)
        wide = layout._dequantize_from_int4pack(packed.packed, packed.scales_and_zeros, 64, layout.probe())
        assert torch.equal(after[f"{module}.weight"], wide)


def test_a_checkpoint_by_another_hand_expands(tmp_path: Path) -> None:
    """A checkpoint of the format that this package did not write gives the weights it stands for."""
    int4, plain = tiny.pair(tmp_path, tiny.llama(), group=32, leave=("o_proj",))
    expand(int4, tmp_path / "x")
    expected, found = models.tensors(plain), models.tensors(tmp_path / "x")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_case_59_a_changed_byte_stops_the_expansion(tmp_path: Path) -> None:
    """One code changed on disk: the tensor is named, both checksums are said, and there is no target."""
    _, int4 = made(tmp_path)
    tensors = load_file(int4 / "model-00001-of-00001.safetensors")
    tensors["model.layers.1.mlp.down_proj.qweight"][3, 7] ^= 1
    save_file(tensors, int4 / "model-00001-of-00001.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.1\.mlp\.down_proj\.qweight: SHA-256 is \w{64}"):
        expand(int4, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_plain_checkpoint_is_not_expanded(tmp_path: Path) -> None:
    """It says that there is nothing to expand, and in which file it looked."""
    with pytest.raises(CheckpointError, match=r"config\.json: has no quantization_config: the model is not quantized"):
        expand(models.llama(tmp_path / "m"), tmp_path / "x")


def test_expanding_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """Same input, same files."""
    _, int4 = made(tmp_path)
    for name in ("x", "y"):
        expand(int4, tmp_path / name)
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("x", "y"))
    assert first == second


def test_transformers_loads_it(tmp_path: Path) -> None:
    """The library that the format comes from finds every weight and no other."""
    transformers = pytest.importorskip("transformers")
    _, int4 = made(tmp_path, shard_bytes=30_000)
    expand(int4, tmp_path / "x", shard_bytes=60_000)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    found = models.tensors(tmp_path / "x")["model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, found.to(model.dtype))
