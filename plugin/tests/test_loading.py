"""Tensors gathered and packed, module by module."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from cpu_int4 import ops
from cpu_int4.format import PARTS, CheckpointError
from cpu_int4.loading import Collector, Geometry, Section
from cpu_int4.pack import PackedWeight

GROUP, K = 32, 96


class Delivered(list[PackedWeight]):
    """Where a collector puts what it packed."""


def collector(*sections: Section, into: Delivered, **geometry: Any) -> Collector:
    """A collector of a weight with K columns."""
    whole = {"columns": K, "column_start": 0, "column_count": K, **geometry}
    return Collector(
        geometry=Geometry(name="fused", sections=sections, **whole),
        group_size=GROUP,
        pack_with={"keep_halves": False, "repack_bytes": 1 << 20},
        deliver=into.append,
    )


def section(module: str, shard: Any, rows: int, start: int = 0, count: int | None = None) -> Section:
    """Rows of one part; all of them unless told."""
    return Section(module=module, shard=shard, rows=rows, start=start, count=rows if count is None else count)


def part(rows: int, columns: int = K, seed: int = 0) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A quantized weight's tensors, and the bf16 weight that they stand for."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    tensors = tiny.quantized(weight, GROUP)
    return tensors, tiny.dequantized(tensors, GROUP)


def held(weight: PackedWeight) -> torch.Tensor:
    """The bf16 weight [N, K] that the operators compute with, read back by multiplying with the identity."""
    identity = torch.eye(weight.k).bfloat16()
    return ops.linear(identity, weight, None, threshold=2, prefill_dequant=True).t()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_case_65_parts_of_a_fused_weight_come_in_any_order_and_start_inside_a_block(order: tuple[int, ...]) -> None:
    """Parts of 80, 48 and 48 rows start at rows 80 and 128 of blocks of 64: packed when all are in, rows in place."""
    sizes = (80, 48, 48)
    parts = [part(rows, seed=seed) for seed, rows in enumerate(sizes)]
    out = Delivered()
    sections = [section(f"{name}_proj", name, rows) for name, rows in zip("qkv", sizes, strict=True)]
    gathered = collector(*sections, into=out)
    for number, index in enumerate(order):
        for kind in PARTS:
            assert not out, "packed before all was in"
            gathered.take(kind, parts[index][0][kind], "qkv"[index])
        assert len(gathered.missing()) == 3 * (2 - number)
    assert torch.equal(held(out[0]), torch.cat([weight for _, weight in parts]))


def test_a_weight_fused_in_the_checkpoint_too_is_split_by_its_parts_rows() -> None:
    """A tensor that comes without a part's name holds all parts, and each rank takes its rows of each part."""
    tensors, weight = part(128)
    out = Delivered()
    sections = (section("qkv", "q", 64, 32, 32), section("qkv", "k", 32, 16, 16), section("qkv", "v", 32, 16, 16))
    gathered = collector(*sections, into=out)
    for kind in PARTS:
        gathered.take(kind, tensors[kind], None)
    expected = torch.cat((weight[32:64], weight[80:96], weight[112:128]))
    assert torch.equal(held(out[0]), expected)


def test_columns_of_one_rank_are_cut_at_a_group() -> None:
    """The second of three ranks holds columns 32 to 63: codes, scales and zeros of the second group."""
    tensors, weight = part(32)
    out = Delivered()
    gathered = collector(section("down", None, 32), into=out, column_start=32, column_count=32)
    for kind in PARTS:
        gathered.take(kind, tensors[kind], None)
    assert torch.equal(held(out[0]), weight[:, 32:64])


def test_padding_rows_are_zero() -> None:
    """Rows that vLLM adds to a vocabulary hold exact zeros, as in its own embedding."""
    tensors, weight = part(40)
    out = Delivered()
    gathered = collector(section("embedding", None, 40), into=out, padding=24)
    for kind in PARTS:
        gathered.take(kind, tensors[kind], None)
    assert torch.equal(held(out[0]), torch.cat((weight, torch.zeros(24, K).bfloat16())))


