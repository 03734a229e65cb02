"""The checkpoint format: names, shapes and the manifest. Shared by the commands that write and the loader that reads.

A quantized module P with a weight of [N, K] has, instead of `P.weight`:

- `P.qweight` uint8 [N, K/2], row-major: byte j of a row holds the code of k = 2j in its low nibble, that of
  k = 2j + 1 in its high one;
- `P.scales` bfloat16 [N, K/group] and `P.zeros` bfloat16 [N, K/group]: w = (q - 8) * scale + zero.

Everything else is stored as it was, in bfloat16 where it is floating point. Beside the shards and their index lies the
manifest `cpu_int4.json`: dtype, shape, SHA-256 and file of every tensor, so that a loader can say what is missing, torn
or changed. Importing this module loads no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

#: Version of the format. 1 (2026-12): first.
FORMAT_VERSION: Final = 1
QUANT_METHOD: Final = "cpu_int4"
MANIFEST_FILE: Final = "cpu_int4.json"
INDEX_FILE: Final = "model.safetensors.index.json"
BITS: Final = 4
#: Group sizes that PyTorch's int4 kernel takes.
GROUP_SIZES: Final = (32, 64, 128, 256)
#: PyTorch's packing takes multiples of 16 output channels.
ROWS_MULTIPLE: Final = 16
#: What stands in the place of `P.weight`, in this order.
PARTS: Final = ("qweight", "scales", "zeros")
#: Bytes of one element by safetensors' name of the dtype, in the order in which the library sorts dtypes.
DTYPE_BYTES: Final = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
_DTYPE_NAMES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
REMAKE: Final = "make the checkpoint again with `cpu-int4 quantize`"


class CheckpointError(ValueError):
    """A checkpoint that is torn, foreign or changed; the message names file, tensor, expected, found and the remedy."""


class ManifestError(CheckpointError):
    """A manifest that cannot be used: not JSON, of another version, or an entry is malformed."""


class TensorError(CheckpointError):
    """A tensor that is not the one the manifest lists."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """What the manifest says of one tensor."""

    dtype: str  # as in safetensors' headers: "U8", "BF16", "I64", ...
    shape: tuple[int, ...]
    sha256: str  # lower-case hex, over the tensor's bytes in row-major order
    file: str  # name of the shard, beside the manifest


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All tensors of a checkpoint by name, and why some modules were left in bf16."""

    tensors: Mapping[str, TensorEntry]
    left: Mapping[str, str] = field(default_factory=dict)  # module left in bf16 -> reason
    format_version: int = FORMAT_VERSION

    def quantized(self) -> tuple[str, ...]:
        """Names of the quantized modules, in the manifest's order."""
        return tuple(name.removesuffix(".qweight") for name in self.tensors if name.endswith(".qweight"))


@dataclass(frozen=True, kw_only=True)
class NoManifest:
    """The folder holds no manifest: not a checkpoint of this format, or one that lost it. `why` is a sentence."""

    why: str


def part_names(module: str) -> tuple[str, str, str]:
    """Tensor names of a quantized module: its qweight, scales and zeros."""
    return f"{module}.qweight", f"{module}.scales", f"{module}.zeros"


