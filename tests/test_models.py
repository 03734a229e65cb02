"""Models: made whole or not at all, the same bytes each time, and in the order that the engine reads."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.models import gguf_llama, spark, store, tiny_random
from harness.models.make import MAKERS
from harness.models.recipes import RECIPES

CHECKOUT = Path(__file__).parent.parent
ARMS_PYTHON = Path(os.environ.get("HARNESS_ARMS_PYTHON") or CHECKOUT / ".venv-arms" / "bin" / "python")
needs_arms = pytest.mark.skipif(not ARMS_PYTHON.exists(), reason="`make setup` makes the arms' environment")


def test_every_recipe_has_a_maker() -> None:
    """The program that makes models knows those without a parent; every parent is a recipe."""
    assert {name for name, recipe in RECIPES.items() if recipe.parent is None} == set(MAKERS)
    assert {recipe.parent for recipe in RECIPES.values()} - {None} <= set(RECIPES)


def test_rotary_rows_go_back_to_halves() -> None:
    """GGUF interleaves the halves of a head (x0 y0 x1 y1), Hugging Face keeps them apart (x0 x1 y0 y1)."""
    rows = np.array([[0], [2], [1], [3], [10], [12], [11], [13]], dtype=np.float32)
    assert gguf_llama.unpermute(rows, heads=2).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_tensor_names() -> None:
    """Layer and top-level tensors get Hugging Face's names; a tensor that no llama has is an error."""
    assert gguf_llama.name_of("blk.7.attn_q.weight") == "model.layers.7.self_attn.q_proj.weight"
    assert gguf_llama.name_of("output_norm.weight") == "model.norm.weight"
    with pytest.raises(KeyError):
        gguf_llama.name_of("blk.0.ffn_gate_inp.weight")


def test_tiny_model_has_the_shapes_of_its_configuration() -> None:
    """Two layers of nine weights, an embedding and a last norm; tied, so there is no output matrix."""
    shapes, config = tiny_random.shapes(), tiny_random.config()
    assert len(shapes) == 2 * 9 + 2
    assert shapes["model.embed_tokens.weight"] == (config["vocab_size"], config["hidden_size"])
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (128, 256)


def test_spark_has_the_shapes_of_the_model() -> None:
    """The four fused linears and the embedding that the published figures are about; 1.71 billion weights in all."""
    found = spark.shapes()
    assert found["model.embedding.weight"] == (131072, 2048)
    assert found["model.layers.27.self_attn.q_k_v_proj.weight"] == (3072, 2048)
    assert found["model.layers.0.self_attn.out_proj.weight"] == (2048, 2048)
    assert found["model.layers.0.mlp.gate_proj.weight"] == found["model.layers.0.mlp.up_proj.weight"] == (6656, 2048)
    assert found["model.layers.0.mlp.down_proj.weight"] == (2048, 6656)
    assert found["model.layers.0.self_attn.g_proj.weight"] == (8, 2048)
    assert sum(math.prod(shape) for shape in found.values()) == 1_707_657_216


def test_shards_hold_every_weight_once_and_no_more_than_their_limit() -> None:
    """Weights stay in order; a matrix that alone is past the limit gets a shard of its own."""
    shapes: dict[str, tuple[int, ...]] = {"a": (4,), "b": (4,), "big": (100,), "c": (2,)}  # 8, 8, 200 and 4 bytes
    assert spark.shards(shapes, limit=16) == [["a", "b"], ["big"], ["c"]]
    assert [name for names in spark.shards(spark.shapes()) for name in names] == list(spark.shapes())


