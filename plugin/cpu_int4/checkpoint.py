"""A cpu_int4 checkpoint on disk, checked: its configuration, its manifest and what its shards really hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_int4 import format as fmt
from cpu_int4.quantize import quantization_of
from cpu_int4.source import CONFIG_FILE, Source, SourceError, StoredTensor, chunks, open_source


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose configuration, manifest and shards agree; checksums are not compared yet."""

    source: Source
    manifest: fmt.Manifest
    group_size: int
    quantize_embedding: bool

    def parts(self, module: str) -> tuple[StoredTensor, StoredTensor, StoredTensor]:
        """The stored qweight, scales and zeros of a quantized module."""
        qweight, scales, zeros = (self.source.tensors[name] for name in fmt.part_names(module))
        return qweight, scales, zeros


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read configuration, manifest and headers. Raise `CheckpointError` with a line for each thing that is wrong."""
    source = open_source(folder)
    group_size, embedding = _settings(source)
    manifest = fmt.read_manifest(folder)
    if isinstance(manifest, fmt.NoManifest):
        raise SourceError(f"{manifest.why}; {fmt.REMAKE}")
    problems = _presence(source, manifest) + _headers(source, manifest) + _parts(source, manifest, group_size)
    if problems:
        raise SourceError("\n".join(problems))
    return Checkpoint(source=source, manifest=manifest, group_size=group_size, quantize_embedding=embedding)


def verify(checkpoint: Checkpoint, advance: Callable[[StoredTensor], None] = lambda _: None) -> list[str]:
    """Compare every tensor's checksum; a sentence for each that differs. `advance` is told each tensor read."""
    problems = []
    for name, entry in checkpoint.manifest.tensors.items():
        tensor = checkpoint.source.tensors[name]
        digest = hashlib.sha256()
        for _, rows in chunks(tensor):
            digest.update(fmt.tensor_bytes(rows))
        try:
            fmt.check_digest(entry, name, digest.hexdigest())
        except fmt.TensorError as error:
            problems.append(f"{checkpoint.source.folder}/{error}")
        advance(tensor)
    return problems


def _settings(source: Source) -> tuple[int, bool]:
    """Group size and whether the embedding is quantized, of a configuration that this version can read."""
    where = f"{source.folder / CONFIG_FILE}: quantization_config"
    fields = quantization_of(source.config)
    if not fields:
        raise SourceError(f"{where} is missing: {source.folder} is not quantized; `cpu-int4 quantize` does it")
    supported: Mapping[str, tuple[Any, ...]] = {
        "quant_method": (fmt.QUANT_METHOD,),
        "format_version": (fmt.FORMAT_VERSION,),
        "bits": (fmt.BITS,),
        "group_size": fmt.GROUP_SIZES,
        "sym": (False,),
        "quantize_embedding": (True, False),
    }
    problems = [
        f"{where}: {key} is {fields.get(key)!r}; supported: {', '.join(map(repr, values))}"
        for key, values in supported.items()
        if not any(type(fields.get(key)) is type(value) and fields.get(key) == value for value in values)
    ]
    if problems:
        raise SourceError("\n".join(problems))
    return fields["group_size"], fields["quantize_embedding"]


def _presence(source: Source, manifest: fmt.Manifest) -> list[str]:
    missing = [f"{source.folder}: tensor {name} is missing, though {fmt.MANIFEST_FILE} lists it"
               for name in manifest.tensors if name not in source.tensors]  # fmt: skip
    extra = [f"{tensor.file}: tensor {name} is not in {fmt.MANIFEST_FILE}; {fmt.REMAKE}"
             for name, tensor in source.tensors.items() if name not in manifest.tensors]  # fmt: skip
    return missing + extra


def _headers(source: Source, manifest: fmt.Manifest) -> list[str]:
    """What the shards' headers say against the manifest."""
    problems = []
    for name, entry in manifest.tensors.items():
        if (tensor := source.tensors.get(name)) is None:
            continue
        expected = (entry.dtype, list(entry.shape), entry.file)
        if (found := (tensor.dtype, list(tensor.shape), tensor.file.name)) != expected:
            problems.append(
                f"{tensor.file}: tensor {name} is {found[0]} {found[1]} in {found[2]}, {fmt.MANIFEST_FILE} says"
                f" {expected[0]} {expected[1]} in {expected[2]}; {fmt.REMAKE}"
            )
    return problems


def _parts(source: Source, manifest: fmt.Manifest, group_size: int) -> list[str]:
    """Whether every quantized module has its three parts, in shapes that belong together."""
    problems = []
    for module in manifest.quantized():
        found = {part: source.tensors.get(f"{module}.{part}") for part in fmt.PARTS}
        if (qweight := found["qweight"]) is None:
            continue  # said already
        n, k = qweight.shape[0], 2 * qweight.shape[1]
        for part, shape in fmt.part_shapes(n, k, group_size).items():
            tensor, dtype = found[part], "U8" if part == "qweight" else "BF16"
            if tensor is None or (tensor.dtype, tensor.shape) != (dtype, shape):
                what = "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
                problems.append(
                    f"{qweight.file}: tensor {module}.{part} is {what}, expected {dtype} {list(shape)} for group size"
                    f" {group_size}; {fmt.REMAKE}"
                )
    return problems
