"""`cpu-int4 quantize`, from directory to directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import models
import pytest
import tiny
import torch
from safetensors.torch import save_file

from cpu_int4 import grid
from cpu_int4.folder import FolderError
from cpu_int4.format import Manifest, check_tensor, read_manifest
from cpu_int4.quantize import quantize
from cpu_int4.selection import Options
from cpu_int4.source import SourceError

G64 = Options(group_size=64)
PEAK = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
from cpu_int4.{module} import {module}
from cpu_int4.selection import Options
def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) * 1024
torch.ones(1000, 1000).bfloat16().float().sum()  # the libraries' own memory
before = status("VmRSS")
{module}(Path(sys.argv[1]), Path(sys.argv[2]){more})
print(status("VmHWM") - before)
"""


def files(folder: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def manifest_of(folder: Path) -> Manifest:
    """The manifest, which must be there."""
    found = read_manifest(folder)
    assert isinstance(found, Manifest)
    return found


def test_a_llama_becomes_a_checkpoint_of_the_format(tmp_path: Path) -> None:
    """Three tensors for each weight, of the format's dtypes and shapes; norms as they were; no tensor more."""
    source, target = models.llama(tmp_path / "m"), tmp_path / "q"
    quantize(source, target, G64)
    before, after = models.tensors(source), models.tensors(target)
    expected: dict[str, tuple[torch.dtype, list[int]]] = {}
    for name, weight in before.items():
        if weight.dim() == 1:
            assert torch.equal(after[name], weight)
            expected[name] = (torch.bfloat16, list(weight.shape))
            continue
        (n, k), module = weight.shape, name.removesuffix(".weight")
        expected |= {f"{module}.{part}": (torch.bfloat16, [n, k // 64]) for part in ("scales", "zeros")}
        expected[f"{module}.qweight"] = (torch.uint8, [n, k // 2])
    assert {name: (tensor.dtype, list(tensor.shape)) for name, tensor in after.items()} == expected


def test_the_stored_numbers_stand_for_the_weights(tmp_path: Path) -> None:
    """Read back by an own hand, each weight is within half a step of the original."""
    source, target = models.llama(tmp_path / "m"), tmp_path / "q"
    quantize(source, target, G64)
    before, after = models.tensors(source), models.tensors(target)
    for name in (name for name, weight in before.items() if weight.dim() == 2):
        parts = {part: after[f"{name.removesuffix('.weight')}.{part}"] for part in ("qweight", "scales", "zeros")}
        error = (tiny.dequantized(parts, 64).float() - before[name].float()).abs()
        half = parts["scales"].float().repeat_interleave(64, 1) / 2
        # what is read back is rounded to bfloat16 once more, 2^-9 of itself
        assert (error <= half * (1 + 2.0**-8) + 2.0**-8 * before[name].float().abs()).all(), name


def test_the_configuration_says_what_was_done(tmp_path: Path) -> None:
    """`quantization_config` by the format, the dtype bfloat16, all else unchanged."""
    source, target = models.llama(tmp_path / "m", dtype=torch.float16, torch_dtype="float16"), tmp_path / "q"
    quantize(source, target, Options(group_size=32, skip=("layers.1.mlp.down_proj",)))
    expected = models.document(source) | {
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "cpu_int4",
            "format_version": 1,
            "bits": 4,
            "group_size": 32,
            "sym": False,
            "quantize_embedding": True,
            "modules_not_converted": ["model.layers.1.mlp.down_proj"],
        },
    }
    assert models.document(target) == expected


def test_a_newer_configurations_dtype_is_set_too(tmp_path: Path) -> None:
    """`dtype`, and a nested text model's: no second name is added."""
    config = {
        "dtype": "float32",
        "text_config": {"dtype": "float32", "tie_word_embeddings": True},
        "vision": {"dtype": "x"},
    }
    source = models.write(tmp_path / "m", config, tiny.weights(tiny.llama()))
    quantize(source, tmp_path / "q", G64)
    found = models.document(tmp_path / "q")
    del found["quantization_config"]
    text = {"dtype": "bfloat16", "tie_word_embeddings": True}
    assert found == {"dtype": "bfloat16", "text_config": text, "vision": {"dtype": "x"}}


def test_everything_beside_the_weights_is_copied(tmp_path: Path) -> None:
    """Tokenizer, generation settings and code; no weights of another format, no old index, no folders."""
    source = models.llama(tmp_path / "m", shards=2)
    for name in ("modeling_x.py", "LICENSE", "pytorch_model.bin", "pytorch_model.bin.index.json", ".gitattributes"):
        (source / name).write_text(name)
    (source / "onnx").mkdir()
    quantize(source, tmp_path / "q", G64)
    assert sorted(files(tmp_path / "q")) == [
        "LICENSE",
        "config.json",
        "cpu_int4.json",
        "generation_config.json",
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
        "modeling_x.py",
        "tokenizer.json",
    ]


def test_case_59_the_manifest_has_every_tensor_and_its_checksum(tmp_path: Path) -> None:
    """What the loader compares: dtype, shape and SHA-256 of each tensor, none left out."""
    quantize(models.llama(tmp_path / "m"), tmp_path / "q", G64, shard_bytes=40_000)
    tensors, manifest = models.tensors(tmp_path / "q"), manifest_of(tmp_path / "q")
    assert set(manifest.tensors) == set(tensors)
    for name, tensor in tensors.items():
        check_tensor(manifest.tensors[name], name, tensor)
        assert name in models.tensors_of(tmp_path / "q" / manifest.tensors[name].file)


def test_shards_are_bounded_and_the_index_places_every_tensor(tmp_path: Path) -> None:
    """No shard above the bound but for a module that is larger; its three parts lie together."""
    written = quantize(models.llama(tmp_path / "m"), tmp_path / "q", G64, shard_bytes=20_000)
    places = models.document(tmp_path / "q", "model.safetensors.index.json")["weight_map"]
    assert len(set(places.values())) == written.shards > 3
    for module in manifest_of(tmp_path / "q").quantized():
        assert len({places[f"{module}.{part}"] for part in ("qweight", "scales", "zeros")}) == 1
    for file in set(places.values()):
        tensors = models.tensors_of(tmp_path / "q" / file)
        assert sum(t.nbytes for t in tensors.values()) <= 20_000 or len({n.rpartition(".")[0] for n in tensors}) == 1


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """Twice, with another number of threads, and from another cut of the source: every file equal."""
    threads = torch.get_num_threads()
    quantize(models.llama(tmp_path / "m"), tmp_path / "a", G64)
    torch.set_num_threads(threads % 2 + 1)
    try:
        quantize(models.llama(tmp_path / "n", shards=3), tmp_path / "b", G64)
    finally:
        torch.set_num_threads(threads)
    a, b = manifest_of(tmp_path / "a"), manifest_of(tmp_path / "b")
    assert {n: e.sha256 for n, e in a.tensors.items()} == {n: e.sha256 for n, e in b.tensors.items()}
    quantize(tmp_path / "m", tmp_path / "c", G64)
    assert files(tmp_path / "a") == files(tmp_path / "c")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_any_floating_dtype_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    """Weights that bfloat16 holds give the same checkpoint from any dtype; what is not quantized becomes bfloat16."""
    quantize(models.llama(tmp_path / "m"), tmp_path / "a", G64)
    quantize(models.llama(tmp_path / "n", dtype=torch.bfloat16), tmp_path / "b", G64)
    wide = models.write(
        tmp_path / "w", tiny.llama(), {n: t.to(dtype) for n, t in models.tensors(tmp_path / "m").items()}
    )
    quantize(wide, tmp_path / "c", G64)
    weights = {name for name in models.tensors(tmp_path / "a") if name.endswith(".weight")}
    assert manifest_of(tmp_path / "c") == manifest_of(tmp_path / "a") or dtype is torch.float16  # subnormals are lost
    assert {models.tensors(tmp_path / "c")[name].dtype for name in weights} == {torch.bfloat16}


def test_float32_weights_are_not_rounded_first(tmp_path: Path) -> None:
    """Codes come from the weights as stored: two float32 numbers that bfloat16 confuses get different codes."""
    weight = torch.linspace(1, 1 + 2.0**-9, 128)[None].repeat(64, 1)
    weight[:, 0] = 1.0 - 2.0**-6
    folder = models.write(tmp_path / "m", {}, {"model.layers.0.mlp.down_proj.weight": weight})
    quantize(folder, tmp_path / "q", Options(group_size=128))
    rows = grid.quantize_rows(weight, 128)
    assert isinstance(rows, grid.QuantizedRows)
    assert torch.equal(models.tensors(tmp_path / "q")["model.layers.0.mlp.down_proj.qweight"], rows.qweight)
    assert len(set(rows.qweight[0].tolist())) > 2


def test_tensors_that_are_not_floating_are_kept(tmp_path: Path) -> None:
    """Integer buffers stay what they are, to the byte."""
    ids = torch.arange(5, dtype=torch.int64)[None]
    weights = tiny.weights(tiny.llama()) | {"model.position_ids": ids, "model.scalar": torch.tensor(2.5)}
    quantize(models.write(tmp_path / "m", tiny.llama(), weights), tmp_path / "q", G64)
    assert torch.equal(models.tensors(tmp_path / "q")["model.position_ids"], ids)
    assert models.tensors(tmp_path / "q")["model.scalar"].item() == 2.5


def test_spark_keeps_g_proj_and_lists_it(tmp_path: Path) -> None:
    """Eight rows cannot be packed: bfloat16, in modules_not_converted, with the reason in the manifest."""
    source, target = models.spark(tmp_path / "m"), tmp_path / "q"
    written = quantize(source, target, Options(group_size=128))
    g_proj = "model.layers.0.self_attn.g_proj"
    assert torch.equal(models.tensors(target)[f"{g_proj}.weight"], models.tensors(source)[f"{g_proj}.weight"])
    assert models.document(target)["quantization_config"]["modules_not_converted"] == [
        g_proj,
        "model.layers.1.self_attn.g_proj",
    ]
    assert manifest_of(target).left[g_proj] == "N = 8 is not a multiple of 16"
    assert "model.embedding" in written.selection.quantized
    assert models.document(target)["quantization_config"]["quantize_embedding"] is True


def test_without_the_embedding(tmp_path: Path) -> None:
    """--no-embedding: said in the configuration twice, so that no loader guesses."""
    quantize(
        models.llama(tmp_path / "m", tie_word_embeddings=False), tmp_path / "q", Options(group_size=64, embedding=False)
    )
    config = models.document(tmp_path / "q")["quantization_config"]
    assert config["quantize_embedding"] is False
    assert config["modules_not_converted"] == ["lm_head", "model.embed_tokens"]
    assert models.tensors(tmp_path / "q")["lm_head.weight"].shape == (320, 128)


def test_a_head_alone_may_stay(tmp_path: Path) -> None:
    """--skip lm_head: the embedding is still quantized, and the configuration tells the two apart."""
    quantize(
        models.llama(tmp_path / "m", tie_word_embeddings=False),
        tmp_path / "q",
        Options(group_size=64, skip=("lm_head",)),
    )
    config = models.document(tmp_path / "q")["quantization_config"]
    assert (config["quantize_embedding"], config["modules_not_converted"]) == (True, ["lm_head"])
    assert "model.embed_tokens.qweight" in models.tensors(tmp_path / "q")


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_case_61_values_that_are_not_finite_are_refused(tmp_path: Path, name: str, value: float) -> None:
    """Named by file, tensor and position, whether the tensor is quantized or not; nothing is left behind."""
    weights = {n: t.float() for n, t in tiny.weights(tiny.llama()).items()}
    position = (255, 127) if weights[name].dim() == 2 else (127,)
    weights[name][position] = value
    source = models.write(tmp_path / "m", tiny.llama(), weights)
    message = rf"model\.safetensors: tensor {name}: the value at \[{', '.join(map(str, position))}\] is {value};"
    with pytest.raises(SourceError, match=message):
        quantize(source, tmp_path / "q", G64)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_case_61_the_position_counts_from_the_tensors_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row in a later chunk is named by its number in the tensor, not in the chunk."""
    monkeypatch.setattr("cpu_int4.source.CHUNK_VALUES", 1024)
    weights = tiny.weights(tiny.llama())
    weights["model.embed_tokens.weight"][200, 3] = float("nan")
    with pytest.raises(SourceError, match=r"embed_tokens\.weight: the value at \[200, 3\] is nan"):
        quantize(models.write(tmp_path / "m", tiny.llama(), weights), tmp_path / "q", G64)


def test_case_61_float32_beyond_bfloat16_is_refused(tmp_path: Path) -> None:
    """A number that would become infinite in bfloat16 is refused as infinity is, with the limit."""
    weights = {n: t.float() for n, t in tiny.weights(tiny.llama()).items()}
    weights["model.norm.weight"][3] = 3.4e38
    with pytest.raises(SourceError, match=r"at \[3\] is 3\.3999.*e\+38; supported are finite values up to 3\.39e\+38"):
        quantize(models.write(tmp_path / "m", tiny.llama(), weights), tmp_path / "q", G64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quantization_config": {"quant_method": "cpu_int4", "group_size": 64}},
            r"is a cpu_int4 checkpoint already \(group",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"says it is quantized by 'gptq'; start from"),
        ({"quantization_config": {"bits": 4}}, r"says it is quantized by '\{\"bits\": 4\}'"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, r"quantized by 'compressed-tensors'"),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, r"quantized by 'awq'"),
    ],
)
def test_case_54_a_quantized_checkpoint_is_refused_by_name(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    """By its configuration, before a weight is read, naming the method."""
    source = models.write(tmp_path / "m", tiny.llama(**config), tiny.weights(tiny.llama()))
    with pytest.raises(SourceError, match=message):
        quantize(source, tmp_path / "q", G64)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.layers.0.self_attn.q_proj.g_idx", torch.arange(128, dtype=torch.int32)),
        ("model.layers.0.self_attn.q_proj.qzeros", torch.zeros(2, 16, dtype=torch.int32)),
        ("model.layers.0.self_attn.q_proj.weight", torch.zeros(128, 128, dtype=torch.int8)),
        ("model.layers.0.self_attn.q_proj.weight", torch.zeros(128, 128).to(torch.float8_e4m3fn)),
    ],
)
def test_case_67_quantized_tensors_without_a_configuration_are_refused(
    tmp_path: Path, name: str, tensor: torch.Tensor
) -> None:
    """Tensors of GPTQ or weights in 8 bits, in a directory whose configuration says nothing: named with their dtype."""
    source = models.write(tmp_path / "m", tiny.llama(), tiny.weights(tiny.llama()) | {name: tensor})
    with pytest.raises(SourceError, match=rf"holds quantized tensors: {name} \((I32|I8|F8_E4M3)\); start from"):
        quantize(source, tmp_path / "q", G64)


def test_an_existing_target_is_refused_before_the_work(tmp_path: Path) -> None:
    """Untouched without force, replaced with it."""
    source, target = models.llama(tmp_path / "m"), tmp_path / "q"
    quantize(source, target, G64)
    before = files(target)
    with pytest.raises(FolderError, match="exists"):
        quantize(source, target, Options(group_size=32))
    assert files(target) == before
    quantize(source, target, Options(group_size=32), force=True)
    assert models.document(target)["quantization_config"]["group_size"] == 32


@pytest.mark.parametrize(("module", "more"), [("quantize", ", Options(group_size=128)"), ("expand", "")])
def test_memory_does_not_grow_with_the_tensor(tmp_path: Path, module: str, more: str) -> None:
    """A weight of 128 MiB in float32 (64 in bfloat16): the process grows by less than 56 MiB, mapped file
    pages included.

    The bound: 16 MiB mapped, the same copied (READ_VALUES float32), and a dozen arrays of one chunk.
    """
    source = tmp_path / "m"
    models.write(source, {}, {"model.embed_tokens.weight": torch.randn(16384, 2048)})
    if module == "expand":
        quantize(source, tmp_path / "q", Options(group_size=128))
        source = tmp_path / "q"
    script = PEAK.format(module=module, more=more)
    done = subprocess.run(
        [sys.executable, "-c", script, source, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert int(done.stdout) < 56 << 20


def test_a_shard_of_the_source_that_changes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file replaced by a smaller one while it is read: an error that names it, and no target."""
    source = models.llama(tmp_path / "m")

    def torn(*_: object) -> None:
        save_file({"other": torch.zeros(2)}, source / "model.safetensors")

    monkeypatch.setattr("cpu_int4.quantize.check_space", torn)
    with pytest.raises(SourceError, match=r"model\.safetensors: tensor model\..*: cannot be read"):
        quantize(source, tmp_path / "q", G64)
    assert not (tmp_path / "q").exists()
