"""A checkpoint on disk against its manifest: every way to be torn is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from cpu_int4.checkpoint import open_checkpoint, verify_bytes
from cpu_int4.format import CheckpointError

LAYER = "model.layers.1.mlp.down_proj"
ZEROS = f"{LAYER}.zeros"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint of two shards."""
    stored, _ = tiny.convert(tiny.weights(tiny.llama()), (), 32)
    config = {**tiny.llama(), "quantization_config": tiny.fields()}
    return tiny.write(tmp_path / "model", config, stored, shards=2)


def refusal(folder: Path, group_size: int = 32) -> str:
    """The message with which a checkpoint is refused before its bytes are read."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder, group_size)
    return str(caught.value)


def shard_of(folder: Path, name: str) -> Path:
    """The file that holds a tensor."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / str(index["weight_map"][name])


def rewritten(folder: Path, change: Callable[[tiny.Weights], None]) -> Path:
    """The shard of ZEROS with its tensors changed; index and manifest stay."""
    shard = shard_of(folder, ZEROS)
    tensors = load_file(shard)
    change(tensors)
    save_file(tensors, shard)
    return shard


def test_a_whole_checkpoint_opens_and_its_bytes_are_right(folder: Path) -> None:
    """What the writer wrote is accepted; N and K of quantized modules are known from headers alone."""
    checkpoint = open_checkpoint(folder, 32)
    assert checkpoint.quantized[LAYER] == (128, 256)
    assert not checkpoint.plain(LAYER)
    assert checkpoint.plain("model.norm")
    verify_bytes(checkpoint)