@needs_arms
def test_gptq_packs_eight_codes_along_k_and_stores_zero_points_less_one() -> None:
    """Rows of known codes: alternating 7 and -7 (15, 1), all 7 (15), all 0 (8); the words are worked out by hand."""
    code = (
        "import json, torch, spark_gptq\n"
        "rows = torch.zeros(8, 256)\n"
        "rows[0, 0::2], rows[0, 1::2], rows[1], rows[3, 128:] = 7, -7, 7, 14\n"
        "found = spark_gptq.pack(rows)\n"
        "print(json.dumps({name: [list(t.shape), str(t.dtype), t.tolist()] for name, t in found.items()}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "harness" / "models")}
    done = subprocess.run([ARMS_PYTHON, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {name: (shape, kind) for name, (shape, kind, _) in found.items()} == {
        "qweight": ([32, 8], "torch.int32"),
        "scales": ([2, 8], "torch.bfloat16"),
        "qzeros": ([2, 1], "torch.int32"),
        "g_idx": ([256], "torch.int32"),
    }
    words, scales = found["qweight"][2], found["scales"][2]
    assert words[0][:3] == [0x1F1F1F1F, -1, 0x88888888 - 2**32]
    assert (scales[0][0], scales[0][3], scales[1][3]) == (1.0, 2.0**-14, 2.0)  # 14 / 7; and a group of zeros
    assert (words[0][3], words[16][3]) == (0x88888888 - 2**32, -1)
    assert found["qzeros"][2] == [[0x77777777], [0x77777777]]
    assert found["g_idx"][2] == [0] * 128 + [1] * 128


@needs_arms
def test_a_model_is_made_once_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    """The second call says nothing and makes nothing; another folder gets the same digest; no scratch is left."""
    said: list[str] = []
    first = store.make("tiny-random", models=tmp_path / "one two", python=ARMS_PYTHON, say=said.append)
    again = store.make("tiny-random", models=tmp_path / "one two", python=Path("/nowhere"), say=said.append)
    other = store.make("tiny-random", models=tmp_path / "other", python=ARMS_PYTHON, say=said.append)
    assert first == again
    assert len(said) == 4, said  # when it begins and when it is made, for each of the two that were made
    assert other.digest == first.digest
    assert first.digest == store.combined(store.file_digests(first.folder))
    assert [path.name for path in (tmp_path / "one two").iterdir()] == ["tiny-random"]


def _manifest(folder: Path, **changed: object) -> None:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"12345")
    manifest = {"version": 1, "digest": "d", "sizes": {"model.safetensors": 5}} | changed
    (folder / store.MANIFEST).write_text(json.dumps(manifest))


def test_a_torn_or_outdated_model_is_not_taken(tmp_path: Path) -> None:
    """A file of another size, a missing file, another version or a torn manifest: the model has to be made again."""
    recipe = RECIPES["tiny-random"]
    _manifest(tmp_path / "whole" / recipe.name)
    assert store.made(recipe, tmp_path / "whole") is not None
    _manifest(tmp_path / "short" / recipe.name, sizes={"model.safetensors": 6})
    _manifest(tmp_path / "missing" / recipe.name, sizes={"config.json": 6})
    _manifest(tmp_path / "version" / recipe.name, version=0)
    _manifest(tmp_path / "torn" / recipe.name)
    (tmp_path / "torn" / recipe.name / store.MANIFEST).write_text('{"version": 1, "si')
    for case in ("short", "missing", "version", "torn", "absent"):
        assert store.made(recipe, tmp_path / case) is None, case


def test_a_recipe_that_fails_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    """The message holds what the recipe said; no half-made model stays."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "no space left" >&2\nexit 3\n')
    python.chmod(0o755)
    with pytest.raises(store.ModelError, match=r"exit code 3[\s\S]*no space left"):
        store.make("tiny-random", models=tmp_path / "models", python=python, say=lambda _: None)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_name_that_is_no_model_says_what_to_do(tmp_path: Path) -> None:
    """An unknown recipe, a folder without config.json and a missing interpreter are told apart."""
    with pytest.raises(store.ModelError, match="is no directory, and no recipe has that name; recipes: smollm2-135m"):
        store.resolve("smollm3", models=tmp_path, relative_to=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(store.ModelError, match=r"has no config\.json"):
        store.resolve("empty", models=tmp_path, relative_to=tmp_path)
    with pytest.raises(store.ModelError, match="`make setup`"):
        store.make("tiny-random", models=tmp_path, python=tmp_path / "python", say=lambda _: None)
    assert store.resolve("tiny-random", models=tmp_path, relative_to=tmp_path) is None


def _fake_python(folder: Path, *, plugin: bool = True) -> Path:
    """An interpreter that makes every model as one file, and notes what it was asked to run."""
    python = folder / "python"
    python.write_text(
        f"""#!/bin/sh
if [ "$1" = -c ]; then exit {0 if plugin else 1}; fi
echo "$@" >> "{folder}/asked"
echo "half done" >&2
if [ "$1" = -m ]; then folder=$5; mkdir "$folder"; else folder=$3; fi
echo "$@" | wc -w > "$folder/config.json"
"""
    )
    python.chmod(0o755)
    return python


def test_a_model_in_four_bits_is_made_from_its_parent_by_the_plugins_command(tmp_path: Path) -> None:
    """The parent comes first; the command gets both folders and the recipe's options; its words are passed on; the
    parent's digest is on record, and a model whose parent is another one by now is made again.
    """
    said: list[str] = []
    models = tmp_path / "models"
    made = store.make("tiny-random-cpu_int4", models=models, python=_fake_python(tmp_path), say=said.append)
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert first.split()[1] == "tiny-random"
    assert second.startswith(f"-m cpu_int4.cli quantize {models / 'tiny-random'} ")
    assert second.endswith(" --group-size 64")
    assert "model tiny-random-cpu_int4: half done" in said
    parent = store.made(RECIPES["tiny-random"], models)
    assert parent is not None
    assert json.loads((made.folder / store.MANIFEST).read_text())["parent"] == parent.digest
    manifest = parent.folder / store.MANIFEST
    manifest.write_text(manifest.read_text().replace(parent.digest, "0" * 64))
    assert store.made(RECIPES["tiny-random-cpu_int4"], models) is None


def test_a_model_in_four_bits_without_the_plugin_says_make_setup(tmp_path: Path) -> None:
    """It is said before anything is made, the 3.4 GB of a parent above all."""
    python = _fake_python(tmp_path, plugin=False)
    with pytest.raises(store.ModelError, match=r"cpu-int4 is not installed for .*: `make setup`"):
        store.make("spark2_5-synthetic-cpu_int4", models=tmp_path / "models", python=python, say=lambda _: None)
    assert not (tmp_path / "models").exists()


def test_a_disk_without_room_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what is needed, what there is, and the way out."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2_000_000))
    with pytest.raises(store.ModelError, match=r"needs 3 MB below .*, which has 2 MB free: .*HARNESS_MODELS"):
        store.make("tiny-random", models=tmp_path, python=_fake_python(tmp_path), say=lambda _: None)
