"""`cpu-int4 quantize`: from a Hugging Face directory to a cpu_int4 checkpoint, a few rows at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from cpu_int4 import format as fmt
from cpu_int4 import grid
from cpu_int4.folder import check_space, copy_others, whole_folder, write_json
from cpu_int4.progress import Progress
from cpu_int4.selection import FLOATS, Options, Selection, is_embedding, is_head, select
from cpu_int4.source import CONFIG_FILE, Source, SourceError, StoredTensor, chunks, open_source
from cpu_int4.write import SHARD_BYTES, PlannedTensor, Shard, ShardWriter, plan_shards

#: Ends of tensor names by which other quantized formats are known.
_PACKED: Final = (".qweight", ".qzeros", ".g_idx", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".absmax")
_QUANTIZATION_KEYS: Final = ("quantization_config", "compression_config")
_NAMED: Final = 3  # names shown in an error before it says "and n more"


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written."""

    folder: Path
    selection: Selection
    shards: int
    size: int  # bytes of all tensors


def quantize(
    source_folder: Path,
    target: Path,
    options: Options,
    *,
    shard_bytes: int = SHARD_BYTES,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Written:
    """Write the checkpoint of `source_folder` to `target` in 4 bits. What can be refused is refused
    before the first weight is read; only values that are not finite come to light later.

    Raise `CheckpointError` for a source that is torn, quantized already or does not fit `options`, `FolderError` for a
    target that cannot be written. Same source, options and version: same bytes.
    """
    source = open_source(source_folder)
    refuse_quantized(source)
    selection = select(_float_shapes(source), source.config, options)
    written = _kept(source, selection)
    shards = plan_shards((_unit(tensor, selection, options) for tensor in written), shard_bytes)
    size = sum(tensor.size for shard in shards for tensor in shard.tensors)
    check_space(target, size)
    with whole_folder(target, source=source_folder, force=force, say=say) as folder:
        entries = _write_tensors(folder, shards, written, selection, options)
        _describe(folder, source, selection, options, entries)
    return Written(folder=target, selection=selection, shards=len(shards), size=size)


def refuse_quantized(source: Source) -> None:
    """Raise `SourceError` if the source is quantized already, by this method or another."""
    config = quantization_of(source.config)
    if config.get("quant_method") == fmt.QUANT_METHOD:
        raise SourceError(
            f"{source.folder}: is a cpu_int4 checkpoint already (group size {config.get('group_size')}); quantize the"
            " original, or `cpu-int4 expand` this one first (a second rounding adds to the first)"
        )
    if config:
        method = config.get("quant_method") or config.get("quantization_method") or json.dumps(config)[:80]
        raise SourceError(f"{source.folder}: {CONFIG_FILE} says it is quantized by {method!r}; start from the original")
    packed = [t for t in source.tensors.values() if t.name.endswith(_PACKED) or _packed_weight(t)]
    if packed:
        names = ", ".join(f"{tensor.name} ({tensor.dtype})" for tensor in packed[:_NAMED])
        more = f" and {len(packed) - _NAMED} more" if len(packed) > _NAMED else ""
        raise SourceError(f"{source.folder}: holds quantized tensors: {names}{more}; start from the original")


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration's own word on how the model is quantized; empty if it says nothing."""
    scopes = (config, config.get("text_config") or {})
    return next((scope[key] for scope in scopes for key in _QUANTIZATION_KEYS if scope.get(key)), {})


def bf16_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` of a model in bfloat16, without a quantization."""
    plain = {key: value for key, value in config.items() if key not in _QUANTIZATION_KEYS}
    if isinstance(plain.get("text_config"), dict):
        plain["text_config"] = _in_bf16({k: v for k, v in plain["text_config"].items() if k not in _QUANTIZATION_KEYS})
    return {"torch_dtype": "bfloat16"} | _in_bf16(plain) if "dtype" not in plain else _in_bf16(plain)


def to_bf16(rows: torch.Tensor, tensor: StoredTensor, start: int) -> torch.Tensor:
    """Rows of a tensor left as it is: bfloat16 if floating. Raise `SourceError` for what bfloat16 cannot hold."""
    if tensor.dtype not in FLOATS:
        return rows
    if (bad := grid.unusable(rows)) is not None:
        raise _unusable(tensor, bad, start)
    return rows.to(torch.bfloat16)


def _float_shapes(source: Source) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in source.tensors.values() if tensor.dtype in FLOATS}


def _kept(source: Source, selection: Selection) -> list[StoredTensor]:
    return [t for t in source.tensors.values() if t.name.rpartition(".")[0] not in selection.dropped]


def _module(tensor: StoredTensor, selection: Selection) -> str | None:
    """The quantized module whose weight this is, or None."""
    module = tensor.name.removesuffix(".weight")
    return module if module != tensor.name and module in selection.quantized else None


def _unit(tensor: StoredTensor, selection: Selection, options: Options) -> list[PlannedTensor]:
    """What is written for one tensor of the source."""
    if (module := _module(tensor, selection)) is None:
        dtype = "BF16" if tensor.dtype in FLOATS else tensor.dtype
        return [PlannedTensor(name=tensor.name, dtype=dtype, shape=tensor.shape)]
    n, k = tensor.shape
    shapes = fmt.part_shapes(n, k, options.group_size)
    dtypes = {"qweight": "U8", "scales": "BF16", "zeros": "BF16"}
    return [PlannedTensor(name=f"{module}.{part}", dtype=dtypes[part], shape=shapes[part]) for part in fmt.PARTS]


def _write_tensors(
    folder: Path, shards: tuple[Shard, ...], tensors: list[StoredTensor], selection: Selection, options: Options
) -> dict[str, fmt.TensorEntry]:
    writer = ShardWriter(folder, shards)
    progress = Progress("quantize", tensors=len(tensors), values=sum(tensor.count for tensor in tensors))
    try:
        for tensor in tensors:
            module = _module(tensor, selection)
            for start, rows in chunks(tensor):
                for name, out in _converted(tensor, start, rows, module, options):
                    writer.write(name, out)
                progress.advance(rows.numel())
            progress.tensor_done()
        progress.finish()
        return writer.finish(folder)
    finally:
        writer.close()


def _converted(
    tensor: StoredTensor, start: int, rows: torch.Tensor, module: str | None, options: Options
) -> Iterator[tuple[str, torch.Tensor]]:
    if module is None:
        yield tensor.name, to_bf16(rows, tensor, start)
        return
    out = grid.quantize_rows(rows, options.group_size)
    if isinstance(out, grid.Unusable):
        raise _unusable(tensor, out, start)
    yield from zip(fmt.part_names(module), (out.qweight, out.scales, out.zeros), strict=True)


def _describe(
    folder: Path, source: Source, selection: Selection, options: Options, entries: dict[str, fmt.TensorEntry]
) -> None:
    """Everything beside the shards; `config.json` last, since with it a folder looks like a model."""
    copy_others(source.folder, folder)
    manifest = fmt.Manifest(tensors=entries, left=selection.left)
    write_json(folder / fmt.MANIFEST_FILE, fmt.manifest_document(manifest))
    config = bf16_config(source.config)
    config["quantization_config"] = fmt.quantization_config(
        group_size=options.group_size,
        quantize_embedding=any(is_embedding(module) or is_head(module) for module in selection.quantized),
        modules_not_converted=sorted(selection.left),
    )
    write_json(folder / CONFIG_FILE, config)


def _in_bf16(config: dict[str, Any]) -> dict[str, Any]:
    return config | {key: "bfloat16" for key in ("torch_dtype", "dtype") if key in config}


def _packed_weight(tensor: StoredTensor) -> bool:
    return tensor.name.endswith(".weight") and len(tensor.shape) == 2 and tensor.dtype not in FLOATS


def _unusable(tensor: StoredTensor, bad: grid.Unusable, start: int) -> SourceError:
    position = [bad.position[0] + start, *bad.position[1:]] if bad.position else []
    return SourceError(
        f"{tensor.file}: tensor {tensor.name}: the value at {position} is {bad.value}; supported are finite values"
        f" up to {grid.LARGEST:.4g}, bfloat16's largest: repair the weights, or fetch the file again"
    )
