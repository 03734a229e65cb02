"""Tensor parallelism: each rank of a layer against the slice of the weight that it should hold.

vLLM's real layers, told that they are one rank of several; no other rank runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny
import torch
from vllm.model_executor.layers import linear as vllm_linear
from vllm.model_executor.layers import vocab_parallel_embedding as vllm_embedding

from cpu_int4.embedding import CpuInt4EmbeddingMethod
from cpu_int4.fields import Settings
from cpu_int4.format import PARTS
from cpu_int4.linear import CpuInt4LinearMethod, UnsupportedLayerError

GROUP = 32


class Alone:
    """In the place of a model's loading: takes part in nothing."""

    def join(self, _layer: Any, _collector: Any) -> None:
        """Expect nothing."""

    def begin(self) -> None:
        """Check nothing."""

    def finish(self) -> None:
        """Miss nothing."""


class Method:
    """In the place of a configuration: gives every layer the 4-bit method."""

    online_quantization_config = None

    def __init__(self, *modules: str) -> None:
        self.modules = modules

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """The 4-bit method, whatever the layer."""
        kind = CpuInt4LinearMethod if isinstance(layer, vllm_linear.LinearBase) else CpuInt4EmbeddingMethod
        return kind(Settings(group_size=GROUP), Alone(), self.modules or (prefix,))  # type: ignore[arg-type]


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Have layers that are made next believe that they are rank `index` of `size`."""

    def believe(index: int, size: int) -> None:
        for module in (vllm_linear, vllm_embedding):
            monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: index)
            monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: size)

    torch.set_default_dtype(torch.bfloat16)  # as vLLM does around a model's making
    yield believe
    torch.set_default_dtype(torch.float32)


def fill(layer: Any, weights: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
    """Load quantized weights by part, whole as the checkpoint holds them; what they stand for by part."""
    meant = {}
    for shard, weight in weights.items():
        tensors = tiny.quantized(weight, GROUP)
        meant[shard] = tiny.dequantized(tensors, GROUP)
        for part in PARTS:
            loader = getattr(layer, part).weight_loader
            loader(getattr(layer, part), tensors[part], *([] if shard is None else [shard]))
    layer.quant_method.process_weights_after_loading(layer)
    return meant


def held(layer: Any) -> torch.Tensor:
    """The bf16 weight [N, K] that this rank multiplies with."""
    columns = layer.packed.shape[1] * 2
    out: torch.Tensor = layer.quant_method.apply(layer, torch.eye(columns).bfloat16(), None)
    return out.t()


def weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """A seeded weight."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


@pytest.mark.parametrize("index", [0, 1])
def test_a_column_parallel_rank_holds_its_rows(rank: Any, index: int) -> None:
    """Rows are split in order."""
    rank(index, 2)
    layer = vllm_linear.ColumnParallelLinear(64, 96, bias=False, quant_config=Method(), prefix="up")
    meant = fill(layer, {None: weight(96, 64)})
    assert torch.equal(held(layer), meant[None][48 * index : 48 * index + 48])


@pytest.mark.parametrize("index", [0, 1])
def test_a_row_parallel_rank_holds_its_columns(rank: Any, index: int) -> None:
    """Columns are split in order, groups whole."""
    rank(index, 2)
    layer = vllm_linear.RowParallelLinear(128, 32, bias=False, quant_config=Method(), prefix="down")
    meant = fill(layer, {None: weight(32, 128)})
    assert torch.equal(held(layer), meant[None][:, 64 * index : 64 * index + 64])


@pytest.mark.parametrize("index", [0, 1])
def test_a_merged_rank_holds_its_rows_of_each_part(rank: Any, index: int) -> None:
    """Gate's rows, then up's."""
    rank(index, 2)
    quantized = Method("gate", "up")
    layer = vllm_linear.MergedColumnParallelLinear(64, [96, 96], bias=False, quant_config=quantized, prefix="gate_up")
    meant = fill(layer, {0: weight(96, 64, 1), 1: weight(96, 64, 2)})
    mine = slice(48 * index, 48 * index + 48)
    assert torch.equal(held(layer), torch.cat((meant[0][mine], meant[1][mine])))