def test_case_64_a_tensor_that_comes_twice_is_refused_by_name() -> None:
    """Before and after packing."""
    tensors, _ = part(32)
    gathered = collector(section("up", None, 32), into=Delivered())
    gathered.take("qweight", tensors["qweight"], None)
    with pytest.raises(CheckpointError, match=r"tensor up\.qweight: comes twice"):
        gathered.take("qweight", tensors["qweight"], None)
    gathered.take("scales", tensors["scales"], None)
    gathered.take("zeros", tensors["zeros"], None)
    with pytest.raises(CheckpointError, match=r"tensor up\.zeros: comes twice"):
        gathered.take("zeros", tensors["zeros"], None)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (
            "scales",
            lambda t: t[:, :2],
            r"tensor up\.scales: is torch\.bfloat16 \[32, 2\]; the model needs .* \[32, 3\]",
        ),
        ("scales", lambda t: t.float(), r"tensor up\.scales: is torch\.float32 \[32, 3\]"),
        ("qweight", lambda t: t[:16], r"tensor up\.qweight: is torch\.uint8 \[16, 48\]; the model needs .* \[32, 48\]"),
        ("qweight", lambda t: t.view(torch.int8), r"tensor up\.qweight: is torch\.int8"),
        ("zeros", lambda t: t.t(), r"tensor up\.zeros: is torch\.bfloat16 \[3, 32\]"),
    ],
)
def test_case_64_a_tensor_that_does_not_fit_the_model_is_refused_by_name(kind: str, change: Any, words: str) -> None:
    """Dtype and shape are held against the model's own sizes, whatever the checkpoint says of itself."""
    tensors, _ = part(32)
    with pytest.raises(CheckpointError, match=words):
        collector(section("up", None, 32), into=Delivered()).take(kind, change(tensors[kind]), None)


def test_an_unknown_part_is_refused_by_name() -> None:
    """A part that the fused weight has not is told with those that it has."""
    tensors, _ = part(32)
    gathered = collector(section("q_proj", "q", 32), section("k_proj", "k", 32), into=Delivered())
    with pytest.raises(CheckpointError, match=r"fused\.scales: unknown part 'w'; it has \['q', 'k'\]"):
        gathered.take("scales", tensors["scales"], "w")


def test_what_has_not_come_is_listed_by_name() -> None:
    """The census of one module: every part's tensors until they are in, nothing after packing or where cancelled."""
    tensors, _ = part(32)
    gathered = collector(section("gate_proj", 0, 32), section("up_proj", 1, 32), into=Delivered())
    gathered.take("scales", tensors["scales"], 1)
    assert sorted(gathered.missing()) == [
        "gate_proj.qweight",
        "gate_proj.scales",
        "gate_proj.zeros",
        "up_proj.qweight",
        "up_proj.zeros",
    ]
    gathered.cancel()
    assert gathered.missing() == []


def test_tensors_are_held_as_views_of_the_file_and_let_go_when_packed(tmp_path: Path) -> None:
    """Until a module is packed its tensors are mapped pages, not copies; afterwards nothing of them is alive."""
    tensors, weight = part(64)
    save_file({f"a.{kind}": tensor for kind, tensor in tensors.items()}, tmp_path / "m.safetensors")
    out = Delivered()
    gathered = collector(section("a", None, 64), into=out)
    with safe_open(tmp_path / "m.safetensors", framework="pt") as shard:
        views = {kind: shard.get_tensor(f"a.{kind}") for kind in PARTS}
        alive = [weakref.ref(view.untyped_storage()) for view in views.values()]
        for kind in PARTS[:2]:
            gathered.take(kind, views[kind], None)
            assert gathered._held[kind, 0].data_ptr() == views[kind].data_ptr()
        gathered.take("zeros", views.pop("zeros"), None)
        assert not gathered._held
        del views
    assert all(view() is None for view in alive)
    assert torch.equal(held(out[0]), weight)
