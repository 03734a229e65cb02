"""Shards written row by row, against the safetensors library."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cpu_int4.write import PlannedTensor, Shard, ShardWriter, plan_shards

DTYPES = {torch.uint8: "U8", torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}


def planned(tensors: dict[str, torch.Tensor]) -> list[list[PlannedTensor]]:
    """Each tensor a unit of its own."""
    return [[PlannedTensor(name=n, dtype=DTYPES[t.dtype], shape=tuple(t.shape))] for n, t in tensors.items()]


def written(folder: Path, tensors: dict[str, torch.Tensor], shards: tuple[Shard, ...]) -> ShardWriter:
    """All tensors written, three rows at a time, the last tensor first."""
    writer = ShardWriter(folder, shards)
    for name, tensor in reversed(tensors.items()):
        for rows in tensor.split(3) if tensor.dim() else [tensor]:
            writer.write(name, rows)
    return writer


def test_a_shard_has_the_very_bytes_that_the_library_writes(tmp_path: Path, generator: torch.Generator) -> None:
    """Mixed dtypes, odd lengths, a scalar, an empty tensor and a name that is not ASCII: equal to `save_file`."""
    tensors = {
        "b.odd": torch.randint(0, 255, (7, 3), generator=generator, dtype=torch.uint8),
        "a.weight": torch.randn(10, 4, generator=generator).bfloat16(),
        "z.count": torch.tensor(5),
        "m.none": torch.zeros(0, 8),
        "é.flag": torch.tensor([True, False, True]),
        "f.norm": torch.randn(5, generator=generator),
    }
    shards = plan_shards(planned(tensors), 1 << 30)
    written(tmp_path, tensors, shards).finish(tmp_path)
    save_file(tensors, tmp_path / "library", metadata={"format": "pt"})
    assert (tmp_path / "model-00001-of-00001.safetensors").read_bytes() == (tmp_path / "library").read_bytes()


def test_entries_and_index_describe_what_was_written(tmp_path: Path) -> None:
    """Dtype, shape, file and the SHA-256 of the bytes; the index places every tensor and gives the total size."""
    tensors = {"a": torch.arange(6, dtype=torch.int64).view(3, 2), "b": torch.zeros(4, dtype=torch.uint8)}
    entries = written(tmp_path, tensors, plan_shards(planned(tensors), 48)).finish(tmp_path)
    assert entries["a"].sha256 == hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in range(6))).hexdigest()
    assert (entries["a"].dtype, entries["a"].shape) == ("I64", (3, 2))
    assert entries["b"].file == "model-00002-of-00002.safetensors"
    assert json.loads((tmp_path / "model.safetensors.index.json").read_text()) == {
        "metadata": {"total_size": 52},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }


def test_shards_fill_up_and_units_stay_together() -> None:
    """100 bytes a shard, units of 60, 30, 20, 150 and 10 bytes: 60+30, 20, 150 alone, 10."""
    units = [
        [PlannedTensor(name=f"{size}.{part}", dtype="U8", shape=(size // 2,)) for part in "ab"]
        for size in (60, 30, 20, 150, 10)
    ]
    shards = plan_shards(units, 100)
    assert [[tensor.name for tensor in shard.tensors] for shard in shards] == [
        ["30.a", "30.b", "60.a", "60.b"],
        ["20.a", "20.b"],
        ["150.a", "150.b"],
        ["10.a", "10.b"],
    ]
    assert [shard.file for shard in shards][::3] == [f"model-0000{n}-of-00004.safetensors" for n in (1, 4)]


def test_bytes_that_never_came_are_an_error(tmp_path: Path) -> None:
    """A tensor half written cannot be finished; too many rows are refused at once."""
    tensors = {"a": torch.zeros(6, 2)}
    writer = ShardWriter(tmp_path, plan_shards(planned(tensors), 100))
    writer.write("a", tensors["a"][:4])
    with pytest.raises(RuntimeError, match="tensor a: 16 bytes never came"):
        writer.finish(tmp_path)
    with pytest.raises(RuntimeError, match="tensor a: 24 bytes came, 16 had place"):
        writer.write("a", tensors["a"][:3])
    writer.close()
