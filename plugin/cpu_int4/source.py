"""Reading a Hugging Face directory of safetensors: what it holds, then rows of one tensor at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors import SafetensorError, safe_open

from cpu_int4.format import INDEX_FILE, CheckpointError

if TYPE_CHECKING:
    import torch

CONFIG_FILE: Final = "config.json"
#: Values in one chunk: 2^18 float32 are 1 MiB, so a chunk and what is computed from it stay in a core's L2 cache. Of
#: 2^17 to 2^22 this was the fastest (4 s of one core for 1.7e9 weights, 7 s at 2^22), and it bounds the scratch memory.
CHUNK_VALUES: Final = 1 << 18
#: Values taken from a file at once: opening it parses the header, which for thousands of tensors takes a millisecond.
READ_VALUES: Final = 1 << 22


class SourceError(CheckpointError):
    """A directory that is no whole checkpoint; the message has a line for each thing that is wrong."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor as a shard's header describes it."""

    name: str
    file: Path
    dtype: str  # as in the header: "BF16", "F32", "U8", ...
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A whole checkpoint directory: its configuration, and its tensors by name, ordered by shard and then by name."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def open_source(folder: Path) -> Source:
    """Read configuration and headers, no weights. Raise `SourceError` naming everything missing, torn or surplus."""
    config = read_config(folder)
    problems: list[str] = []
    listed = _listed(folder)
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(listed):
        found = _header(folder / file, problems)
        tensors |= found
        if (names := listed[file]) is not None:
            _compare(folder / file, names, found, problems)
    if problems:
        raise SourceError("\n".join(problems))
    return Source(folder=folder, config=config, tensors=tensors)


def chunks(tensor: StoredTensor) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensor in runs of whole rows (first dimension), about CHUNK_VALUES values each, with the first row's number.

    The file is mapped anew every READ_VALUES values: the pages of a mapping count as resident, so one that stays open
    grows to the size of the shard.
    """
    if len(tensor.shape) < 2:
        yield 0, _read(tensor, None)
        return
    rows, width = tensor.shape[0], max(1, tensor.count // max(1, tensor.shape[0]))
    many, few = max(1, READ_VALUES // width), max(1, CHUNK_VALUES // width)
    for first in range(0, rows, many):
        block = _read(tensor, slice(first, min(first + many, rows)))
        for start in range(0, block.shape[0], few):
            yield first + start, block[start : start + few]


def read_rows(tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
    """Rows `start` to `stop` (not included) of a tensor of at least two dimensions, copied."""
    return _read(tensor, slice(start, stop))


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model directory. Raise `SourceError` where there is none that can be read."""
    path = folder / CONFIG_FILE
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such directory; name the folder of a Hugging Face model")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceError(f"{folder}: has no {CONFIG_FILE}; name the folder of a Hugging Face model") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read as JSON ({error}); fetch the file again") from error
    if not isinstance(config, dict):
        raise SourceError(f"{path}: holds {type(config).__name__}, a model's configuration is an object")
    return config


def _read(tensor: StoredTensor, rows: slice | None) -> torch.Tensor:
    try:
        with safe_open(tensor.file, framework="pt") as stream:
            found = stream.get_tensor(tensor.name) if rows is None else stream.get_slice(tensor.name)[rows]
            return found.clone() if rows is None else found  # a whole tensor is a view of the mapping, rows are a copy
    except (OSError, SafetensorError) as error:
        raise SourceError(f"{tensor.file}: tensor {tensor.name}: cannot be read: {error}") from error


def _listed(folder: Path) -> dict[str, set[str] | None]:
    """Shard files, each with the tensor names that the index gives it; None for a single file, which has no index."""
    index = folder / INDEX_FILE
    if index.is_file():
        return _indexed(index)
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if "model.safetensors" in found:
        return {"model.safetensors": None}
    if len(found) == 1:
        return {found[0]: None}
    if found:
        raise SourceError(f"{folder}: {len(found)} shards ({found[0]}, ...) and no {INDEX_FILE}: fetch the index too")
    other = sorted(path.name for suffix in ("bin", "pt", "pth", "gguf") for path in folder.glob(f"*.{suffix}"))
    hint = f"; {other[0]} is of another format: save the model as safetensors first" if other else ""
    raise SourceError(f"{folder}: has no *.safetensors{hint}")


def _indexed(index: Path) -> dict[str, set[str] | None]:
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()
        listed: dict[str, set[str]] = {}
        for name, file in places:
            listed.setdefault(file, set()).add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{index}: is no index ({type(error).__name__}: {error}); fetch the file again") from error
    return dict(listed)


def _header(path: Path, problems: list[str]) -> dict[str, StoredTensor]:
    try:
        with safe_open(path, framework="pt") as stream:
            slices = {name: stream.get_slice(name) for name in sorted(stream.keys())}
            return {
                name: StoredTensor(name=name, file=path, dtype=part.get_dtype(), shape=tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except FileNotFoundError:
        problems.append(f"{path}: missing, though {INDEX_FILE} names it; fetch the file")
    except (OSError, SafetensorError) as error:
        size = path.stat().st_size if path.exists() else 0
        problems.append(f"{path}: torn or no safetensors file ({size} bytes: {error}); fetch the file again")
    return {}


def _compare(path: Path, names: set[str], found: Mapping[str, StoredTensor], problems: list[str]) -> None:
    if not found:
        return  # said already
    problems += [
        f"{path}: tensor {name} is missing, though {INDEX_FILE} lists it" for name in sorted(names - set(found))
    ]
    problems += [f"{path}: tensor {name} is not in {INDEX_FILE}" for name in sorted(set(found) - names)]
