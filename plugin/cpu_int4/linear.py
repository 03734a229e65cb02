"""The vLLM method of linear layers, fused or not, whole or split over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    LinearMethodBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)

import cpu_int4.ops  # noqa: F401 (defines torch.ops.cpu_int4)
from cpu_int4 import native
from cpu_int4.format import PARTS, ROWS_MULTIPLE
from cpu_int4.loading import Collector, Geometry, Section, ShardId

if TYPE_CHECKING:
    from cpu_int4.fields import Settings
    from cpu_int4.pack import PackedWeight
    from cpu_int4.session import Session

#: Layers whose way of splitting rows and columns is known here. A subclass may split otherwise, so it must be listed.
SUPPORTED = (ReplicatedLinear, ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear)


class UnsupportedLayerError(ValueError):
    """A layer that this method cannot serve; the message names it, its numbers and what to do."""


class CpuInt4LinearMethod(LinearMethodBase):  # type: ignore[misc]  # vLLM publishes no types here
    """Weights of 4 bits for one linear layer. `modules`: its parts as the checkpoint names them."""

    keeps_copy = True  # whether `direct_dequant: false` buys a row-major copy of this kind of layer

    def __init__(self, settings: Settings, session: Session, modules: tuple[str, ...]) -> None:
        self.settings = settings
        self.session = session
        self.modules = modules
        self.collector: Collector | None = None
        if settings.kernel == "native":
            native.load()  # in every process that may run a compiled graph

    def create_weights(  # noqa: PLR0917 (vLLM's signature)
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **_: Any,
    ) -> None:
        """Register parameters without storage, whose loaders gather the checkpoint's tensors."""
        del output_size
        geometry = linear_geometry(layer, self.modules, output_partition_sizes, input_size, input_size_per_partition)
        self._register(layer, geometry, params_dtype)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply x [..., K] bf16 with the layer's weight [N, K] and add bias [N]: bf16 [..., N]."""
        product: torch.Tensor
        if self.settings.kernel == "native":
            product = torch.ops.cpu_int4.native_linear(x, layer.packed, bias, *layer.int4_shape)
            return product
        product = torch.ops.cpu_int4.linear(
            x,
            layer.packed,
            layer.scales_and_zeros,
            layer.halves,
            bias,
            self.settings.group_size,
            self.settings.dequant_threshold,
            self.settings.prefill_dequant,
        )
        return product

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Close the census, and drop the placeholders."""
        self.session.finish()
        for part in PARTS:
            if hasattr(layer, part):
                delattr(layer, part)

    def _loader(self, collector: Collector, part: str) -> Callable[..., None]:
        """The weight loader of a placeholder; vLLM calls it with (parameter, tensor[, shard])."""

        def load(_parameter: torch.nn.Parameter, tensor: torch.Tensor, shard: ShardId = None) -> None:
            self.session.begin()
            collector.take(part, tensor, shard)

        return load

    def _register(self, layer: torch.nn.Module, geometry: Geometry, dtype: torch.dtype) -> None:
        check(
            geometry,
            self.settings.group_size,
            dtype,
            rows_multiple=1 if self.settings.kernel == "native" else ROWS_MULTIPLE,
        )
        settings = self.settings
        self.collector = Collector(
            geometry=geometry,
            group_size=settings.group_size,
            pack_with={
                "keep_halves": self.keeps_copy and settings.prefill_dequant and not settings.direct_dequant,
                "repack_bytes": settings.repack_bytes,
            },
            deliver=lambda weight: hold(layer, weight),
            for_native=settings.kernel == "native",
        )
        for part in PARTS:
            width = geometry.column_count // (2 if part == "qweight" else settings.group_size)
            kind = torch.uint8 if part == "qweight" else torch.bfloat16
            empty = torch.empty(geometry.rows, width, dtype=kind, device="meta")
            placeholder = torch.nn.Parameter(empty, requires_grad=False)
            placeholder.weight_loader = self._loader(self.collector, part)
            layer.register_parameter(part, placeholder)
        self.session.join(layer, self.collector)


def hold(layer: torch.nn.Module, weight: PackedWeight | native.NativeWeight) -> None:
    """Give a layer its packed weight, as buffers that no checkpoint names."""
    layer.register_buffer("packed", weight.packed, persistent=False)
    if isinstance(weight, native.NativeWeight):
        layer.int4_shape = weight.shape  # N, K and group size, which the one buffer does not tell
        return
    layer.register_buffer("scales_and_zeros", weight.scales_and_zeros, persistent=False)
    layer.register_buffer("halves", weight.halves, persistent=False)


def linear_geometry(
    layer: LinearBase, modules: tuple[str, ...], counts: list[int], columns: int, column_count: int
) -> Geometry:
    """Where a layer's rows and columns stand in the checkpoint. Raise `UnsupportedLayerError` for unknown kinds."""
    if type(layer) not in SUPPORTED:
        known = ", ".join(kind.__name__ for kind in SUPPORTED)
        raise UnsupportedLayerError(
            f"{layer.prefix}: layers of class {type(layer).__name__} are not supported; supported: {known}. Leave it in"
            " bf16 (modules_not_converted)"
        )
    shards, rows = _parts(layer)
    if len(modules) not in {1, len(rows)}:
        raise UnsupportedLayerError(
            f"{layer.prefix}: has {len(rows)} parts, the checkpoint {len(modules)}: {', '.join(modules)}"
        )
    names = modules if len(modules) == len(rows) else modules * len(rows)
    sections = tuple(
        Section(module=module, shard=shard, rows=total, start=_start(layer, total, count), count=count)
        for module, shard, total, count in zip(names, shards, rows, counts, strict=True)
    )
    start = layer.tp_rank * column_count if column_count < columns else 0
    return Geometry(
        name=layer.prefix, sections=sections, columns=columns, column_start=start, column_count=column_count
    )


