"""The native kernel in vLLM: loaded part by part, and in a real engine, compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_engine
import test_keys
import test_loading
import tiny
import torch

from cpu_int4 import native
from cpu_int4.format import PARTS

if not native.available():
    pytest.skip("the native kernel is not built", allow_module_level=True)


def native_collector(*sections: test_loading.Section, into: list[native.NativeWeight], **geometry: int) -> object:
    """A collector that packs for the native kernel."""
    gathered = test_loading.collector(*sections, into=into, **geometry)
    gathered.for_native = True
    return gathered


def held(weight: native.NativeWeight) -> torch.Tensor:
    """The bf16 weight [N, K] that lookups give."""
    return native.embedding(torch.arange(weight.n), weight)


def test_case_65_parts_that_meet_inside_a_block_are_packed_in_place() -> None:
    """Parts of 80, 48 and 7 rows and 9 rows of padding: rows in place, whatever N, padding exact zeros."""
    sizes = (80, 48, 7)
    parts = [test_loading.part(rows, seed=seed) for seed, rows in enumerate(sizes)]
    out: list[native.NativeWeight] = []
    sections = [test_loading.section(name, name, rows) for name, rows in zip("qkv", sizes, strict=True)]
    gathered = native_collector(*sections, into=out, padding=9)
    for index in (2, 0, 1):
        for kind in PARTS:
            gathered.take(kind, parts[index][0][kind], "qkv"[index])
    expected = torch.cat([*(weight for _, weight in parts), torch.zeros(9, test_loading.K).bfloat16()])
    assert torch.equal(held(out[0]), expected)
    assert gathered.missing() == []


def test_columns_of_one_rank_are_cut_at_a_group() -> None:
    """The second of three ranks holds columns 32 to 63."""
    tensors, weight = test_loading.part(32)
    out: list[native.NativeWeight] = []
    gathered = native_collector(
        test_loading.section("down", None, 32), into=out, column_start=32, column_count=32
    )  # fmt: skip
    for kind in PARTS:
        gathered.take(kind, tensors[kind], None)
    assert torch.equal(held(out[0]), weight[:, 32:64])


def test_case_46_the_native_kernel_has_a_compile_cache_key_of_its_own(tmp_path: Path) -> None:
    """Its graph calls other operators, so it must not find the graph of tinygemm in a shared cache."""
    folder, _ = tiny.pair(tmp_path, tiny.llama())
    tinygemm = test_keys.key(folder)
    again, _ = tiny.pair(tmp_path, tiny.llama(), kernel="native")
    assert again == folder
    assert test_keys.key(folder) != tinygemm


@pytest.mark.vllm
@pytest.mark.parametrize("eager", [True, False])
def test_an_engine_runs_the_native_kernel_and_says_so(tmp_path: Path, *, eager: bool) -> None:
    """Decode, prefill, lookup and tied head go through the native kernel; the numbers are the bf16 model's."""
    folder, plain = tiny.pair(tmp_path / "model", tiny.qwen2(), kernel="native")
    ran = test_engine.succeeded(test_engine.run(tmp_path, folder, {"enforce_eager": eager}))
    calls = ran["worker"]["calls"]
    assert calls["native_decode"] > 0
    assert calls["native_embedding"] > 0
    assert calls["tinygemm"] == calls["dequant_direct"] == calls["embedding_direct"] == 0
    bf16 = test_engine.succeeded(test_engine.run(tmp_path, plain, {"enforce_eager": eager}, TEST_NO_REPORT="1"))
    assert test_engine.near(ran["prompt"], bf16["prompt"], 0.02)
    assert ran["tokens"][0] == bf16["tokens"][0]
