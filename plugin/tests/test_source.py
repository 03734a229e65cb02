"""Reading Hugging Face directories, whole and torn."""

from __future__ import annotations

import json
from pathlib import Path

import models
import pytest
import torch
from safetensors.torch import save_file

from cpu_int4 import source
from cpu_int4.source import SourceError, chunks, open_source


def test_a_single_file_and_shards_read_the_same(tmp_path: Path) -> None:
    """Names, dtypes and shapes do not depend on how the directory is cut."""
    one = open_source(models.llama(tmp_path / "one"))
    many = open_source(models.llama(tmp_path / "many", shards=3))
    described = [{n: (t.dtype, t.shape) for n, t in found.tensors.items()} for found in (one, many)]
    assert described[0] == described[1]
    assert described[0]["model.norm.weight"] == ("BF16", (128,))


@pytest.mark.parametrize("shape", [(), (7,), (10, 6), (5, 2, 4), (1, 64)])
def test_chunks_are_the_tensor(tmp_path: Path, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks in order make the tensor, each with its first row's number, whatever the dimensions."""
    monkeypatch.setattr(source, "CHUNK_VALUES", 13)
    monkeypatch.setattr(source, "READ_VALUES", 31)
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    folder = models.write(tmp_path / "m", {}, {"t": tensor})
    parts = list(chunks(open_source(folder).tensors["t"]))
    assert torch.equal(torch.cat([rows for _, rows in parts]) if shape else parts[0][1], tensor)
    if len(shape) > 1:
        assert [start for start, _ in parts] == [0, *torch.tensor([len(r) for _, r in parts]).cumsum(0)[:-1].tolist()]
        assert all(rows.numel() <= max(13, tensor[0].numel()) for _, rows in parts)


def test_case_64_a_missing_shard_is_named(tmp_path: Path) -> None:
    """The index names it, the directory lacks it."""
    folder = models.llama(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(SourceError, match=r"model-00002-of-00003\.safetensors: missing"):
        open_source(folder)


def test_case_64_a_truncated_shard_is_named(tmp_path: Path) -> None:
    """A file shorter than its header says, with the size found."""
    folder = models.llama(tmp_path / "m", shards=3)
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(SourceError, match=rf"model-00002-of-00003\.safetensors: torn.*{path.stat().st_size} bytes"):
        open_source(folder)


def test_case_64_missing_and_surplus_tensors_are_named_all_at_once(tmp_path: Path) -> None:
    """A shard that lost one tensor and gained another: one line each."""
    folder = models.write(tmp_path / "m", {}, {name: torch.zeros(2) for name in "abcd"}, shards=2)
    save_file({"c": torch.zeros(2), "e": torch.zeros(2)}, folder / "model-00002-of-00002.safetensors")
    with pytest.raises(SourceError) as caught:
        open_source(folder)
    first, second = str(caught.value).splitlines()
    assert "model-00002-of-00002.safetensors: tensor d is missing" in first
    assert "model-00002-of-00002.safetensors: tensor e is not in" in second


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has no config\.json"),
        ({"config.json": "{"}, r"config\.json: cannot be read as JSON"),
        ({"config.json": "[]"}, r"config\.json: holds list"),
        ({"config.json": "{}"}, r"has no \*\.safetensors$"),
        (
            {"config.json": "{}", "pytorch_model.bin": "x"},
            r"pytorch_model\.bin is of another format: save the model as",
        ),
        (
            {"config.json": "{}", "a.safetensors": "x", "b.safetensors": "x"},
            r"2 shards \(a\.safetensors, \.\.\.\) and no",
        ),
        (
            {"config.json": "{}", "model.safetensors": "xx"},
            r"model\.safetensors: torn or no safetensors file \(2 bytes",
        ),
        ({"config.json": "{}", "model.safetensors.index.json": "{}"}, r"index\.json: is no index"),
    ],
)
def test_directories_that_are_no_model(tmp_path: Path, files: dict[str, str], message: str) -> None:
    """Each is refused with what is missing and what to do."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path)


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    """A path that does not exist is no torn model."""
    with pytest.raises(SourceError, match="nowhere: no such directory"):
        open_source(tmp_path / "nowhere")


def test_one_file_of_any_name_will_do(tmp_path: Path) -> None:
    """A single safetensors file is the model, whatever it is called."""
    (tmp_path / "config.json").write_text(json.dumps({}))
    save_file({"t": torch.zeros(1)}, tmp_path / "weights.safetensors")
    assert list(open_source(tmp_path).tensors) == ["t"]