def check(geometry: Geometry, group_size: int, dtype: torch.dtype, *, rows_multiple: int = ROWS_MULTIPLE) -> None:
    """Raise `UnsupportedLayerError` for a weight that the kernel cannot take on this rank."""
    problems = []
    if dtype != torch.bfloat16:
        problems.append(f'computes in {dtype}: pass dtype="bfloat16" (--dtype bfloat16)')
    if geometry.columns % group_size:
        problems.append(f"K = {geometry.columns} is not a multiple of the group size {group_size}")
    elif geometry.column_count % group_size:
        ranks = geometry.columns // geometry.column_count
        problems.append(
            f"tensor parallel over {ranks} ranks gives each K = {geometry.column_count}, not a multiple of the group"
            f" size {group_size}: a group would straddle two ranks"
        )
    if geometry.rows % rows_multiple:
        problems.append(f"N = {geometry.rows} on this rank is not a multiple of {rows_multiple}")
    if problems:
        raise UnsupportedLayerError(
            f"{geometry.name}: {'; '.join(problems)}. Use fewer ranks, another group size, or leave this module in bf16"
            " (modules_not_converted)"
        )


def _parts(layer: LinearBase) -> tuple[list[ShardId], list[int]]:
    """What vLLM calls each part of a layer, and its rows in the checkpoint."""
    if isinstance(layer, QKVParallelLinear):
        heads = (layer.total_num_heads, layer.total_num_kv_heads, layer.total_num_kv_heads)
        sizes = (layer.head_size, layer.head_size, layer.v_head_size)
        return ["q", "k", "v"], [count * size for count, size in zip(heads, sizes, strict=True)]
    if isinstance(layer, MergedColumnParallelLinear):
        return list(range(len(layer.output_sizes))), list(layer.output_sizes)
    return [None], [layer.output_size]


def _start(layer: LinearBase, total: int, count: int) -> int:
    """First of this rank's `count` rows among `total`. Ranks beyond the parts share them: KV heads are replicated."""
    parts = total // count
    if parts * count != total or layer.tp_size % parts:
        raise UnsupportedLayerError(
            f"{layer.prefix}: {total} rows do not split into parts of {count} over {layer.tp_size} ranks"
        )
    start: int = layer.tp_rank * parts // layer.tp_size * count
    return start
