"""From the checkpoint's tensors to packed weights, module by module, with a census at the end.

vLLM hands each tensor to a parameter's weight loader. Here that parameter has no storage: the loader keeps the tensor,
a view of the mapped file, until all tensors of its module are in, packs them at once and lets go of them. So anonymous
memory holds what is packed, the module being packed, and nothing of the checkpoint's form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cpu_int4 import native
from cpu_int4.format import PARTS, CheckpointError
from cpu_int4.pack import PackedWeight, pack

#: Code 8 in both nibbles: with scale and zero of 0 a row of zeros, as vLLM pads a vocabulary.
_PADDING_CODES = 0x88

ShardId = int | str | tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class Section:
    """Rows of one part of a fused weight: where they stand in the checkpoint, and which of them this rank holds."""

    module: str  # the part's module in the checkpoint; all sections share it where the checkpoint itself is fused
    shard: ShardId  # what vLLM calls the part: "q", 0, ...; None where a weight has one part
    rows: int  # rows of the part in the checkpoint
    start: int  # first row of this rank
    count: int  # rows of this rank


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A module's weight on this rank: sections stacked row by row, then padding; columns from `start` on."""

    name: str
    sections: tuple[Section, ...]
    columns: int  # K in the checkpoint
    column_start: int
    column_count: int  # K on this rank
    padding: int = 0  # rows of zeros at the end, where vLLM rounds a vocabulary up

    @property
    def rows(self) -> int:
        """N on this rank."""
        return sum(section.count for section in self.sections) + self.padding


@dataclass(kw_only=True)
class Collector:
    """Gathers one module's tensors and packs them when the last one is in."""

    geometry: Geometry
    group_size: int
    pack_with: dict[str, Any]  # keyword arguments of `pack`
    deliver: Callable[[PackedWeight | native.NativeWeight], None]
    for_native: bool = False  # pack for the native kernel, which needs nothing of `pack_with`
    done: bool = False
    _held: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)  # by part and section

    def take(self, part: str, tensor: torch.Tensor, shard: ShardId) -> None:
        """Keep one tensor; pack if it was the last. Raise `CheckpointError` for one that is wrong or comes twice."""
        chosen = self._sections(part, shard)
        self._check(part, tensor, chosen)
        first = 0
        for index in chosen:
            section = self.geometry.sections[index]
            if self.done or (part, index) in self._held:
                raise CheckpointError(f"tensor {section.module}.{part}: comes twice")
            self._held[part, index] = tensor[first + section.start : first + section.start + section.count]
            first += section.rows
        if not self.missing():
            self._pack()

    def missing(self) -> list[str]:
        """Names of the tensors that have not come."""
        if self.done:
            return []
        sections = enumerate(self.geometry.sections)
        return [f"{s.module}.{part}" for i, s in sections for part in PARTS if (part, i) not in self._held]

    def cancel(self) -> None:
        """Expect nothing more: the module shares another one's weight."""
        self.done = True
        self._held.clear()

    def _sections(self, part: str, shard: ShardId) -> Sequence[int]:
        sections = self.geometry.sections
        if shard is None:
            return range(len(sections))
        if isinstance(shard, tuple):
            return shard
        found = [index for index, section in enumerate(sections) if section.shard == shard]
        if not found:
            known = [section.shard for section in sections]
            raise CheckpointError(f"{self.geometry.name}.{part}: unknown part {shard!r}; it has {known}")
        return found

    def _check(self, part: str, tensor: torch.Tensor, chosen: Sequence[int]) -> None:
        """Dtype and shape, by the model and not by the checkpoint's own word."""
        sections = [self.geometry.sections[index] for index in chosen]
        width = self.geometry.columns // (2 if part == "qweight" else self.group_size)
        expected = (sum(section.rows for section in sections), width)
        dtype = torch.uint8 if part == "qweight" else torch.bfloat16
        if tensor.dtype != dtype or tuple(tensor.shape) != expected:
            raise CheckpointError(
                f"tensor {sections[0].module}.{part}: is {tensor.dtype} {list(tensor.shape)}; the model"
                f" needs {dtype} {list(expected)}"
            )

    def _pack(self) -> None:
        if self.for_native:
            weight = self._packed_part_by_part()
            self._held.clear()
            self.done = True
            self.deliver(weight)
            return
        qweight, scales, zeros = (self._assembled(part) for part in PARTS)
        self._held.clear()
        self.done = True
        self.deliver(
            pack(qweight, scales, zeros, group_size=self.group_size, name=self.geometry.name, **self.pack_with)
        )

    def _packed_part_by_part(self) -> native.NativeWeight:
        """Every section straight from the mapped file into its rows: no memory but the packed weight's own."""
        weight = native.empty(self.geometry.rows, self.geometry.column_count, self.group_size)
        first = 0
        for index, section in enumerate(self.geometry.sections):
            pieces = (self._held.pop((part, index))[:, self._columns(part)].contiguous() for part in PARTS)
            native.pack_rows(weight, first, *pieces)
            first += section.count
        return weight  # rows of padding stay zero bytes, weights of 0

    def _columns(self, part: str) -> slice:
        """This rank's columns of one part's tensors."""
        geometry = self.geometry
        per_byte = 2 if part == "qweight" else self.group_size
        return slice(geometry.column_start // per_byte, (geometry.column_start + geometry.column_count) // per_byte)

    def _assembled(self, part: str) -> torch.Tensor:
        """One part of this rank's weight. Only a fused or padded one is copied: at most 13 MiB for 13312 x 2048."""
        geometry, columns = self.geometry, self._columns(part)
        pieces = [self._held[part, index][:, columns] for index in range(len(geometry.sections))]
        if geometry.padding:
            fill = _PADDING_CODES if part == "qweight" else 0
            pieces.append(pieces[0].new_full((geometry.padding, pieces[0].shape[1]), fill))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
