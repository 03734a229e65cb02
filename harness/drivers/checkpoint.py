"""What a model takes on disk: bytes of its weight files, and bits a weight. Standard library only.

Read from the headers of safetensors files: 8 bytes of length, then JSON with dtype, shape and place of every tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
         "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8}  # fmt: skip
#: Tensors that hold packed codes, by how their names end.
_PACKED = (".qweight", ".weight_packed")
#: Tensors that describe codes and are no weights themselves: their bits count, their elements do not.
_BESIDE = (".scales", ".zeros", ".qzeros", ".g_idx", ".weight_scale", ".weight_zero_point", ".weight_shape",
           ".weight_g_idx")  # fmt: skip


@dataclass(frozen=True)
class Size:
    """`file_bytes`: of the weight files, headers included. `bits_per_weight`: over all tensors."""

    file_bytes: int
    bits_per_weight: float


@dataclass(frozen=True)
class UnknownSize:
    """A checkpoint that cannot be counted, and why."""

    why: str


def size(folder: Path, config: Mapping[str, Any]) -> Size | UnknownSize:
    """Count the safetensors files of a model's folder. `config`: its config.json."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return UnknownSize("the model's folder holds no safetensors file")
    packed_bits = _code_bits(config.get("quantization_config") or {})
    bits = weights = 0.0
    for name, dtype, elements in (tensor for file in files for tensor in _tensors(file)):
        if dtype not in _BITS:
            return UnknownSize(f"{name} is stored as {dtype}, whose width is not known here")
        bits += elements * _BITS[dtype]
        if name.endswith(_PACKED):
            if packed_bits is None:
                return UnknownSize(f"{name} holds packed codes, and config.json does not say of how many bits")
            weights += elements * _BITS[dtype] / packed_bits
        elif not name.endswith(_BESIDE):
            weights += elements
    if not weights:
        return UnknownSize("the model's files hold no weights")
    return Size(sum(file.stat().st_size for file in files), bits / weights)


def _code_bits(quantization: Mapping[str, Any]) -> int | None:
    """Bits of one code: `bits`, or what compressed-tensors says of its only group of modules."""
    if isinstance(bits := quantization.get("bits"), int):
        return bits
    groups = list((quantization.get("config_groups") or {}).values())
    found = {(group.get("weights") or {}).get("num_bits") for group in groups}
    (only,) = found if len(found) == 1 else (None,)
    return only if isinstance(only, int) else None


def _tensors(file: Path) -> Iterator[tuple[str, str, int]]:
    """(name, dtype, number of elements) of each tensor of a safetensors file."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    for name, tensor in header.items():
        if name != "__metadata__":
            yield name, tensor["dtype"], math.prod(tensor["shape"])
