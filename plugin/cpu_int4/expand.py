"""`cpu-int4 expand`: from a cpu_int4 checkpoint back to a plain one in bfloat16, a few rows at a time.

The weights are what the kernels' wide path computes from the packed ones, bit for bit, so that a run of the expanded
model says what the quantized one should give.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cpu_int4 import format as fmt
from cpu_int4 import grid
from cpu_int4.folder import check_space, copy_others, whole_folder, write_json
from cpu_int4.opened import Opened, open_quantized
from cpu_int4.progress import Progress
from cpu_int4.quantize import bf16_config
from cpu_int4.source import CONFIG_FILE, StoredTensor, chunks, read_rows
from cpu_int4.write import SHARD_BYTES, PlannedTensor, Shard, ShardWriter, plan_shards

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Expanded:
    """What was written."""

    folder: Path
    modules: int  # dequantized
    shards: int
    size: int  # bytes of all tensors


def expand(
    source_folder: Path,
    target: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Expanded:
    """Write the cpu_int4 checkpoint of `source_folder` to `target` in bfloat16.

    Raise `CheckpointError` for a source that is torn or foreign (every tensor's checksum is compared while it is read),
    `FolderError` for a target that cannot be written.
    """
    opened = open_quantized(source_folder)
    pieces = _pieces(opened)
    shards = plan_shards(([piece.planned] for piece in pieces), shard_bytes)
    size = sum(tensor.size for shard in shards for tensor in shard.tensors)
    check_space(target, size)
    with whole_folder(target, source=source_folder, force=force, say=say) as folder:
        _write_tensors(folder, shards, pieces, opened)
        copy_others(source_folder, folder)
        write_json(folder / CONFIG_FILE, bf16_config(opened.source.config))
    return Expanded(folder=target, modules=len(opened.checkpoint.quantized), shards=len(shards), size=size)


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """One tensor to write, and what it is made from: a quantized module's three parts, or the tensor itself."""

    planned: PlannedTensor
    parts: tuple[StoredTensor, ...]


def _pieces(opened: Opened) -> list[_Piece]:
    pieces = []
    for name, tensor in opened.source.tensors.items():
        module, _, part = name.rpartition(".")
        if module not in opened.checkpoint.quantized or part not in fmt.PARTS:
            planned = PlannedTensor(name=name, dtype=tensor.dtype, shape=tensor.shape)
            pieces.append(_Piece(planned=planned, parts=(tensor,)))
        elif part == "qweight":
            planned = PlannedTensor(name=f"{module}.weight", dtype="BF16", shape=opened.checkpoint.quantized[module])
            pieces.append(_Piece(planned=planned, parts=opened.parts(module)))
    return pieces


def _write_tensors(folder: Path, shards: tuple[Shard, ...], pieces: list[_Piece], opened: Opened) -> None:
    writer = ShardWriter(folder, shards)
    values = sum(math.prod(piece.planned.shape) for piece in pieces)
    progress = Progress("expand", tensors=len(pieces), values=values)
    try:
        for piece in pieces:
            for rows in _rows(piece, opened):
                writer.write(piece.planned.name, rows)
                progress.advance(rows.numel())
            progress.tensor_done()
        progress.finish()
        writer.finish(folder)
    finally:
        writer.close()


def _rows(piece: _Piece, opened: Opened) -> Iterator[torch.Tensor]:
    """The rows to write; after the last, the checksums of all that was read are compared."""
    digests = [hashlib.sha256() for _ in piece.parts]
    for start, first in chunks(piece.parts[0]):
        others = [read_rows(part, start, start + first.shape[0]) for part in piece.parts[1:]]
        for digest, rows in zip(digests, [first, *others], strict=True):
            digest.update(fmt.tensor_bytes(rows))
        yield _dequantized(first, others, opened.settings.group_size) if others else first
    for digest, part in zip(digests, piece.parts, strict=True):
        fmt.check_digest(opened.checkpoint.tensors[part.name], part.name, digest.hexdigest())


def _dequantized(qweight: torch.Tensor, others: list[torch.Tensor], group_size: int) -> torch.Tensor:
    scales, zeros = others
    return grid.dequantize_rows(grid.QuantizedRows(qweight=qweight, scales=scales, zeros=zeros), group_size)
