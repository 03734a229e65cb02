"""A checkpoint as it lies on disk: what its manifest promises, and whether its shards keep it.

Headers are compared while the configuration is read, which costs a few kilobytes a shard; bytes are compared when
loading starts. Tensors are mapped, not read into memory of our own: a view costs page cache and no anonymous page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_int4.format import (
    INDEX_FILE,
    PARTS,
    REMAKE,
    CheckpointError,
    Manifest,
    NoManifest,
    TensorEntry,
    check_tensor,
    part_names,
    part_shapes,
    read_manifest,
    unsuitable,
)
from cpu_int4.names import listing

#: Tensors that only other tools' checkpoints have. vLLM drops some of them without a word.
_FOREIGN_SUFFIXES = (".g_idx", ".qzeros", ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a folder holds, after its headers were found to agree with its manifest."""

    folder: Path
    tensors: Mapping[str, TensorEntry]  # by the name in the checkpoint
    quantized: Mapping[str, tuple[int, int]]  # module: N, K of its weight

    def plain(self, module: str) -> bool:
        """Whether this module's weight is stored unquantized."""
        return f"{module}.weight" in self.tensors


def open_checkpoint(folder: Path, group_size: int) -> Checkpoint:
    """Read manifest and headers. Raise `CheckpointError` with all that is missing, extra, torn or misshapen."""
    match read_manifest(folder):
        case NoManifest(why=why):
            raise CheckpointError(f"{why}; without it no tensor can be checked: {REMAKE}")
        case Manifest() as manifest:
            pass
    tensors = dict(manifest.tensors)
    quantized = {name: _size(tensors[f"{name}.qweight"]) for name in manifest.quantized()}
    problems = [
        *_index_problems(folder, tensors),
        *_header_problems(folder, tensors),
        *_part_problems(tensors, quantized, group_size),
    ]
    if problems:
        raise CheckpointError(f"{folder}: the checkpoint cannot be loaded:\n" + _itemised(problems))
    return Checkpoint(folder=folder, tensors=tensors, quantized=quantized)


def verify_bytes(checkpoint: Checkpoint) -> None:
    """Compare every tensor's bytes with its SHA-256. Raise `CheckpointError` naming all that differ.

    Costs 0.9 GB/s on one core with SHA instructions (a Xeon of 2023): a second for the weights of a 1.5e9-parameter
    model, which are in the page cache afterwards, where loading reads them next.
    """
    problems = []
    for file, names in _by_file(checkpoint.tensors).items():
        with _opened(checkpoint.folder / file) as shard:
            for name in names:
                try:
                    check_tensor(checkpoint.tensors[name], name, shard.get_tensor(name))
                except CheckpointError as error:
                    problems.append(str(error))
    if problems:
        raise CheckpointError(f"{checkpoint.folder}: the checkpoint cannot be loaded:\n" + _itemised(problems))


def _index_problems(folder: Path, tensors: Mapping[str, TensorEntry]) -> Iterator[str]:
    """Where the index says otherwise: vLLM reads only the files that it names."""
    path = folder / INDEX_FILE
    if not path.exists():  # then vLLM reads every file
        return
    try:
        where = dict(json.loads(path.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield f"{INDEX_FILE}: cannot be read ({type(error).__name__}: {error}); {REMAKE}"
        return
    if lost := [name for name, entry in tensors.items() if where.get(name) != entry.file]:
        yield f"{INDEX_FILE}: does not place these tensors where the manifest does: {listing(lost)}"
    if extra := set(where) - set(tensors):
        yield f"{INDEX_FILE}: names tensors that the manifest does not: {listing(extra)}"


def _header_problems(folder: Path, tensors: Mapping[str, TensorEntry]) -> Iterator[str]:
    """Where shards and manifest differ: missing files, torn files, missing and extra tensors, dtypes and shapes."""
    promised = _by_file(tensors)
    on_disk = {path.name for path in folder.glob("*.safetensors")}
    for file in sorted(on_disk - set(promised)):
        yield f"{file}: not in the manifest, and vLLM would load it too; remove it, or {REMAKE}"
    for file, names in promised.items():
        if file not in on_disk:
            yield f"{file}: the file is missing; it holds {listing(names, 6)}"
            continue
        try:
            with _opened(folder / file) as shard:
                yield from _shard_problems(file, shard, {name: tensors[name] for name in names})
        except CheckpointError as error:
            yield f"{error}; it holds {listing(names, 6)}"


def _shard_problems(file: str, shard: Any, promised: Mapping[str, TensorEntry]) -> Iterator[str]:
    found = set(shard.keys())
    for name in sorted(set(promised) - found):
        yield f"{file}: tensor {name} is missing"
    for name in sorted(found - set(promised)):
        yield f"{file}: tensor {name} is not in the manifest"
    for name in sorted(found & set(promised)):
        entry, header = promised[name], shard.get_slice(name)
        if (dtype := header.get_dtype()) != entry.dtype:
            yield f"{file}: tensor {name}: dtype is {dtype}, the manifest says {entry.dtype}"
        if (shape := tuple(header.get_shape())) != entry.shape:
            yield f"{file}: tensor {name}: shape is {list(shape)}, the manifest says {list(entry.shape)}"


def _part_problems(
    tensors: Mapping[str, TensorEntry], quantized: Mapping[str, tuple[int, int]], group_size: int
) -> Iterator[str]:
    """Where the manifest itself is not of this format: parts missing or misshapen, tensors of other formats."""
    for name in tensors:
        module, _, last = name.rpartition(".")
        if last in PARTS[1:] and module not in quantized and f"{module}.weight" not in tensors:
            yield f"tensor {name}: without {module}.qweight"
        if name.endswith(_FOREIGN_SUFFIXES):
            yield f"tensor {name}: belongs to another tool's format, and this one has no use for it; {REMAKE}"
    for module, (n, k) in quantized.items():
        if f"{module}.weight" in tensors:
            yield f"{module}: both quantized and plain: remove {module}.weight"
        if why := unsuitable(n, k, group_size):
            yield f"{module}: {why}; leave this module in bf16 (modules_not_converted)"
            continue
        for name, (part, shape) in zip(part_names(module), part_shapes(n, k, group_size).items(), strict=True):
            dtype = "U8" if part == "qweight" else "BF16"
            if (entry := tensors.get(name)) is None:
                yield f"tensor {name} is missing"
            elif (entry.dtype, entry.shape) != (dtype, shape):
                yield (
                    f"tensor {name}: is {entry.dtype} {list(entry.shape)}; at group_size {group_size} a weight of"
                    f" [{n}, {k}] has {dtype} {list(shape)}"
                )


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path.name}: torn or no safetensors file ({error}); copy it again") from error


def _size(entry: TensorEntry) -> tuple[int, int]:
    """N and K of the weight that a qweight holds; 0 for what has no two dimensions, which no check lets pass."""
    rows, half = entry.shape if len(entry.shape) == 2 else (0, 0)
    return rows, half * 2


def _by_file(tensors: Mapping[str, TensorEntry]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for name, entry in tensors.items():
        files.setdefault(entry.file, []).append(name)
    return dict(sorted(files.items()))


def _itemised(problems: list[str], limit: int = 40) -> str:
    more = [f"- and {len(problems) - limit} more"] if len(problems) > limit else []
    return "\n".join([*(f"- {problem}" for problem in problems[:limit]), *more])