@pytest.mark.parametrize(("index", "kv"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_key_and_value_heads_are_shared_by_ranks_beyond_their_number(rank: Any, index: int, kv: int) -> None:
    """Four ranks, two KV heads: ranks 0 and 1 hold the first, 2 and 3 the second; query heads are split."""
    rank(index, 4)
    layer = vllm_linear.QKVParallelLinear(64, 16, 4, 2, bias=False, quant_config=Method("q", "k", "v"), prefix="qkv")
    meant = fill(layer, {"q": weight(64, 64, 1), "k": weight(32, 64, 2), "v": weight(32, 64, 3)})
    mine, shared = slice(16 * index, 16 * index + 16), slice(16 * kv, 16 * kv + 16)
    assert torch.equal(held(layer), torch.cat((meant["q"][mine], meant["k"][shared], meant["v"][shared])))


@pytest.mark.parametrize("index", [0, 1])
def test_a_replicated_layer_is_whole_on_every_rank(rank: Any, index: int) -> None:
    """Nothing is split."""
    rank(index, 2)
    layer = vllm_linear.ReplicatedLinear(64, 32, bias=False, quant_config=Method(), prefix="router")
    meant = fill(layer, {None: weight(32, 64)})
    assert torch.equal(held(layer), meant[None])


@pytest.mark.parametrize(("index", "count"), [(0, 128), (1, 72)])
def test_a_vocabulary_is_split_after_padding(rank: Any, index: int, count: int) -> None:
    """200 rows are padded to 256: the second rank holds 72 of them and 56 rows of zeros."""
    rank(index, 2)
    layer = vllm_embedding.VocabParallelEmbedding(200, 64, quant_config=Method(), prefix="embedding")
    meant = fill(layer, {None: weight(200, 64)})
    mine = meant[None][128 * index : 128 * index + count]
    assert torch.equal(held(layer), torch.cat((mine, torch.zeros(128 - count, 64).bfloat16())))


def test_groups_that_would_straddle_ranks_are_refused_by_name(rank: Any) -> None:
    """96 columns over two ranks are 48 each, which no group of 32 divides: layer, ranks and numbers are told."""
    rank(0, 2)
    with pytest.raises(UnsupportedLayerError) as caught:
        vllm_linear.RowParallelLinear(96, 32, bias=False, quant_config=Method(), prefix="model.layers.0.mlp.down_proj")
    message = str(caught.value)
    assert "model.layers.0.mlp.down_proj: tensor parallel over 2 ranks gives each K = 48" in message
    assert "not a multiple of the group size 32: a group would straddle two ranks" in message
    assert "Use fewer ranks" in message


def test_case_66_rows_of_a_rank_that_cannot_be_packed_are_refused_by_name(rank: Any) -> None:
    """48 rows over two ranks are 24 each, no multiple of 16."""
    rank(1, 2)
    with pytest.raises(UnsupportedLayerError, match=r"up: N = 24 on this rank is not a multiple of 16"):
        vllm_linear.ColumnParallelLinear(64, 48, bias=False, quant_config=Method(), prefix="up")


def test_a_kind_of_layer_that_is_not_known_is_refused_by_name(rank: Any) -> None:
    """A subclass may split rows in its own way: it is refused, not guessed at."""

    class Odd(vllm_linear.ColumnParallelLinear):  # type: ignore[misc]
        """A layer of somebody's."""

    rank(0, 1)
    with pytest.raises(UnsupportedLayerError, match=r"odd: layers of class Odd are not supported; supported: Repl"):
        Odd(64, 32, bias=False, quant_config=Method(), prefix="odd")


def test_case_53_a_layer_made_for_another_dtype_is_refused_with_the_flag(rank: Any) -> None:
    """Where a dtype reaches a layer past the configuration's check, the layer refuses it."""
    rank(0, 1)
    with pytest.raises(UnsupportedLayerError, match=r'up: computes in torch.float16: pass dtype="bfloat16"'):
        vllm_linear.ColumnParallelLinear(
            64, 32, bias=False, quant_config=Method(), prefix="up", params_dtype=torch.half
        )


def test_biases_are_added_once(rank: Any) -> None:
    """One row and many rows: the product plus the bias."""
    rank(0, 1)
    layer = vllm_linear.ColumnParallelLinear(64, 32, bias=True, quant_config=Method(), prefix="up")
    meant = fill(layer, {None: weight(32, 64)})[None].float()
    layer.bias.data = torch.arange(32).bfloat16()
    for rows in (1, 3):
        x = torch.randn(rows, 64, dtype=torch.float32).bfloat16()
        expected = x.float() @ meant.t() + layer.bias.float()
        assert torch.allclose(layer(x)[0].float(), expected, rtol=2**-6, atol=2**-4)