def part_shapes(n: int, k: int, group_size: int) -> dict[str, tuple[int, int]]:
    """Shapes by part of a quantized [n, k] weight; `k` is a multiple of `group_size`."""
    return {"qweight": (n, k // 2), "scales": (n, k // group_size), "zeros": (n, k // group_size)}


def unsuitable(n: int, k: int, group_size: int) -> str:
    """Why a weight of [n, k] cannot be quantized, in words; empty if it can."""
    reasons = []
    if k % group_size:
        reasons.append(f"K = {k} is not a multiple of the group size {group_size}")
    if n % ROWS_MULTIPLE:
        reasons.append(f"N = {n} is not a multiple of {ROWS_MULTIPLE}")
    return " and ".join(reasons)


def quantization_config(
    *, group_size: int, quantize_embedding: bool, modules_not_converted: Sequence[str]
) -> dict[str, Any]:
    """`quantization_config` of `config.json`. Run-time fields keep their defaults by being absent."""
    return {
        "quant_method": QUANT_METHOD,
        "format_version": FORMAT_VERSION,
        "bits": BITS,
        "group_size": group_size,
        "sym": False,
        "quantize_embedding": quantize_embedding,
        "modules_not_converted": list(modules_not_converted),
    }


def read_manifest(folder: Path) -> Manifest | NoManifest:
    """The manifest in `folder`. Raise `ManifestError` for one that is there and cannot be used."""
    path = Path(folder) / MANIFEST_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return NoManifest(why=f"{folder} has no {MANIFEST_FILE}: it was not written by `cpu-int4 quantize`, or lost it")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: cannot be read: {error}; {REMAKE}") from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ManifestError(f"{path}: is not JSON ({error}): torn or edited; {REMAKE}") from error
    return _manifest(document, path)


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON stores it; `read_manifest` gives it back."""
    return {
        "format_version": manifest.format_version,
        "left_in_bf16": dict(manifest.left),
        "tensors": {
            name: {"dtype": entry.dtype, "shape": list(entry.shape), "sha256": entry.sha256, "file": entry.file}
            for name, entry in manifest.tensors.items()
        },
    }


def check_tensor(entry: TensorEntry, name: str, tensor: Any, *, checksum: bool = True) -> None:
    """Raise `TensorError` unless `tensor` (a CPU torch tensor) has the dtype, shape and, if asked, bytes of `entry`."""
    if (found := dtype_name(tensor.dtype)) != entry.dtype:
        _mismatch(entry, name, "dtype", entry.dtype, found)
    if (shape := tuple(tensor.shape)) != entry.shape:
        _mismatch(entry, name, "shape", list(entry.shape), list(shape))
    if checksum:
        check_digest(entry, name, sha256(tensor))


def check_digest(entry: TensorEntry, name: str, digest: str) -> None:
    """Raise `TensorError` unless `digest` (SHA-256, hex, of the tensor's bytes as read) is the entry's."""
    if digest != entry.sha256:
        _mismatch(entry, name, "SHA-256", entry.sha256, digest)


def sha256(tensor: Any) -> str:
    """SHA-256 (hex) over a CPU tensor's bytes in row-major order."""
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()


def tensor_bytes(tensor: Any) -> memoryview:
    """A CPU tensor's bytes in row-major order, without a copy if it is contiguous."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def dtype_name(dtype: Any) -> str:
    """Safetensors' name of a torch dtype: `torch.bfloat16` is "BF16"; unknown ones keep torch's own name."""
    plain = str(dtype).removeprefix("torch.")
    return _DTYPE_NAMES.get(plain, plain)


def _mismatch(entry: TensorEntry, name: str, what: str, expected: object, found: object) -> None:
    raise TensorError(
        f"{entry.file}: tensor {name}: {what} is {found}, the manifest ({MANIFEST_FILE}) says {expected}: the file is"
        f" torn or was changed after it was written; copy it again, or {REMAKE}"
    )


def _manifest(document: Any, path: Path) -> Manifest:
    version = document.get("format_version") if isinstance(document, dict) else None
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise ManifestError(
            f"{path}: format_version is {version!r}; this cpu_int4 reads version {FORMAT_VERSION}: install the cpu_int4"
            f" that wrote it, or {REMAKE}"
        )
    try:
        tensors = {str(name): _entry(fields) for name, fields in document["tensors"].items()}
        left = {str(name): str(reason) for name, reason in document.get("left_in_bf16", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(f"{path}: malformed ({type(error).__name__}: {error}): torn or edited; {REMAKE}") from error
    return Manifest(tensors=tensors, left=left)


def _entry(fields: Mapping[str, Any]) -> TensorEntry:
    return TensorEntry(
        dtype=str(fields["dtype"]),
        shape=tuple(int(size) for size in fields["shape"]),
        sha256=str(fields["sha256"]),
        file=str(fields["file"]),
    )
