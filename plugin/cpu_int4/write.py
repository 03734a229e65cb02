"""Writing shards as they come: headers first, since all shapes are known, then rows of any tensor in any order.

The safetensors library writes a file from tensors that are all in memory. Here the same bytes (a test compares) are
written with a few rows in memory. The format: 8 bytes, the header's length, little-endian; the header, JSON, padded
with blanks to a multiple of 8; the tensors' bytes without gaps, those of wider elements first so that each is aligned.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cpu_int4.folder import write_json
from cpu_int4.format import DTYPE_BYTES, INDEX_FILE, TensorEntry, tensor_bytes

if TYPE_CHECKING:
    import torch

#: Default bound of a shard, in bytes.
SHARD_BYTES: Final = 2_000_000_000


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """A tensor that will be written."""

    name: str
    dtype: str  # as in the header: "BF16", "U8", ...
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file to write: its name and its tensors, in the order of their bytes."""

    file: str
    tensors: tuple[PlannedTensor, ...]


def plan_shards(units: Iterable[Sequence[PlannedTensor]], shard_bytes: int) -> tuple[Shard, ...]:
    """Fill shards in order, none above `shard_bytes` unless a single unit is. A unit's tensors stay in one shard."""
    bins: list[list[PlannedTensor]] = [[]]
    filled = 0
    for unit in units:
        size = sum(tensor.size for tensor in unit)
        if bins[-1] and filled + size > shard_bytes:
            bins.append([])
            filled = 0
        bins[-1] += unit
        filled += size
    return tuple(
        Shard(file=f"model-{number:05d}-of-{len(bins):05d}.safetensors", tensors=tuple(sorted(content, key=_order)))
        for number, content in enumerate(bins, start=1)
    )


class ShardWriter:
    """Writes the planned shards into a folder. Rows of one tensor arrive in order; a shard is closed (and flushed to
    the disk) as soon as it is whole.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._files: dict[str, _ShardFile] = {}
        for shard in shards:
            self._files |= dict.fromkeys((tensor.name for tensor in shard.tensors), _ShardFile(folder, shard))

    def write(self, name: str, rows: torch.Tensor) -> None:
        """Append rows to the tensor `name`."""
        self._files[name].append(name, rows)

    def finish(self, folder: Path) -> dict[str, TensorEntry]:
        """Write the index; return the manifest's entries, sorted by name. Raise `RuntimeError` if bytes are missing."""
        entries = {name: self._files[name].entry(name) for name in sorted(self._files)}
        size = sum(tensor.size for shard in self._shards for tensor in shard.tensors)
        places = {name: entry.file for name, entry in entries.items()}
        write_json(folder / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": places})
        return entries

    def close(self) -> None:
        """Close whatever is open, whole or not."""
        for file in set(self._files.values()):
            file.close()


class _ShardFile:
    def __init__(self, folder: Path, shard: Shard) -> None:
        self._path = folder / shard.file
        self._tensors = {tensor.name: tensor for tensor in shard.tensors}
        self._header = header(shard.tensors)
        self._next = dict(zip(self._tensors, _offsets(shard.tensors, len(self._header)), strict=True))
        self._left = {tensor.name: tensor.size for tensor in shard.tensors}
        self._hashes = {tensor.name: hashlib.sha256() for tensor in shard.tensors}
        self._descriptor: int | None = None

    def append(self, name: str, rows: torch.Tensor) -> None:
        data = tensor_bytes(rows)
        if len(data) > self._left[name]:
            raise RuntimeError(f"{self._path}: tensor {name}: {len(data)} bytes came, {self._left[name]} had place")
        self._hashes[name].update(data)
        try:
            _write_at(self._open(), data, self._next[name])
        except OSError as error:  # pwrite's own message names no file
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._next[name] += len(data)
        self._left[name] -= len(data)
        if not any(self._left.values()):
            self.close()

    def entry(self, name: str) -> TensorEntry:
        if self._left[name]:
            raise RuntimeError(f"{self._path}: tensor {name}: {self._left[name]} bytes never came")
        tensor = self._tensors[name]
        digest = self._hashes[name].hexdigest()
        return TensorEntry(dtype=tensor.dtype, shape=tensor.shape, sha256=digest, file=self._path.name)

    def close(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
            _write_at(self._descriptor, memoryview(self._header), 0)
        return self._descriptor


def header(tensors: Sequence[PlannedTensor]) -> bytes:
    """A safetensors file up to its first tensor."""
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for tensor, start in zip(tensors, _offsets(tensors, 0), strict=True):
        offsets = [start, start + tensor.size]
        fields[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _offsets(tensors: Sequence[PlannedTensor], first: int) -> list[int]:
    offsets = [first]
    for tensor in tensors:
        offsets.append(offsets[-1] + tensor.size)
    return offsets[:-1]


def _order(tensor: PlannedTensor) -> tuple[int, str]:
    return -list(DTYPE_BYTES).index(tensor.dtype), tensor.name


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