def test_case_64_a_deleted_shard_is_named_with_what_it_held(folder: Path) -> None:
    """A shard that is gone is an error with its name and its tensors."""
    shard = shard_of(folder, ZEROS)
    shard.unlink()
    assert f"{shard.name}: the file is missing; it holds model." in refusal(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_case_64_a_truncated_shard_is_named(folder: Path, keep: int) -> None:
    """A shard cut in its length field, its header or its last byte is an error with its name."""
    shard = shard_of(folder, ZEROS)
    shard.write_bytes(shard.read_bytes()[:keep])
    assert f"{shard.name}: torn or no safetensors file" in refusal(folder)


def test_case_64_a_deleted_tensor_is_named(folder: Path) -> None:
    """The zeros of one layer alone missing from a rewritten file is an error that names them."""
    shard = rewritten(folder, lambda tensors: tensors.pop(ZEROS))
    assert f"{shard.name}: tensor {ZEROS} is missing" in refusal(folder)


def test_case_64_a_renamed_tensor_is_named_twice(folder: Path) -> None:
    """Old and new name both stand in the message."""
    rewritten(folder, lambda tensors: tensors.update({LAYER + ".zeroes": tensors.pop(ZEROS)}))
    message = refusal(folder)
    assert f"tensor {ZEROS} is missing" in message
    assert f"tensor {LAYER}.zeroes is not in the manifest" in message


def test_case_64_a_wrong_dtype_is_named(folder: Path) -> None:
    """Scales in float16 are refused: dtype found and dtype promised."""
    rewritten(folder, lambda tensors: tensors.update({ZEROS: tensors[ZEROS].half()}))
    assert f"tensor {ZEROS}: dtype is F16, the manifest says BF16" in refusal(folder)


def test_case_64_a_wrong_shape_is_named(folder: Path) -> None:
    """Too few scales, which a kernel would read past, are refused: shape found and shape promised."""
    rewritten(folder, lambda tensors: tensors.update({ZEROS: tensors[ZEROS][:, :-1].contiguous()}))
    assert f"tensor {ZEROS}: shape is [128, 7], the manifest says [128, 8]" in refusal(folder)


def test_case_64_an_extra_file_is_named(folder: Path) -> None:
    """A file that the manifest does not know would be loaded too."""
    save_file({"more": torch.zeros(2)}, folder / "extra.safetensors")
    assert "extra.safetensors: not in the manifest" in refusal(folder)


def test_case_64_an_index_that_lost_a_file_is_named(folder: Path) -> None:
    """Only the files that the index names are read: one that lost a tensor's file is an error."""
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"][ZEROS]
    path.write_text(json.dumps(index))
    assert f"model.safetensors.index.json: does not place these tensors where the manifest does: {ZEROS}" in refusal(
        folder
    )


def test_case_67_activation_order_is_refused(tmp_path: Path) -> None:
    """A g_idx, trivial or not, belongs to a format whose order of groups is another: an error, not a skip."""
    stored, _ = tiny.convert(tiny.weights(tiny.llama()), (), 32)
    stored[f"{LAYER}.g_idx"] = torch.arange(256, dtype=torch.int32) // 32
    folder = tiny.write(tmp_path, tiny.llama(), stored)
    assert f"tensor {LAYER}.g_idx: belongs to another tool's format" in refusal(folder)


def test_case_59_bytes_that_changed_under_an_unchanged_header_are_named(folder: Path) -> None:
    """One flipped bit passes every header and fails the checksum of its tensor, by name."""
    name = f"{LAYER}.qweight"
    shard = shard_of(folder, name)
    tensors = load_file(shard)
    tensors[name][3, 5] ^= 1
    save_file(tensors, shard)
    checkpoint = open_checkpoint(folder, 32)
    with pytest.raises(CheckpointError, match=rf"tensor {name}: SHA-256 is"):
        verify_bytes(checkpoint)


@pytest.mark.parametrize("steps", [1, -1])
def test_case_58_zero_points_stored_one_step_off_are_refused(folder: Path, steps: int) -> None:
    """GPTQ v1 stores its zero points minus one, v2 as they are: read as the other, every weight is one scale off. Here
    zeros so shifted, of the right shape and dtype, fail the checksum, which names the tensor.
    """
    scales = load_file(shard_of(folder, f"{LAYER}.scales"))[f"{LAYER}.scales"]
    rewritten(folder, lambda tensors: tensors.update({ZEROS: tensors[ZEROS] + steps * scales}))
    checkpoint = open_checkpoint(folder, 32)
    with pytest.raises(CheckpointError, match=rf"tensor {ZEROS}: SHA-256 is"):
        verify_bytes(checkpoint)


def test_case_59_a_checkpoint_without_a_manifest_is_refused(folder: Path) -> None:
    """Nothing can be checked without the checksums, so nothing is loaded."""
    (folder / "cpu_int4.json").unlink()
    assert "has no cpu_int4.json" in refusal(folder)


def test_case_65_a_group_size_other_than_the_checkpoints_is_refused(folder: Path) -> None:
    """A group size changed in the configuration does not fit the scales: tensor and both shapes are told."""
    message = refusal(folder, 64)
    assert (
        f"tensor {LAYER}.scales: is BF16 [128, 8]; at group_size 64 a weight of [128, 256] has BF16 [128, 4]" in message
    )


@pytest.mark.parametrize(
    ("n", "k", "words"),
    [
        (64, 4304, "K = 4304 is not a multiple of the group size 32"),
        (15, 64, "N = 15 is not a multiple of 16"),
        (65, 96, "N = 65 is not a multiple of 16"),
        (1, 48, "K = 48 is not a multiple of the group size 32 and N = 1 is not a multiple of 16"),
    ],
)
def test_case_66_sizes_that_the_kernel_cannot_take_are_refused_with_their_numbers(
    tmp_path: Path, n: int, k: int, words: str
) -> None:
    """Before anything is loaded: the module, its numbers, and that it can be left in bf16."""
    groups = -(-k // 32)
    stored = {
        "a.qweight": torch.zeros(n, k // 2, dtype=torch.uint8),
        "a.scales": torch.ones(n, groups).bfloat16(),
        "a.zeros": torch.ones(n, groups).bfloat16(),
    }
    message = refusal(tiny.write(tmp_path, {}, stored))
    assert f"a: {words}; leave this module in bf16" in message


def test_a_module_both_quantized_and_plain_is_refused(tmp_path: Path) -> None:
    """Which of the two to use is not guessed."""
    stored = {f"a.{part}": tensor for part, tensor in tiny.quantized(torch.randn(16, 32), 32).items()}
    folder = tiny.write(tmp_path, {}, {**stored, "a.weight": torch.zeros(16, 32).bfloat16()})
    assert "a: both quantized and plain" in refusal(folder)
